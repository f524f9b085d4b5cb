"""The ways from ring to ring: replayed with the ring's own commands, and counted key by key by other means."""

from __future__ import annotations

import random
import re
from itertools import permutations

import numpy as np
import pytest

from rabbit_chx import Release, Ring, ToExchange, moved, shares
from rabbit_chx.mirror.kernel.table import SEEDS, all_buckets, bucket_table, visits
from rabbit_chx.mirror.movement import keys_of, moved_among
from rabbit_chx.topology.diff import RingDifference, destination_differences
from rabbit_chx.topology.model import Binding
from rabbit_chx.topology.planning.ring_change import case_of
from rabbit_chx.topology.planning.ring_paths import Case, path_to, ring_strategies
from rabbit_chx.topology.planning.steps import Bind, Unbind

TEN = Ring.of([f"q{i}" for i in range(10)])


NUMBERS: dict = {}


def owners(ring: Ring) -> np.ndarray:
    """A number for the destination of every key, 0 where there is none: by the table of that one size."""
    if not len(ring):
        return np.zeros(SEEDS, int)
    numbers = [NUMBERS.setdefault(name, len(NUMBERS) + 1) for name in ring.bucket_map]
    return np.array(numbers)[bucket_table(len(ring)).all()]


def counted(start: Ring, rings: list[Ring]) -> tuple[float, float]:
    """The share that ends elsewhere, and the share that is elsewhere at any moment, counted ring by ring."""
    first, ever = owners(start), np.zeros(SEEDS, bool)
    for ring in rings:
        ever |= owners(ring) != first
    return np.count_nonzero(owners(rings[-1]) != first) / SEEDS, np.count_nonzero(ever) / SEEDS


def replayed(ring: Ring, steps) -> list[Ring]:
    """The rings that the commands make, by the ring's own rules; a command without effect is an error."""
    rings = []
    for step in steps:
        change = ring.bind if isinstance(step, Bind) else ring.unbind
        after = change(step.binding.destination, step.binding.key, step.binding.arguments)
        assert after.bindings != ring.bindings, step
        rings.append(ring := after)
    return rings


def case(before: Ring, target) -> Case:
    """The change from a ring to destinations, of weight 1 where none is given."""
    pairs = target.items() if isinstance(target, dict) else ((name, 1) for name in target)
    wanted = tuple(Binding("x", name, str(weight)) for name, weight in pairs)
    found = tuple(Binding("x", each.destination, each.key, dict(each.arguments)) for each in before.bindings)
    differences = tuple(destination_differences(wanted, found, before))
    return case_of(RingDifference("x", wanted, found, before, differences), lambda _: None)


def ways(before: Ring, target) -> dict:
    found, _ = ring_strategies(case(before, target))
    return {way.name: way for way in found}


def path(before: Ring, target):
    """The path to exactly that target, and the rings on it by the ring's own commands."""
    one = case(before, target)
    found = path_to(one, one.target)
    return found, replayed(one.before, [kind(binding) for kind, binding in found.commands])


# ---- the kernel


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 255, 256, 300])
def test_all_buckets_are_those_of_the_table(size: int) -> None:
    assert (all_buckets(size) == bucket_table(size).all()).all()


def test_visits_are_drawn_once_for_all_sizes_in_their_range() -> None:
    wide = visits(1, 16)
    assert visits(2, 3) is visits(5, 16) is wide
    for size in (1, 5, 16):
        assert (all_buckets(size) == bucket_table(size).all()).all()
    assert visits(16, 17) is not wide


def test_keys_of_a_ring_are_those_of_the_readable_table() -> None:
    found = keys_of(Ring.of({"a": 2, "b": 1, "c": 3}))
    buckets = bucket_table(6).all()
    for name, (first, last) in {"a": (0, 1), "b": (2, 2), "c": (3, 5)}.items():
        assert (found[name] == np.flatnonzero((buckets >= first) & (buckets <= last))).all()


def test_what_moves_within_one_exchange_below_another() -> None:
    top, slot = Ring.of([ToExchange(f"s{i}") for i in range(5)]), ToExchange("s3")
    old, new = Ring.of(["a"]), Ring.of(["a", "b"])
    keys = np.flatnonzero(bucket_table(5).all() == 3)
    gone = np.count_nonzero(bucket_table(2).all()[keys] == 1)
    assert moved_among(keys_of(top)[slot], old, new) == gone / SEEDS


# ---- the commands


def test_an_insertion_in_the_middle_rebinds_the_tail_or_is_appended() -> None:
    found = ways(Ring.of(["a", "b", "c"]), ["a", "n", "b", "c"])
    assert [re.split(" (?:to|from) exchange ", str(step))[0] for step in found["in place"].steps] == [
        "unbind queue 'c'",
        "unbind queue 'b'",
        "bind queue 'n'",
        "bind queue 'b'",
        "bind queue 'c'",
    ]
    assert found["in place"].order is None
    assert found["append"].order == ("a", "b", "c", "n")
    assert found["append"].moved < found["in place"].moved
    # Below the last size all that is not in bucket 0 of the larger ring is elsewhere at some moment.
    assert found["in place"].moved_between == 1 - shares(Ring.of(["a", "b", "c", "d"]))["a"]


def test_the_last_one_takes_the_place_that_is_free() -> None:
    found = ways(TEN, [name for name in TEN.destinations if name != "q3"])
    assert found["swap"].order == ("q0", "q1", "q2", "q9", "q4", "q5", "q6", "q7", "q8")
    assert found["swap"].moved < 0.2 < found["in place"].moved
    assert found["remove-last"].order == tuple(f"q{i}" for i in range(9))
    assert found["remove-last"].moved == shares(TEN)["q9"]


def test_something_stays_bound_wherever_there_is_something_else() -> None:
    for before, target in [
        ({"a": 1, "b": 1}, {"a": 2, "b": 1}),
        ({"a": 1}, {"a": 2, "n": 1}),
        ({"a": 1, "b": 1}, {"c": 1, "d": 1}),
        ({"a": 1, "b": 2}, {"b": 1, "a": 2}),
    ]:
        found, rings = path(Ring.of(before), target)
        assert min(found.sizes) > 0
        assert all(len(ring) for ring in rings)
        assert rings[-1].runs == found.after.runs == tuple(target.items())


def test_changing_the_weight_of_an_only_queue_leaves_a_gap_which_is_reported() -> None:
    way = ways(Ring.of({"a": 1}), {"a": 2})["in place"]
    assert "lost or returned" in way.summary
    assert way.moved_between == 1.0
    assert way.moved == 0.0


def test_a_queue_bound_twice_is_unbound_twice_and_bound_once() -> None:
    found, rings = path(Ring.of({"a": 1, "b": 1}).bind("b", 5), {"a": 1, "b": 1})
    kinds = [(kind, binding.key) for kind, binding in found.commands]
    assert kinds == [(Unbind, "1"), (Unbind, "5"), (Bind, "1")]
    assert rings[-1].runs == found.after.runs == (("a", 1), ("b", 1))
    assert not rings[-1].dead


def test_a_dead_binding_is_bound_again() -> None:
    before = Ring.of({"a": 1, "b": 1}).bind("b", 5).unbind("b", 1)
    assert before.dead
    found, rings = path(before, {"a": 1, "b": 5})
    assert [kind for kind, _ in found.commands] == [Unbind, Bind]
    assert rings[-1].bucket_map == found.after.bucket_map == ("a", "b", "b", "b", "b", "b")


def test_unbinds_repeat_the_arguments_that_were_bound_and_binds_have_those_of_the_file() -> None:
    before = Ring(release=Release.parse("4.2")).bind("a", 1).bind("b", 1, {"other": "x"})
    found, _ = path(before, ["a", "n", "b"])
    assert [dict(binding.arguments) for _, binding in found.commands] == [{"other": "x"}, {}, {}]


def test_a_ring_of_unknown_order_keeps_what_is_right_and_promises_nothing() -> None:
    before = Ring.of({"a": 1, "b": 1, "c": 2}, release="3.10.8").after_restart()
    way = ways(before, {"a": 1, "c": 1, "n": 1})["append"]
    assert [re.split(" (?:to|from) exchange ", str(step))[0] for step in way.steps] == [
        "unbind queue 'c'",
        "unbind queue 'b'",
        "bind queue 'c'",
        "bind queue 'n'",
    ]
    assert way.moved is way.moved_between is None
    assert all(step.moved is None for step in way.steps)


# ---- the costs


CHANGES = [
    ({"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 1, "c": 1, "d": 1}),
    ({"a": 1, "b": 2, "c": 3, "d": 1}, {"a": 1, "b": 1, "c": 3, "d": 1}),
    ({"a": 2, "b": 1, "c": 2, "d": 1}, {"n": 1, "b": 1, "c": 2, "m": 2}),
    ({"a": 1, "b": 1, "c": 1}, {"c": 1, "b": 1, "a": 1}),
    ({"a": 1}, {"a": 4}),
    ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 1, "d": 2}),
    ({"a": 1, "b": 1}, {"c": 1}),
    ({"a": 1, "b": 1}, {}),
]


@pytest.mark.parametrize(("before", "target"), CHANGES)
def test_every_way_costs_what_its_commands_move_one_by_one(before, target) -> None:
    ring = Ring.of(before)
    for way in ways(ring, target).values():
        rings = replayed(ring, way.steps)
        assert (way.moved, way.moved_between) == counted(ring, rings)
        assert [step.moved for step in way.steps] == [
            moved(old, new).share for old, new in zip([ring, *rings], rings, strict=False)
        ]
        assert rings[-1].runs == way.after.runs
        if way.order is None:
            assert rings[-1].runs == tuple(target.items())
        else:
            assert rings[-1].destinations == way.order


@pytest.mark.parametrize(
    ("before", "target"),
    [
        ({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, {"a": 1, "c": 1, "d": 1, "e": 1}),
        ({"a": 1, "b": 2, "c": 1, "d": 1, "e": 3}, {"a": 1, "c": 1, "d": 1, "e": 3}),
        pytest.param(
            *({"a": 1, "b": 1, "c": 2, "d": 1, "e": 1}, {"a": 1, "b": 3, "c": 2, "d": 1, "e": 1}),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *({"a": 3, "b": 1, "c": 2, "d": 1}, {"a": 2, "b": 1, "c": 2, "d": 1, "n": 1}),
            marks=pytest.mark.long,
        ),
    ],
)
def test_no_order_of_a_small_ring_moves_fewer_keys_than_the_swap(before, target) -> None:
    ring = Ring.of(before)
    least = min(moved(ring, Ring.of(dict(order))).share for order in permutations(target.items()))
    found = ways(ring, target)
    assert min(way.moved for name, way in found.items() if name != "remove-last") == least


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_of_eight_weighted_queues_the_order_is_nearly_the_best_of_all_40320(seed: int) -> None:
    chance = random.Random(seed)
    weights = {f"q{i}": chance.choice([1, 1, 1, 2, 3]) for i in range(9)}
    ring = Ring.of(weights)
    target = {name: weight for name, weight in weights.items() if name != "q0"}
    size = sum(target.values())
    numbers = np.repeat(np.arange(9), list(weights.values()))[bucket_table(len(ring)).all()]
    stays = np.bincount(numbers * size + bucket_table(size).all(), minlength=9 * size).reshape(9, size)
    most = 0
    for order in permutations(range(1, 9)):
        place = kept = 0
        for one in order:
            width = weights[f"q{one}"]
            kept += sum(stays[one, place : place + width].tolist())
            place += width
        most = max(most, kept)
    least = 1 - most / SEEDS
    found = ways(ring, target)
    assert least <= min(way.moved for name, way in found.items() if name != "remove-last") <= least + 0.002


def test_a_few_queues_are_rebound_at_the_end_rather_than_shifted_by_every_step() -> None:
    way = ways(TEN, [name for name in TEN.destinations if name != "q0"])["swap"]
    assert way.order == ("q9", *(f"q{i}" for i in range(1, 9)))
    sizes = [len(ring) for ring in replayed(TEN, way.steps)]
    assert min(sizes) == 1
    # All that lies on the way is bound and unbound at the end, save the one that held the first place.
    assert way.steps[10].binding.destination == "q0"
    assert sum(step.moved for step in way.steps) < 7
