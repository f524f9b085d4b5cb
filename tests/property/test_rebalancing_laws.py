"""Rebalancing compared with all divisions of a few slots, and its invariants for any number of slots."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from hypothesis import given, settings, strategies as st

from rabbit_chx.topology.planning.drain_order import drain_stages
from rabbit_chx.topology.planning.slot_changes import move_rounds
from rabbit_chx.topology.slots.rebalancing import rebalance
from rabbit_chx.topology.slots.slot_division import divide, quotas

TARGETS = (Fraction(21, 20), Fraction(6, 5), Fraction(3, 2), Fraction(2))


@st.composite
def cases(draw, most_slots: int, most_queues: int, most_weight: int = 3):
    """Rates, queues and weights, where every queue has a slot."""
    queues = [f"q{number}" for number in range(draw(st.integers(1, most_queues)))]
    count = draw(st.integers(len(queues), most_slots))
    others = st.lists(st.sampled_from(queues), min_size=count - len(queues), max_size=count - len(queues))
    slots = [f"slot.{number:03}" for number in range(count)]
    queue_of = dict(zip(slots, draw(st.permutations(queues + draw(others))), strict=True))
    rate = st.one_of(st.integers(0, 10), st.integers(0, 1000))
    rates = dict(zip(slots, draw(st.lists(rate, min_size=count, max_size=count)), strict=True))
    if not any(rates.values()):
        rates[slots[0]] = 1
    weights = {queue: draw(st.integers(1, most_weight)) for queue in queues}
    return rates, queue_of, weights


def optimum(rates, queue_of, weights, target: Fraction) -> tuple[int, Fraction, Fraction]:
    """The fewest moves, the lowest highest level that they lead to, and the least load that moves for that.

    A slot that exceeds the target in any queue counts as if it filled the largest queue exactly.
    """
    total, strength = sum(rates.values()), sum(weights.values())
    fair = {queue: Fraction(weight, strength) for queue, weight in weights.items()}
    limit = target * max(fair.values())
    loads = {slot: min(Fraction(rates[slot], total), limit) for slot in queue_of}
    found = []
    for division in product(weights, repeat=len(queue_of)):
        if len(set(division)) == len(weights):
            levels = dict.fromkeys(weights, Fraction(0))
            for slot, queue in zip(queue_of, division, strict=True):
                levels[queue] += loads[slot] / fair[queue]
            old = zip(queue_of.items(), division, strict=True)
            moved = [loads[slot] for (slot, before), after in old if before != after]
            found.append((len(moved), max(levels.values()), sum(moved, Fraction(0))))
    allowed = max(target, min(level for _, level, _ in found))
    return min(each for each in found if each[1] <= allowed)


@settings(max_examples=150)
@given(cases(most_slots=7, most_queues=3), st.sampled_from(TARGETS))
def test_few_slots_are_rebalanced_as_well_as_possible(case, target) -> None:
    rates, queue_of, weights = case
    found = rebalance(rates, queue_of, weights, float(target))
    moves, level, moved = optimum(rates, queue_of, weights, target)
    assert len(found.moves) == moves
    assert found.fewest
    assert found.lowest
    if not found.hot:
        assert abs(found.max_after - level) < 1e-6
        assert abs(found.share - moved) < 1e-6
    assert found.met == (not found.hot and level <= target)


@settings(max_examples=60)
@given(cases(most_slots=80, most_queues=9), st.sampled_from(TARGETS))
def test_moves_lead_from_the_given_division_to_the_promised_one(case, target) -> None:
    rates, queue_of, weights = case
    found = rebalance(rates, queue_of, weights, float(target))
    after = queue_of | {move.slot: move.to_queue for move in found.moves}
    assert all(queue_of[move.slot] == move.from_queue != move.to_queue for move in found.moves)
    total, strength = sum(rates.values()), sum(weights.values())
    for queue, weight in weights.items():
        slots = [slot for slot, each in after.items() if each == queue]
        share = sum(rates[slot] for slot in slots) / total
        assert slots
        assert found.after[queue].slots == found.slots[queue] == len(slots)
        assert abs(found.after[queue].share - share) < 1e-9
        assert abs(found.after[queue].level - share * strength / weight) < 1e-9
    if found.max_before <= target:
        assert not found.moves
    # The new weights describe exactly this division, so applying the file changes no slot.
    assert quotas(len(after), found.slots) == found.slots
    names = list(after)
    assert divide(names, found.slots, {slot: (after[slot],) for slot in names}) == after


@settings(max_examples=25)
@given(cases(most_slots=30, most_queues=5))
def test_each_round_can_be_drained_in_order(case) -> None:
    rates, queue_of, weights = case
    found = rebalance(rates, queue_of, weights, 1.05)
    made = move_rounds(found.moves)
    assert sorted(move.slot for each in made for move in each) == sorted(move.slot for move in found.moves)
    for each in made:
        waits: dict[str, set[str]] = {}
        for move in each:
            waits.setdefault(move.to_queue, set()).add(move.from_queue)
        assert drain_stages(waits) is not None
