"""What is known of a ring without asking anybody: numbers of binds, the marker, observed messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx import ConsistentHashExchange, Release, Ring, ToExchange
from rabbit_chx.broker.reading.ring_order import MARKER, Memory, in_ring_order, learn, marker, ring_of
from rabbit_chx.errors import InvalidValue, RingUnknown
from rabbit_chx.topology.model import Binding, Exchange, Observed, Topology
from tests.unit.erlang import SEVEN

MNESIA, KHEPRI, OLD = Release.parse("4.0.5"), Release.parse("4.3.6"), Release.parse("3.10.8")


def bound(destination, number: int | None = None, key: str = "1") -> Binding:
    return Binding("x", destination, key, {} if number is None else {"x-bind-seq": number})


def ring(*bindings: Binding, memory: Memory | None = None, node=None):
    memory = memory or Memory(MNESIA, marker(1, "here"), "here", 1)
    listed = Topology(bindings=bindings).ring_bindings("x")
    return ring_of(bindings, listed, memory, node)


def test_numbers_give_the_order_however_the_broker_lists_them() -> None:
    found, source = ring(bound("a", 12, "2"), bound(ToExchange("e"), 7), bound("b", 9))
    assert source == "x-bind-seq"
    assert found.bucket_map == (ToExchange("e"), "b", "a", "a")


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        (Memory(MNESIA, None, "here", 1), "rabbit-chx.order is gone"),
        (Memory(KHEPRI, None, "here", 1), "rabbit-chx.order is gone"),
        (Memory(MNESIA, replace(marker(1, "here"), durable=True), "here", 1), "is gone"),
        (Memory(MNESIA, Exchange(MARKER, "fanout", durable=False), "here", 1), "is gone"),
        (Memory(MNESIA, marker(1, "there"), "here", 1), "by another cluster than 'here'"),
        (Memory(MNESIA, marker(3, "here"), "here", 1), "before the broker was last started"),
        (Memory(OLD, marker(1, "here"), "here", 2), "on a single node only"),
        (Memory(OLD, marker(1, "here"), "here", None), "on a single node only"),
    ],
)
def test_numbers_count_only_while_the_broker_has_kept_its_rings(memory, reason) -> None:
    found, source = ring(bound("a", 1), bound("b", 2), bound("c", 3), memory=memory)
    assert source == "unknown"
    assert not found.known
    assert reason in found.why_unknown
    assert len(found.bindings) == 3


@pytest.mark.parametrize(
    "memory",
    [
        Memory(OLD, marker(1, "here"), "here", 1),
        Memory(MNESIA, marker(1, "here"), "here", 3),
        Memory(KHEPRI, marker(1, "here"), "here", None),
        Memory(MNESIA, marker(2, "here"), "here", 1),  # the only older one is at the front
    ],
)
def test_numbers_count_where_nothing_can_have_moved(memory) -> None:
    found, source = ring(bound("b", 2), bound("a", 1), memory=memory)
    assert (found.bucket_map, source) == (("a", "b"), "x-bind-seq")


@pytest.mark.parametrize(
    ("bindings", "reason"),
    [
        ([bound("a", 1), bound("b")], "1 of its 2 bindings carry no x-bind-seq"),
        ([bound("a", 1), bound("b", 1)], "a x-bind-seq stands twice"),
        ([bound("a", 1), bound("a", 2, "5")], "a is bound 2 times"),
        ([bound("a", 1), Binding("x", "b", "1", {"x-bind-seq": True})], "carry no x-bind-seq"),
        ([bound("a", 1), Binding("x", "b", "1", {"x-bind-seq": "2"})], "carry no x-bind-seq"),
    ],
)
def test_bindings_that_others_made_take_the_order_away(bindings, reason) -> None:
    found, source = ring(*bindings)
    assert source == "unknown"
    assert reason in found.why_unknown


def test_one_binding_needs_no_order_and_none_neither() -> None:
    gone = Memory(MNESIA, None)
    assert ring(bound("a"), memory=gone) == (Ring.of(["a"], release=MNESIA), "trivial")
    assert ring(memory=gone) == (Ring(release=MNESIA), "trivial")


def test_what_the_node_says_decides() -> None:
    found, source = ring(bound("a", 1), bound("b", 2), node=["b", "a"])
    assert (found.bucket_map, source) == (("b", "a"), "node")
    found, source = ring(bound("a", 1, "5"), node=[])
    assert source == "node"
    assert [dead.destination for dead in found.dead] == ["a"]
    found, _ = ring(bound("a", None, "1"), bound("a", None, "5"), bound("b"), node=["b", *"aaaaa"])
    assert found.bucket_map == ("b", *"aaaaa")


@pytest.mark.parametrize("node", [["a", "c"], ["a", "a"], RingUnknown("a hole")])
def test_a_ring_that_does_not_fit_the_bindings_is_none(node) -> None:
    found, source = ring(bound("a"), bound("b"), node=node)
    assert source == "unknown"
    assert found.why_unknown == (
        "a hole" if isinstance(node, RingUnknown) else "it changed while it was read"
    )


def test_bindings_stand_in_the_order_of_the_buckets() -> None:
    dead, b, a = bound("a", None, "1"), bound("b"), bound("a", None, "5")
    other = [Binding("t", "q", "k2"), Binding("t", "q", "k1"), Binding("t", ToExchange("x"), "k0")]
    topology = Topology(bindings=(*other, dead, a, b))
    found, _ = ring(dead, a, b, node=["b", *"aaaaa"])
    ordered = in_ring_order(topology, {"x": found})
    assert [one.destination for one in ordered.bindings_from("x")] == ["b", "a", "a"]
    assert [one.key for one in ordered.bindings_from("t")] == ["k1", "k2", "k0"]
    assert in_ring_order(replace(topology, bindings=topology.bindings[::-1]), {"x": found}) == ordered


# -- observed messages -------------------------------------------------------------------------------------------

ABC, CAB = ["a", "b", "c"], ["c", "a", "b"]
KEYS = [f"k{number}" for number in range(200)]


def observed(queues, ring: Ring, source: str) -> Observed:
    exchange = Exchange("x", "x-consistent-hash")
    bindings = tuple(bound(queue) for queue in queues)
    topology = Topology(exchanges=(exchange,), bindings=bindings)
    return Observed(topology, KHEPRI, rings={"x": ring}, ring_sources={"x": source})


def pairs(queues) -> list[tuple[str, str]]:
    mirror = ConsistentHashExchange(queues, release="4.3.6")
    return [(key, mirror.route(key)) for key in KEYS]


def test_observed_messages_find_the_order() -> None:
    unknown = replace(Ring.of(SEVEN, release=KHEPRI), runs=None, why_unknown="nobody asked")
    truth = [*SEVEN][::-1]
    learnt = learn(observed(SEVEN, unknown, "unknown"), {"x": pairs(truth)})
    assert learnt.rings["x"].bucket_map == tuple(truth)
    assert learnt.ring_sources["x"] == "inference"
    assert [one.destination for one in learnt.topology.bindings_from("x")] == truth
    assert learnt.possible_rings == {}


def test_too_few_of_them_leave_the_orders_that_are_possible() -> None:
    unknown = replace(Ring.of(ABC, release=KHEPRI), runs=None)
    few = pairs(CAB)[:1]
    learnt = learn(observed(ABC, unknown, "unknown"), {"x": few})
    assert learnt.ring_sources["x"] == "unknown"
    possible = {ring.bucket_map for ring in learnt.possible_rings["x"]}
    assert ("c", "a", "b") in possible
    assert 1 < len(possible) < 6
    assert "more pairs are needed" in learnt.rings["x"].why_unknown


def test_they_correct_numbers_and_confirm_them() -> None:
    numbered = Ring.of(ABC, release=KHEPRI)
    right = learn(observed(ABC, numbered, "x-bind-seq"), {"x": pairs(ABC)[:2]})
    assert (right.rings["x"], right.ring_sources["x"]) == (numbered, "x-bind-seq")
    wrong = learn(observed(ABC, numbered, "x-bind-seq"), {"x": pairs(CAB)})
    assert (wrong.rings["x"].bucket_map, wrong.ring_sources["x"]) == (("c", "a", "b"), "inference")
    asked = learn(observed(ABC, numbered, "node"), {"x": pairs(CAB)})
    assert (asked.rings["x"], asked.ring_sources["x"]) == (numbered, "node")


def test_messages_that_no_ring_explains_leave_it_unknown() -> None:
    contradicting = [*pairs(ABC), *pairs(CAB)]
    learnt = learn(observed(ABC, Ring.of(ABC, release=KHEPRI), "x-bind-seq"), {"x": contradicting})
    assert learnt.ring_sources["x"] == "unknown"
    assert "no ring explains the pairs" in learnt.rings["x"].why_unknown


def test_messages_of_an_exchange_without_a_ring_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"got 'y', expected one of 'x'"):
        learn(observed(ABC, Ring.of(ABC, release=KHEPRI), "node"), {"y": pairs(ABC)})
