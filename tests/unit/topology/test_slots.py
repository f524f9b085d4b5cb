"""Slots: which are pointed elsewhere, how many, and what share of the keys that is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rabbit_chx import Release, Ring, ToExchange, shares
from rabbit_chx.mirror.kernel.table import SEEDS, bucket_table
from rabbit_chx.mirror.partitioning import modulus_shares
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Binding, Exchange, Observed, Queue, Slots
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.steps import Bind, Unbind
from rabbit_chx.topology.slots.slot_division import divide, quotas, recommended_count
from tests.unit.topology.broker_model import Broker, made, slotted

HASHES = 1 << 27


over = partial(slotted, "t")


def division(broker: Broker) -> dict[str, list]:
    held: dict[str, list] = {}
    for bound in broker.bindings:
        if bound.source != "t":
            held.setdefault(bound.source, []).append(bound.destination)
    return held


# ---- how many


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"a": 1, "b": 1, "c": 1, "d": 1}, [16, 16, 16, 16]),
        ({"a": 1, "b": 1, "c": 1}, [22, 21, 21]),
        ({"a": 1, "b": 3}, [16, 48]),
        ({"a": 1, "b": 1000}, [0, 64]),
    ],
)
def test_slots_are_shared_by_weight_and_largest_remainder(weights, expected) -> None:
    assert list(quotas(64, weights).values()) == expected


def test_a_remainder_goes_first_to_who_holds_more_already() -> None:
    assert quotas(64, {"a": 1, "b": 1, "c": 1}, {"a": 21, "b": 21, "c": 22}) == {"a": 21, "b": 21, "c": 22}


def test_a_fresh_division_alternates() -> None:
    names = [str(i) for i in range(8)]
    assert list(divide(names, {"a": 1, "b": 1}).values()) == ["a", "b"] * 4


def test_a_slot_with_two_queues_goes_to_the_later_one_that_is_owed_it() -> None:
    held = {"0": ["a", "b"], "1": ["a"], "2": ["b"], "3": ["a"]}
    assert divide(list("0123"), {"a": 1, "b": 1}, held)["0"] == "b"
    held = {"0": ["a", "b"], "1": ["b"], "2": ["b"], "3": ["a"]}
    assert divide(list("0123"), {"a": 1, "b": 1}, held)["0"] == "a"


@pytest.mark.parametrize(
    ("queues", "count"), [(0, 64), (1, 64), (4, 64), (5, 128), (8, 128), (16, 256), (100, 256)]
)
def test_sixteen_slots_for_a_queue_as_far_as_256_reach(queues: int, count: int) -> None:
    assert recommended_count(queues) == count


# ---- which share


@pytest.mark.parametrize("count", [1, 3, 48, 64])
def test_a_modulus_top_sends_each_slot_the_hashes_with_its_remainder(count: int) -> None:
    slots = Slots("t", count, {"a": 1})
    found = modulus_shares([(bound.destination, bound.key) for bound in slots._top_bindings])
    for place in {0, count // 2, count - 1}:
        assert found[ToExchange(slots.names[place])] == len(range(place, HASHES, count)) / HASHES
    assert sum(found.values()) == pytest.approx(1)


def test_a_slot_is_never_without_a_queue() -> None:
    broker = made(over("abcd"))
    found = plan(over("bcde"), broker.seen())
    broker.carry_out(found.steps)
    assert all(len(ring) for _, ring in broker.rings_seen)
    kinds = [type(step) for step in found.steps if isinstance(step, Bind | Unbind)]
    assert kinds == [Bind, Unbind] * (len(kinds) // 2)


def test_the_two_steps_of_a_slot_move_its_share_together() -> None:
    for top in (MODULUS_HASH, CONSISTENT_HASH):
        broker = made(over("ab", count=16, top=top))
        broker.backlog = {"a": 7, "b": 50}
        found = plan(over("abc", count=16, top=top), broker.seen())
        steps = [step for step in found.steps if isinstance(step, Bind | Unbind)]
        assert sum(step.moved for step in steps) == pytest.approx(found.slot_moves["t"], abs=1e-12)
        assert {step.at_risk for step in steps} <= {7, 50}
        assert {step.exchange_moved for step in steps} == {"t"}


def test_under_a_consistent_hash_top_the_share_is_that_of_its_buckets() -> None:
    broker = made(over("ab", count=16, top=CONSISTENT_HASH))
    before = division(broker)
    found = plan(over("abc", count=16, top=CONSISTENT_HASH), broker.seen())
    after = division(broker.carry_out(found.steps))
    part = shares(Ring.of([ToExchange(name) for name in before]))
    assert found.slot_moves["t"] == sum(
        part[ToExchange(slot)] for slot in before if before[slot] != after[slot]
    )
    # Both exchanges hash the routing key: the first bind takes the keys of that slot that two buckets send on.
    first = next(step for step in found.steps if isinstance(step, Bind))
    number = int(first.binding.source[-2:])
    both = (bucket_table(16).all() == number) & (bucket_table(2).all() == 1)
    assert first.moved == np.count_nonzero(both) / SEEDS


def test_where_the_order_of_the_top_is_unknown_so_is_the_share() -> None:
    wanted = over("ab", count=16, top=CONSISTENT_HASH)
    broker = made(wanted, release="3.10.8")
    rings = {**broker.rings, "t": broker.rings["t"].after_restart()}
    found = plan(over("abc", count=16, top=CONSISTENT_HASH), broker.seen(rings=rings))
    assert not found.slot_moves
    assert all(step.moved is None for step in found.steps if isinstance(step, Bind | Unbind))


# ---- repairs


def test_an_apply_that_was_cut_off_is_finished_without_further_moves() -> None:
    steps = plan(over("abcdef"), made(over("abcd")).seen()).steps
    for done in range(0, len(steps), 7):
        broker = made(over("abcd")).carry_out(steps[:done])
        broker.carry_out(plan(over("abcdef"), broker.seen()).steps)
        held = division(broker)
        assert Counter(len(each) for each in held.values()) == {1: 64}
        assert sorted(Counter(each[0] for each in held.values()).values()) == [10, 10, 11, 11, 11, 11]
        assert not plan(over("abcdef"), broker.seen())


def test_empty_and_unfinished_and_torn_slots_are_repaired() -> None:
    wanted = over("ab", count=16)
    broker = made(wanted)
    of = {bound.source: bound for bound in broker.bindings if bound.source != "t"}
    names = wanted.slots[0].names
    broker.unbind(of[names[3]])
    other = "b" if of[names[5]].destination == "a" else "a"
    broker.bind(Binding(names[5], other, "1"))
    broker.bind(Binding(names[7], of[names[7]].destination, "9"))
    found = plan(wanted, broker.seen())
    assert any("two queues" in note for note in found.notes)
    broker.carry_out(found.steps)
    assert all(len(ring.destinations) == 1 and not ring.dead for ring in broker.rings.values())
    assert not plan(wanted, broker.seen())


def test_a_queue_too_light_for_a_slot_is_reported() -> None:
    assert any("'b'" in note for note in plan(over({"a": 1000, "b": 1}), Observed()).notes)


# ---- refusals


@pytest.mark.parametrize("count", [16, 32, 128])
def test_another_number_of_slots_is_refused(count: int) -> None:
    (refusal,) = plan(over("abcd", count=count), made(over("abcd")).seen()).refusals
    assert "blue/green" in refusal


def test_a_ring_is_not_turned_into_slots_in_place() -> None:
    broker = Broker()
    broker.exchanges["t"], broker.queues["q"] = Exchange("t", MODULUS_HASH), Queue("q")
    broker.bind(Binding("t", "q"))
    (refusal,) = plan(over("abcd"), broker.seen()).refusals
    assert "blue/green" in refusal


def test_a_modulus_top_on_khepri_before_43_is_refused() -> None:
    khepri = Observed(release=Release.parse("4.1", store="khepri"))
    (refusal,) = plan(over("ab"), khepri).refusals
    assert CONSISTENT_HASH in refusal
    assert not plan(over("ab", top=CONSISTENT_HASH), khepri).refusals
    assert not plan(over("ab"), replace(khepri, release=Release.parse("4.1"))).refusals


def test_a_missing_plugin_is_named() -> None:
    types = frozenset({CONSISTENT_HASH, "direct"})
    (refusal,) = plan(over("ab"), Observed(release=Release.parse("4.0"), exchange_types=types)).refusals
    assert "rabbitmq_sharding" in refusal
