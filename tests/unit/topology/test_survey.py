"""What `survey` says about the hash exchanges of a broker without a file."""

from __future__ import annotations

from dataclasses import replace

from rabbit_chx import Ring
from rabbit_chx.topology.checks.survey import NO_CONSUMER, NO_MAJORITY, survey
from rabbit_chx.topology.model import Binding, Exchange, Observed, Queue, Topology

TWO = (Binding("orders", "a", "1"), Binding("orders", "b", "2"))
THERE = Topology(
    exchanges=(
        Exchange("events", "topic"),
        Exchange("orders", "x-consistent-hash", arguments={"hash-header": "tenant"}),
        Exchange("parts", "x-modulus-hash"),
    ),
    queues=(Queue("a"), Queue("b")),
    bindings=(*TWO, Binding("parts", "a", "")),
)
RING = Ring.of({"a": 1, "b": 2})


def live(*bindings: Binding, ring: Ring = RING, **more) -> Observed:
    topology = replace(THERE, bindings=(*(bindings or TWO), *THERE.bindings_from("parts")))
    return Observed(topology=topology, rings={"orders": ring}, ring_sources={"orders": "record"}, **more)


def kinds(observed: Observed, exchange: str = "orders") -> list[str]:
    (found,) = (each for each in survey(observed) if each.exchange == exchange)
    return [each.kind for each in found.troubles]


def test_only_exchanges_that_hash_are_listed_each_with_what_it_hashes():
    assert [(each.exchange, each.hashes, each.order) for each in survey(live())] == [
        ("orders", "the header 'tenant'", "recorded"),
        ("parts", "the routing key", None),
    ]
    assert kinds(live()) == kinds(live(), "parts") == []


def test_an_order_is_recorded_known_or_unknown():
    unrecorded = live(unrecorded=frozenset({"orders"}))
    assert next(iter(survey(unrecorded))).order == "known"
    unknown = live(ring=replace(RING, runs=None, why_unknown="of a restart"))
    assert next(iter(survey(unknown))).order == "unknown"
    assert kinds(unknown) == ["ring-unknown"]
    assert survey(unknown)[0].differences


def test_queues_without_a_majority_are_differences_and_those_without_consumers_warnings():
    backlog, unconsumed = {"a": 2, "b": 3, "other": 4}, frozenset({"a", "other"})
    found = live(without_majority=("b",), backlog=backlog, unconsumed=unconsumed)
    assert kinds(found) == [NO_MAJORITY, NO_CONSUMER]
    first = survey(found)[0]
    assert first.waiting == 5
    assert [each.queue for each in first.differences] == ["b"]


def test_the_messages_are_unknown_while_the_broker_has_no_number_of_a_queue():
    """In the first five seconds after a restart, the management API lists queues without numbers."""
    assert survey(live(backlog={"a": 2, "b": 0}))[0].waiting == 2
    assert survey(live(backlog={"a": 2}))[0].waiting is None
