"""What stops the commands of a plan against a simulated broker, what is refused before them, and the lock around them."""

from __future__ import annotations

import pickle

import pytest

from rabbit_chx.broker.applying.lock import LOCK, take_lock
from rabbit_chx.broker.applying.plan_commands import check_plan
from rabbit_chx.broker.commands import Lost, OnChannel, Pipelined, Refused
from rabbit_chx.errors import ApplyStopped, BrokerUnavailable
from rabbit_chx.mirror.releases import Release, Store
from rabbit_chx.topology.checks.cluster import why_unchangeable
from rabbit_chx.topology.model import Exchange, NodeState, Observed, Policy
from rabbit_chx.topology.planning.steps import (
    Bind,
    DeclareExchange,
    DeleteExchange,
    DeleteQueue,
    Plan,
    SetPolicy,
)
from tests.unit.topology.test_apply_commands import ONE, Played, stopped

# ---- what stops it


def test_it_stops_at_the_first_refusal_and_says_what_is_done() -> None:
    played = Played(trouble={"queue_bind": Refused(404, "NOT_FOUND - no queue 'q' in vhost '/'")})
    steps = (DeclareExchange(Exchange("x", "topic")), Bind(ONE), DeleteExchange("x"))
    error = stopped(lambda: played.run(*steps))
    assert (error.done, error.failed, error.remaining) == (steps[:1], steps[1], steps[2:])
    assert str(error).startswith("stopped at step 2 of 3 (bind queue 'q' to exchange 'x' with key '1'")
    assert "no queue 'q' in virtual host '/'" in error.reason
    assert played.methods == ["exchange_declare", "queue_bind"]
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.failed, back.in_doubt) == (str(error), error.failed, False)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (
            {"queue_bind": Lost("gone"), "queue_delete": Lost("gone")},
            "gone; whether this step was still done is not known: plan again",
        ),
        (
            {"bindings_from": BrokerUnavailable("no answer")},
            "no answer; plan again to see whether this step was done",
        ),
    ],
)
def test_a_lost_connection_or_a_failed_reading_leaves_its_step_in_doubt(trouble, said) -> None:
    error = stopped(lambda: Played(trouble=trouble).run(Bind(ONE)))
    assert said in str(error)
    assert error.in_doubt


def test_steps_that_were_sent_with_a_surprise_are_in_doubt() -> None:
    declared = DeclareExchange(Exchange("a", "topic")), DeclareExchange(Exchange("b", "topic"))
    error = stopped(lambda: Played(http={"exchange": None}).run(*declared))
    assert (error.done, error.failed, error.in_doubt) == ((), declared[0], True)


MAJORITY_DOWN = {"a": NodeState(), "b": NodeState(running=False), "c": NodeState(running=False)}


def test_without_a_majority_of_the_nodes_not_even_the_lock_is_taken() -> None:
    played = Played(http={"nodes": MAJORITY_DOWN, "store": Store.KHEPRI})
    assert "b and c are down" in str(stopped(lambda: played.run(Bind(ONE))))
    assert not [each for each in played.told if isinstance(each, OnChannel)]


@pytest.mark.parametrize("trouble", [Lost("no answer"), Refused(541, "INTERNAL_ERROR")])
def test_a_majority_that_is_lost_during_the_change_is_named_as_the_cause(trouble) -> None:
    before_and_after = iter([*[{"a": NodeState()}] * 2, MAJORITY_DOWN])
    http = {"nodes": lambda: next(before_and_after), "store": Store.KHEPRI}
    played = Played(http=http, trouble={"queue_bind": trouble})
    said = str(stopped(lambda: played.run(Bind(ONE), record=False)))
    assert "b and c are down" in said
    assert "whether this step was still done is not known" in said


@pytest.mark.parametrize(
    ("nodes", "publishes", "said"),
    [
        ({"a": NodeState(alarms=("memory",)), "b": NodeState()}, True, "a has a memory or disk alarm"),
        ({"a": NodeState(alarms=("memory",)), "b": NodeState()}, False, ""),
        ({"a": NodeState(partitions=("b",)), "b": NodeState()}, False, "partitioned"),
        ({"a": NodeState(), "b": NodeState(), "c": NodeState(running=False)}, True, ""),
    ],
)
def test_alarms_refuse_what_publishes_and_partitions_refuse_every_change(nodes, publishes, said) -> None:
    observed = Observed(release=Release.parse("4.3"), nodes=nodes)
    found = why_unchangeable(observed, publishes=publishes)
    assert said in found
    assert bool(said) == bool(found)


def test_an_interrupt_while_the_lock_is_released_releases_it_once_more() -> None:
    played = Played(trouble={"queue_delete": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        played.run(Bind(ONE))
    assert [each.method for each in played.told[-2:]] == ["queue_delete", "queue_delete"]


def test_an_interrupt_while_the_lock_is_taken_releases_it_in_one_step_unless_it_is_anothers() -> None:
    for refusal in (None, Refused(405, "RESOURCE_LOCKED")):
        commands = take_lock("/", "me", seen=True)
        taken = next(commands)
        # The broker refuses the first if another apply has the lock, and then ignores the second.
        released = Pipelined((taken, OnChannel("queue_delete", {"queue": LOCK})))
        assert commands.throw(KeyboardInterrupt()) == released
        with pytest.raises(KeyboardInterrupt):
            commands.send(None) if refusal is None else commands.throw(refusal)


# ---- what is refused before anything is touched


@pytest.mark.parametrize(
    ("plan", "vhost", "seen", "said"),
    [
        (Plan("/", (Bind(ONE),), refusals=("too many keys move",)), "/", True, "too many keys move"),
        (Plan("a", (Bind(ONE),)), "b", True, "for virtual host 'a', but the connection leads to 'b'"),
        (Plan("/", (SetPolicy(Policy("p", "x")),)), "/", False, "set policy 'p' on 'x'.*give management="),
        (Plan("/", (DeleteQueue("q"),)), "/", False, "delete queue 'q'.*give management="),
    ],
)
def test_a_plan_that_cannot_be_applied_is_refused_as_a_whole(plan, vhost, seen, said) -> None:
    with pytest.raises(ApplyStopped, match=f"nothing was changed: .*{said}") as error:
        check_plan(plan, vhost, seen=seen)
    assert error.value.remaining == plan.steps


def test_a_plan_that_can_be_applied_is_not() -> None:
    check_plan(Plan("/", (DeleteQueue("q"),)), "/", seen=True)
    check_plan(Plan("/", (DeleteQueue("q", force=True),)), "/", seen=False)
    check_plan(Plan("a"), "b", seen=False)  # nothing to do is nothing to do anywhere
