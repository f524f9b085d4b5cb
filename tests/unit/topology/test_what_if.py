"""Advice from a file alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx import InvalidValue, Ring, Unpredictable, moved, shares
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Binding, Exchange, Topology
from rabbit_chx.topology.planning.what_if import what_if
from tests.unit.topology.broker_model import hashed, slotted

TEN = hashed("x", [f"orders.{i:02}" for i in range(10)])
NAMES = [queue.name for queue in TEN.queues]


def named(ways) -> dict:
    return {way.name: way for way in ways}


def test_a_number_of_added_queues_continues_the_numbering() -> None:
    ways = what_if(TEN, "x", add=2)
    after = Ring.of([*NAMES, "orders.10", "orders.11"])
    assert ways[0].name == "append"
    assert ways[0].after.destinations == after.destinations
    assert ways[0].moved == moved(Ring.of(NAMES), after).share
    assert {"blue/green", "slots"} <= set(named(ways))


def test_names_may_be_given() -> None:
    one = hashed("x", ["a"])
    assert what_if(one, "x", add=["vip"])[0].after.destinations == ("a", "vip")
    assert what_if(one, "x", add=1)[0].after.destinations == ("a", "x.0")


def test_an_exchange_with_the_longest_name_gets_short_names_of_new_queues() -> None:
    way = what_if(hashed("x" * 255, ["a"]), "x" * 255, add=2)[0]
    assert way.after.destinations == ("a", "new.0", "new.1")
    way = what_if(hashed("x", ["new.0", "q" * 254 + "9"]), "x", add=1)[0]
    assert way.after.destinations[-1] == "new.1"


def test_new_queues_weigh_what_most_do() -> None:
    way = what_if(hashed("x", {"q0": 2, "q1": 2, "vip": 5}), "x", add=1)[0]
    assert way.after.runs == (("q0", 2), ("q1", 2), ("vip", 5), ("q2", 2))


def test_a_removal_offers_every_way_with_its_cost() -> None:
    ways = named(what_if(TEN, "x", remove=["orders.03"]))
    ring = Ring.of(NAMES)
    assert ways["in place"].moved == moved(ring, ring.unbind("orders.03")).share
    assert ways["remove-last"].moved == shares(ring)["orders.09"]
    assert ways["swap"].moved < ways["in place"].moved
    assert ways["blue/green"].moved_between == ways["blue/green"].moved == ways["in place"].moved


def test_slots_cost_once_what_their_division_moves() -> None:
    way = named(what_if(hashed("x", ["q0", "q1"]), "x", add=2))["slots"]
    # Four queues alternate over 64 slots, under a top that hashes as the ring does.
    slots = Ring.read([f"q{i % 4}" for i in range(64)], bindings={})
    assert way.moved == moved(Ring.of(["q0", "q1"]), slots).share


def test_a_weight_keeps_its_place() -> None:
    way = named(what_if(TEN, "x", weights={"orders.03": 3}))["in place"]
    assert way.after.runs == tuple((name, 3 if name == "orders.03" else 1) for name in NAMES)


def test_an_exchange_over_slots_points_some_of_them_elsewhere() -> None:
    topology = slotted("t", ["q0", "q1", "q2", "q3"])
    (way,) = what_if(topology, "t", add=2)
    assert way.name == "slots"
    assert way.moved == way.moved_between == 20 / 64
    (way,) = what_if(topology, "t", remove=["q1"])
    assert way.moved == 16 / 64


def test_a_modulus_exchange_redistributes_all_keys() -> None:
    topology = Topology(
        exchanges=(Exchange("m", MODULUS_HASH),), bindings=tuple(Binding("m", f"q{i}") for i in range(3))
    )
    (way,) = what_if(topology, "m", add=1)
    assert way.moved == pytest.approx(3 / 4, abs=1e-7)
    with pytest.raises(InvalidValue, match="no weights"):
        what_if(topology, "m", weights={"q0": 2})


def test_nothing_to_change_needs_no_way() -> None:
    assert what_if(TEN, "x") == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"add": -1},
        {"add": True},
        {"add": "orders.10"},
        {"add": ["orders.03"]},
        {"add": [""]},
        {"remove": ["nobody"]},
        {"remove": "orders.03"},
        {"weights": {"nobody": 3}},
        {"weights": {"orders.03": 0}},
    ],
)
def test_what_cannot_be_is_refused(wrong) -> None:
    with pytest.raises(InvalidValue):
        what_if(TEN, "x", **wrong)


def test_an_exchange_that_does_not_hash_has_no_keys_to_move() -> None:
    topology = Topology(exchanges=(Exchange("f", "fanout"), Exchange("x", CONSISTENT_HASH)))
    for name in ("f", "nobody"):
        with pytest.raises(InvalidValue, match="one of x"):
            what_if(topology, name, add=1)


@pytest.mark.parametrize(
    "topology", [hashed("x", ["q0", "q1", "q2"]), slotted("x", ["q0", "q1", "q2"], count=16)]
)
@pytest.mark.parametrize("remove", [3, 4, 30, ["q0", "q1", "q2"]])
def test_at_least_one_queue_stays(topology, remove) -> None:
    with pytest.raises(InvalidValue, match=r"queues to remove.*expected fewer than the 3 queues of 'x'"):
        what_if(topology, "x", remove=remove)


def test_slots_need_as_many_slots_as_queues() -> None:
    topology = slotted("x", ["q0", "q1", "q2"], count=16)
    assert what_if(topology, "x", add=13)
    with pytest.raises(
        InvalidValue, match="got 16 slots for 17 queues, expected at least one slot per queue"
    ):
        what_if(topology, "x", add=14)


def test_new_queues_get_no_name_that_the_topology_uses() -> None:
    one = hashed("x", ["orders.9"])
    topology = replace(one, bindings=(*one.bindings, Binding("other", "orders.10")))
    assert what_if(topology, "x", add=1)[0].after.destinations == ("orders.9", "orders.11")


def test_of_two_bindings_of_a_queue_only_the_first_counts() -> None:
    twice = hashed("x", ["a", "b"])
    twice = replace(twice, bindings=(*twice.bindings, Binding("x", "a", "5")))
    way = what_if(twice, "x", add=["c"])[0]
    assert way.after.runs == (("a", 1), ("b", 1), ("c", 1))
    assert way.moved == moved(Ring.of(["a", "b"]), Ring.of(["a", "b", "c"])).share
    with pytest.raises(Unpredictable, match="'a' is bound twice"):
        what_if(twice, "x", add=["c"], release="3.9.20")
