"""Plans that also remove what the file does not name, carried out on a small model of a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx import ToExchange
from rabbit_chx.topology.checks.drift import drift
from rabbit_chx.topology.model import (
    Binding,
    Exchange,
    Observed,
    Policy,
    Queue,
    Topology,
)
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.steps import DeleteQueue
from tests.unit.topology.broker_model import Broker, hashed, made


def test_pruning_leaves_only_what_the_file_names() -> None:
    wanted = Topology(exchanges=(Exchange("in", "topic"),), queues=(Queue("keep"),))
    broker = made(wanted).carry_out(plan(hashed("y", ["q", "r"]), Observed()).steps)
    broker.bind(Binding("in", "q", "#"))
    broker.bind(Binding("in", ToExchange("y"), "#"))
    broker.policies["p"] = Policy("p", ".*")
    broker.queues["amq.gen-1"] = Queue("amq.gen-1", exclusive=True)
    found = plan(wanted, broker.seen(), prune=True)
    assert not found.refusals
    broker.carry_out(found.steps)
    assert set(broker.exchanges) == {"in"}
    assert set(broker.queues) == {"keep", "amq.gen-1"}
    assert not broker.policies
    assert not broker.bindings
    assert not plan(wanted, broker.seen(), prune=True)


def test_a_queue_with_messages_is_pruned_only_by_force() -> None:
    broker = Broker()
    broker.queues["q"], broker.backlog["q"] = Queue("q"), 12
    (refusal,) = plan(Topology(), broker.seen(), prune=True).refusals
    assert "12 messages" in refusal
    forced = plan(Topology(), broker.seen(), prune=True, force=True)
    assert forced.steps == (DeleteQueue("q", force=True),)
    assert not forced.refusals


def test_a_stream_is_pruned_only_by_force() -> None:
    broker = Broker()
    broker.queues["s"] = Queue("s", "stream")
    (refusal,) = plan(Topology(), broker.seen(), prune=True).refusals
    assert "a stream keeps its messages" in refusal
    assert not plan(Topology(), broker.seen(), prune=True, force=True).refusals


@pytest.mark.parametrize("key", ["alternate-exchange", "dead-letter-exchange"])
def test_pruning_keeps_what_the_settings_of_the_file_lead_to(key) -> None:
    policy = Policy("p", ".*", "all", {key: "far"})
    work = Queue("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    wanted = Topology(exchanges=(Exchange("in", "topic"),), queues=(work,), policies=(policy,))
    broker = made(wanted)
    others = hashed("far", ["q"]), hashed("unused", ["r"]), Topology(queues=(Queue("dead"),))
    for each in others:
        broker.carry_out(plan(each, Observed()).steps)
    broker.carry_out(plan(wanted, broker.seen(), prune=True).steps)
    assert set(broker.exchanges) == {"in", "far"}
    assert set(broker.queues) == {"work", "q", "dead"}
    assert drift(wanted, broker.seen(), strict=True) == ()


def test_pruning_deletes_a_queue_that_only_an_exchange_of_the_file_led_to() -> None:
    retry = Queue("retry", arguments={"x-dead-letter-exchange": "x"})
    before, wanted = hashed("x", "abc"), hashed("x", "ab")
    wanted = replace(wanted, queues=(*wanted.queues, retry))
    broker = made(replace(before, queues=(*before.queues, retry)))
    broker.carry_out(plan(wanted, broker.seen(), prune=True).steps)
    assert "c" not in broker.queues
    assert not plan(wanted, broker.seen(), prune=True)


def test_pruning_keeps_what_gets_the_dead_letters_of_kept_queues() -> None:
    work = Queue("work", arguments={"x-dead-letter-exchange": "retry"})
    retry = Queue("retry", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parked"})
    wanted, broker = Topology(queues=(work,)), Broker()
    far = Topology(
        exchanges=(Exchange("retry", "fanout"),),
        queues=(retry, Queue("parked")),
        bindings=(Binding("retry", "retry"),),
    )
    broker.carry_out(plan(wanted, Observed()).steps)
    broker.carry_out(plan(far, Observed()).steps)
    assert not plan(wanted, broker.seen(), prune=True)


@pytest.mark.parametrize(
    "queue",
    [
        Queue("federation: events -> rabbit@far", arguments={"x-internal-purpose": "federation"}),
        Queue("mqtt-subscription-meter-17qos1", "quorum"),
        Queue("mqtt-will-meter-17"),
        Queue("stomp-subscription-5f0XOhEoZ4Dc"),
        Queue("amq.gen-X", auto_delete=True),
    ],
    ids=["federation", "MQTT", "a will", "STOMP", "a running client"],
)
def test_pruning_leaves_queues_of_links_and_clients(queue) -> None:
    """Most of them collect messages while the link or the client is away."""
    wanted = Topology(exchanges=(Exchange("events", "topic"),))
    broker = made(wanted)
    broker.queues[queue.name] = queue
    broker.bind(Binding("events", queue.name, "#"))
    assert not plan(wanted, broker.seen(), prune=True)
    assert drift(wanted, broker.seen(), strict=True) == ()


def test_objects_that_the_file_does_not_name_are_kept_and_reported() -> None:
    wanted = Topology(exchanges=(Exchange("in", "topic"),))
    broker = made(wanted).carry_out(plan(hashed("y", "q"), Observed()).steps)
    broker.bind(Binding("in", "q", "#"))
    found = plan(wanted, broker.seen())
    assert not found
    assert any("left alone" in note for note in found.notes)
