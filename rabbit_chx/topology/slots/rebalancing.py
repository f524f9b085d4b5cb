"""Find the slots to point to other queues so that a measured load spreads evenly.

found = rebalance({"tenants.slot.0": 700, ...}, {"tenants.slot.0": "tenants.0", ...}, target=1.2)
found.moves, found.slots
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING

from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.ring import parse_weight
from rabbit_chx.topology.slots.slot_search import EXACT, Division, fewest_moves, lowest_level

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Move:
    """A slot to point to another queue."""

    slot: str
    from_queue: str
    to_queue: str
    share: float
    """The slot's share of the load."""


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The load of a queue."""

    share: float
    """Its share of all load."""
    level: float
    """Its load divided by its fair share, which is in proportion to its weight: 1 is the mean."""
    slots: int


@dataclass(frozen=True, slots=True)
class Rebalancing:
    """The moves that bring the load of every queue under a target, and their effect."""

    moves: tuple[Move, ...]
    before: Mapping[str, QueueLoad]
    after: Mapping[str, QueueLoad]
    target: float
    hot: Mapping[str, float]
    """Slots that exceed the target even alone in any queue, each with its share of the load. No move helps; finer keys do."""
    fewest: bool
    """Whether fewer moves are known not to suffice; False if the search gave up first."""
    lowest: bool
    """Whether the target is met but for hot slots, or no division is more even; False if the search gave up first."""

    @property
    def met(self) -> bool:
        """Whether no queue exceeds the target afterwards."""
        return self.max_after <= self.target * EXACT

    @property
    def max_before(self) -> float:
        """The highest level of a queue before: max/mean."""
        return max(each.level for each in self.before.values())

    @property
    def max_after(self) -> float:
        """The highest level of a queue after the moves."""
        return max(each.level for each in self.after.values())

    @property
    def share(self) -> float:
        """The share of the load that moves."""
        return sum(move.share for move in self.moves)

    @property
    def slots(self) -> dict[str, int]:
        """The number of slots of each queue afterwards; as weights in a file they describe this division."""
        return {queue: each.slots for queue, each in self.after.items()}


def rebalance(
    rates: Mapping[str, float],
    queue_of: Mapping[str, str],
    weights: Mapping[str, int] | None = None,
    target: float = 1.2,
) -> Rebalancing:
    """Find the fewest slots to move so that no queue has more than ``target`` times its fair share of the load.

    Among the ways with the fewest moves, the most even one is chosen, then the one that moves the least load. A slot that
    alone exceeds the target gets a queue of its own. If the other slots cannot meet the target either, the moves lead to
    the most even division that was found. Every queue keeps at least one slot.

    Args:
        rates: the load of each slot, in any unit; by default 0.
        queue_of: the queue of each slot.
        weights: the capacity of each queue; by default all are equal.
        target: the highest allowed ratio of a queue's load to its fair share, more than 1.
    """
    capacity = _checked(rates, queue_of, weights, target)
    queues = list(capacity)
    slots = sorted(queue_of, key=lambda slot: -rates.get(slot, 0.0))
    total, strength = sum(map(float, rates.values())), sum(capacity.values())
    loads = [rates.get(slot, 0.0) / total for slot in slots]
    fair = [weight / strength for weight in capacity.values()]
    limit = target * max(fair)
    hot = {slot: load for slot, load in zip(slots, loads, strict=True) if load > limit * EXACT}
    # A hot slot counts as if it filled a queue exactly, so that it gets a queue of its own and the rest meets the target.
    old = [queues.index(queue_of[slot]) for slot in slots]
    start = Division([min(load, limit) for load in loads], fair, old)
    known, lowest = lowest_level(start, target)
    end, fewest = fewest_moves(start, max(target, known.highest), known)
    moves = tuple(
        Move(slot, queues[before], queues[after], load)
        for slot, load, before, after in zip(slots, loads, old, end.queue_of, strict=True)
        if before != after
    )
    now, then = (_levels(queues, Division(loads, fair, each)) for each in (old, end.queue_of))
    return Rebalancing(moves, now, then, target, hot, fewest and lowest, lowest)


def _levels(queues: Sequence[str], division: Division) -> dict[str, QueueLoad]:
    return {
        queue: QueueLoad(division.total[i], division.level(i), len(division.slots_in[i]))
        for i, queue in enumerate(queues)
    }


def check_target(target: object) -> None:
    """Refuse what is no ratio above 1."""
    if isinstance(target, bool) or not isinstance(target, (int, float)) or not 1 < target < inf:
        raise InvalidValue(
            "target",
            target,
            "a number greater than 1",
            "1.2 allows a queue 20% more than its fair share; exactly even load is not possible",
        )


def _checked(
    rates: Mapping[str, float], queue_of: Mapping[str, str], weights: Mapping[str, int] | None, target: float
) -> dict[str, int]:
    """The weights, after checking all arguments."""
    check_target(target)
    for slot, rate in rates.items():
        if slot not in queue_of:
            raise InvalidValue("slot with a rate", slot, "a slot that has a queue")
        if not isfinite(rate) or rate < 0:
            raise InvalidValue(f"rate of slot {slot!r}", rate, "a number of at least 0")
    if not sum(rates.values()):
        raise InvalidValue(
            "load", 0, "messages on at least one slot", "Measure while messages flow, or use a sample of keys"
        )
    if weights is None:
        return dict.fromkeys(queue_of.values(), 1)
    used = Counter(queue_of.values())
    for queue in {**used, **weights}:
        if queue not in used or queue not in weights:
            raise InvalidValue("queue", queue, "a queue with a weight and at least one slot")
    return {queue: parse_weight(weight, of=queue) for queue, weight in weights.items()}
