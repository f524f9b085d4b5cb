"""The order of a ring from the record, from the node, and from observed messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx import ConsistentHashExchange, Release, Ring, ToExchange
from rabbit_chx.broker.reading.order_record import (
    OrderRecord,
    anchor,
    order_exchange,
)
from rabbit_chx.broker.reading.ring_order import OrderEvidence, in_ring_order, learn, ring_of
from rabbit_chx.errors import InvalidValue, RingUnknown
from rabbit_chx.topology.model import Binding, Exchange, Observed, Topology
from tests.unit.erlang import SEVEN
from tests.unit.topology.test_apply_commands import entry

MNESIA, KHEPRI, OLD = Release.parse("4.0.5"), Release.parse("4.3.6"), Release.parse("3.10.8")


HERE = order_exchange("here")


def bound(destination, key: str = "1") -> Binding:
    return Binding("x", destination, key)


def evidence(release=MNESIA, exchange=HERE, nodes=1, recorded=()) -> OrderEvidence:
    return OrderEvidence(release, exchange, "here", nodes, OrderRecord.read(recorded))


def ring(*bindings: Binding, evidence: OrderEvidence, node=None):
    return ring_of(bindings, evidence, node)


A, B, C = bound("a", "2"), bound("b"), bound(ToExchange("c"))
RECORDED = [anchor("x"), entry(C, 3), entry(A, 9), entry(B, 10), entry(Binding("y", "b"), 1)]


@pytest.mark.parametrize(
    "found", [evidence(), evidence(OLD), evidence(nodes=3), evidence(KHEPRI, nodes=None)]
)
def test_the_record_gives_the_order_where_nothing_can_have_moved_however_bindings_are_listed(found) -> None:
    known = replace(found, record=OrderRecord.read(RECORDED))
    for listed in ((A, B, C), (C, B, A)):
        order, source = ring(*listed, evidence=known)
        assert (order.bucket_map, source) == ((ToExchange("c"), "a", "a", "b"), "record")


@pytest.mark.parametrize("number", ["9" * 5_000, "9" * 4_300, "\u0663", "-1", "1.0", ""])
def test_a_number_that_no_command_writes_is_no_part_of_the_record(number) -> None:
    written = entry(A, 9)
    forged = replace(entry(B, 10), arguments=entry(B, 10).arguments | {"sequence": number})
    record = OrderRecord.read([anchor("x"), written, forged])
    assert record.entries == OrderRecord.read([anchor("x"), written]).entries
    assert str(record.next_number) == "10"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (evidence(exchange=None), "the record is gone"),
        (evidence(KHEPRI, None), "the record is gone"),
        (evidence(exchange=replace(HERE, durable=True)), "the record is gone"),
        (evidence(exchange=order_exchange("there")), "in another cluster than 'here'"),
        (evidence(OLD, nodes=2), "only on a single node"),
        (evidence(OLD, nodes=None), "only on a single node; only users with the tag monitoring"),
    ],
)
def test_the_record_counts_only_while_the_broker_has_kept_its_rings(found, reason) -> None:
    unknown, source = ring(A, B, C, evidence=replace(found, record=OrderRecord.read(RECORDED)))
    assert source == "unknown"
    assert not unknown.known
    assert reason in unknown.why_unknown
    assert len(unknown.bindings) == 3


@pytest.mark.parametrize(
    ("recorded", "reason"),
    [
        # The exchange was deleted and declared again.
        (RECORDED[1:], "the order of exchange 'x' was not recorded"),
        ([anchor("x"), entry(A, 1), entry(B, 2)], "lacks the binding of exchange 'c'"),
        ([*RECORDED[:2], entry(replace(A, key="1"), 9), entry(B, 10)], "lacks the binding of queue"),
        ([], "the order of exchange 'x' was not recorded"),
    ],
)
def test_a_record_that_lacks_a_binding_gives_no_order(recorded, reason) -> None:
    found, source = ring(A, B, C, evidence=evidence(recorded=recorded))
    assert source == "unknown"
    assert reason in found.why_unknown


def test_entries_of_bindings_that_are_gone_are_ignored() -> None:
    found, source = ring(B, C, evidence=evidence(recorded=RECORDED))
    assert (found.bucket_map, source) == ((ToExchange("c"), "b"), "record")


@pytest.mark.parametrize("release", [OLD, MNESIA, KHEPRI])
def test_bindings_of_an_application_with_other_arguments_change_no_order(release) -> None:
    others = [replace(each, arguments={"note": 1}) for each in (B, A)]
    found, source = ring(*others, A, B, C, evidence=evidence(release, recorded=RECORDED))
    assert (found.bucket_map, source) == ((ToExchange("c"), "a", "a", "b"), "record")


REPLACED = replace(A, arguments={"note": "2"})


@pytest.mark.parametrize(
    ("was", "now"), [(A, REPLACED), (REPLACED, A), (REPLACED, replace(A, arguments={"note": 2}))]
)
def test_a_recorded_binding_that_was_replaced_by_one_with_other_arguments_gives_no_order(was, now) -> None:
    recorded = [anchor("x"), entry(C, 3), entry(was, 9), entry(B, 10)]
    assert ring(was, B, C, evidence=evidence(recorded=recorded))[1] == "record"
    assert ring(now, was, B, C, evidence=evidence(recorded=recorded))[1] == "record"
    found, source = ring(now, B, C, evidence=evidence(recorded=recorded))
    assert source == "unknown"
    assert "lacks the binding of queue 'a' with weight 2, which another program made" in found.why_unknown
    alone = [anchor("x"), entry(was, 9)]
    assert ring(was, evidence=evidence(recorded=alone))[1] == "record"
    assert ring(now, evidence=evidence(recorded=alone))[1] == "unknown"


def test_a_destination_with_two_weights_makes_the_order_unknown() -> None:
    found, source = ring(
        bound("a"), bound("a", "5"), evidence=evidence(recorded=[anchor("x"), entry(bound("a"), 1)])
    )
    assert source == "unknown"
    assert "queue 'a' is bound with 2 weights" in found.why_unknown
    assert "lacks the binding of queue 'a' with weight 5, which another program made" in found.why_unknown


def test_one_binding_needs_no_order_and_none_neither() -> None:
    gone = evidence(exchange=None)
    assert ring(bound("a"), evidence=gone) == (Ring.of(["a"], release=MNESIA), "trivial")
    assert ring(evidence=gone) == (Ring(release=MNESIA), "trivial")


def test_a_single_binding_of_another_weight_than_the_recorded_one_may_be_dead() -> None:
    heavier = bound("b", "2")
    recorded = [anchor("x"), entry(B, 1)]
    assert ring(B, evidence=evidence(KHEPRI, recorded=recorded))[1] == "record"
    of_another_exchange = evidence(KHEPRI, recorded=recorded[1:])
    assert ring(heavier, evidence=of_another_exchange)[1] == "trivial"
    found, source = ring(heavier, evidence=evidence(KHEPRI, recorded=recorded))
    assert source == "unknown"
    assert "lacks the binding of queue 'b' with weight 2" in found.why_unknown
    for node, lacks in ((["b", "b"], True), ([], False)):
        found, source = ring(heavier, evidence=evidence(KHEPRI, recorded=recorded), node=node)
        assert (source, evidence(KHEPRI, recorded=recorded).lacks(found, [heavier])) == ("node", lacks)


def test_a_single_binding_with_buckets_is_recorded_and_an_empty_ring_is_not() -> None:
    found, source = ring(B, evidence=evidence(), node=["b"])
    assert (source, evidence().lacks(found, [B])) == ("node", True)
    assert not evidence(recorded=[anchor("x"), entry(B, 1)]).lacks(found, [B])
    empty, source = ring(evidence=evidence(), node=[])
    assert (source, evidence().lacks(empty, [])) == ("node", False)


def test_buckets_of_a_deleted_exchange_are_named_where_a_release_may_keep_them() -> None:
    kept = ["b", ToExchange("c"), "a", "a"]
    for release, named in (("4.3.5", True), ("4.3.6", False)):
        found, source = ring(A, B, evidence=evidence(Release.parse(release)), node=kept)
        assert source == "unknown"
        assert ("buckets of exchange 'c', which is not bound" in found.why_unknown) is named


def test_what_the_node_says_decides() -> None:
    found, source = ring(bound("a"), bound("b"), node=["b", "a"], evidence=evidence())
    assert (found.bucket_map, source) == (("b", "a"), "node")
    found, source = ring(bound("a", "5"), node=[], evidence=evidence())
    assert source == "node"
    assert [dead.destination for dead in found.dead] == ["a"]
    twice = bound("a"), bound("a", "5"), bound("b")
    found, _ = ring(*twice, node=["b", *"aaaaa"], evidence=evidence())
    assert found.bucket_map == ("b", *"aaaaa")


@pytest.mark.parametrize("node", [["a", "c"], ["a", "a"], RingUnknown("a hole")])
def test_a_ring_of_the_node_that_does_not_match_the_bindings_is_unknown(node) -> None:
    found, source = ring(bound("a"), bound("b"), node=node, evidence=evidence())
    assert source == "unknown"
    assert found.why_unknown == (
        "a hole" if isinstance(node, RingUnknown) else "it changed while it was read"
    )


def test_bindings_have_the_order_of_the_buckets() -> None:
    dead, b, a = bound("a"), bound("b"), bound("a", "5")
    other = [Binding("t", "q", "k2"), Binding("t", "q", "k1"), Binding("t", ToExchange("x"), "k0")]
    topology = Topology(bindings=(*other, dead, a, b))
    found, _ = ring(dead, a, b, node=["b", *"aaaaa"], evidence=evidence())
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


@pytest.mark.parametrize(("more", "recorded"), [((), {"x"}), (("a", "1"), {"x"}), (("a", "2"), set())])
def test_the_order_that_they_show_is_recorded_if_each_queue_has_one_weight(more, recorded) -> None:
    """Otherwise `apply` would miss it in the record, and refuse each plan."""
    of = observed(ABC, replace(Ring.of(ABC, release=KHEPRI), runs=None), "unknown")
    if more:
        ring = replace(of.rings["x"], bindings=(*of.rings["x"].bindings, more))
        second = Binding("x", *more, arguments={"other": 1})
        topology = replace(of.topology, bindings=(*of.topology.bindings, second))
        of = replace(of, topology=topology, rings={"x": ring})
    learnt = learn(of, {"x": pairs(CAB)})
    assert learnt.ring_sources["x"] == "inference"
    assert learnt.unrecorded == recorded


def test_they_correct_a_record_and_confirm_it() -> None:
    recorded = Ring.of(ABC, release=KHEPRI)
    right = learn(observed(ABC, recorded, "record"), {"x": pairs(ABC)[:2]})
    assert (right.rings["x"], right.ring_sources["x"]) == (recorded, "record")
    wrong = learn(observed(ABC, recorded, "record"), {"x": pairs(CAB)})
    assert (wrong.rings["x"].bucket_map, wrong.ring_sources["x"]) == (("c", "a", "b"), "inference")
    asked = learn(observed(ABC, recorded, "node"), {"x": pairs(CAB)})
    assert (asked.rings["x"], asked.ring_sources["x"]) == (recorded, "node")


def test_messages_that_no_ring_explains_leave_it_unknown() -> None:
    contradicting = [*pairs(ABC), *pairs(CAB)]
    learnt = learn(observed(ABC, Ring.of(ABC, release=KHEPRI), "record"), {"x": contradicting})
    assert learnt.ring_sources["x"] == "unknown"
    assert "explains the pairs" in learnt.rings["x"].why_unknown


def test_messages_of_an_exchange_without_a_ring_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"got 'y', expected one of 'x'"):
        learn(observed(ABC, Ring.of(ABC, release=KHEPRI), "node"), {"y": pairs(ABC)})
