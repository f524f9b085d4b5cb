"""Search for the fewest slots to move so that no queue has more than its limit.

The load of a slot is a number of messages, or a share of them. The level of a queue is its load divided by its fair share,
so 1 is the mean. Every queue keeps at least one slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WORK: Final = 200_000
"""The work after which a search gives up, as tried moves times queues: less than a second."""
EXACT: Final = 1 + 1e-9
"""Tolerates the rounding errors of sums."""


class _GaveUp(Exception):
    """The search has used up its work."""


@dataclass
class Division:
    """The slots of each queue, and the load of each. Slots are numbers, from the largest load to the smallest."""

    loads: Sequence[float]
    """Of each slot, the largest first."""
    fair: Sequence[float]
    """The load of each queue if all had the same level."""
    queue_of: list[int]
    """Of each slot."""
    total: list[float] = field(init=False)
    slots_in: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.total = [0.0] * len(self.fair)
        self.slots_in = [set() for _ in self.fair]
        for slot, queue in enumerate(self.queue_of):
            self.total[queue] += self.loads[slot]
            self.slots_in[queue].add(slot)

    def copy(self) -> Division:
        """An independent copy, whose totals are summed again."""
        return Division(self.loads, self.fair, list(self.queue_of))

    def move(self, slot: int, queue: int) -> None:
        """Move a slot to a queue."""
        old = self.queue_of[slot]
        self.total[old] -= self.loads[slot]
        self.total[queue] += self.loads[slot]
        self.slots_in[old].remove(slot)
        self.slots_in[queue].add(slot)
        self.queue_of[slot] = queue

    def level(self, queue: int, more: float = 0.0) -> float:
        """The level of a queue, with this much more load."""
        return (self.total[queue] + more) / self.fair[queue]

    @property
    def fullest(self) -> int:
        """The queue with the highest level."""
        return max(range(len(self.fair)), key=self.level)

    @property
    def highest(self) -> float:
        """The highest level."""
        return self.level(self.fullest)

    @property
    def empty(self) -> list[int]:
        """The queues without a slot."""
        return [queue for queue, slots in enumerate(self.slots_in) if not slots]


def descend(start: Division, limit: float) -> Division:
    """Lower the highest level, one best move or swap at a time, to the limit if possible."""
    now = start.copy()
    while now.highest > limit * EXACT:
        full, before = now.fullest, now.highest
        best = min(_moves_from(now, full), default=None)
        if best is None or best[0] * EXACT >= before:  # swaps cost two moves
            best = min(_swaps_with(now, full), default=None)
        if best is None or best[0] * EXACT >= before:
            return now
        _, slot, queue, other = best
        now.move(slot, queue)
        if other >= 0:
            now.move(other, full)
    return now


_Choice = tuple[float, int, int, int]
"""The higher level of the two queues afterwards, a slot, its new queue, and the slot that moves back, or -1."""


def _moves_from(now: Division, full: int) -> Iterator[_Choice]:
    if len(now.slots_in[full]) < 2:
        return
    for slot, queue in product(now.slots_in[full], range(len(now.fair))):
        load = now.loads[slot]
        if queue != full and load:
            yield max(now.level(full, -load), now.level(queue, load)), slot, queue, -1


def _swaps_with(now: Division, full: int) -> Iterator[_Choice]:
    own = now.slots_in[full]
    for other, queue in enumerate(now.queue_of):
        for slot in own if queue != full else ():
            more = now.loads[slot] - now.loads[other]
            if more > 0:
                yield max(now.level(full, -more), now.level(queue, more)), slot, queue, other


def lowest_level(start: Division, enough: float) -> tuple[Division, bool]:
    """A division whose highest level is ``enough`` or less, or else as low as possible.

    The second value is False if a search gave up, so that a lower level may be possible.
    """
    best = descend(start, enough)
    if best.highest <= enough * EXACT:
        return best, True
    search = _Placement(best)
    try:
        search.place(0)
    except (_GaveUp, RecursionError):
        return search.best, False
    return search.best, True


class _Placement:
    """A depth-first search that puts each slot, the largest first, into each queue that may lead to a better division."""

    def __init__(self, best: Division) -> None:
        self.best = best
        self._queue_of = list(best.queue_of)
        self._total = [0.0] * len(best.fair)
        self._count = [0] * len(best.fair)
        self._left = _WORK

    def place(self, slot: int) -> None:
        """Place the slots from this one on."""
        if slot == len(self._queue_of):
            self.best = Division(self.best.loads, self.best.fair, list(self._queue_of))
            return
        later = len(self._queue_of) - slot - 1
        load, fair = self.best.loads[slot], self.best.fair
        tried = set()
        self._left -= len(fair)
        if self._left < 0:
            raise _GaveUp
        for queue in sorted(range(len(fair)), key=lambda each: (self._total[each] + load) / fair[each]):
            total, alike = self._total[queue], (self._total[queue], self._count[queue] == 0, fair[queue])
            empty = self._count.count(0) - (self._count[queue] == 0)
            if alike in tried or empty > later or (total + load) / fair[queue] * EXACT >= self.best.highest:
                continue
            tried.add(alike)
            self._total[queue] += load
            self._count[queue] += 1
            self._queue_of[slot] = queue
            self.place(slot + 1)
            self._total[queue] = total
            self._count[queue] -= 1


def fewest_moves(start: Division, limit: float, known: Division) -> tuple[Division, bool]:
    """The division within the limit that moves the fewest slots; then the most even one; then the one that moves the least load.

    ``known`` is any division within the limit. The second value says whether fewer moves are known not to suffice, which
    is unknown if a search gave up.
    """
    most = sum(map(int.__ne__, start.queue_of, known.queue_of))
    fewest, left = True, _WORK
    for moves in range(_Search(start, limit, 0).least_moves(), most + 1):
        search = _Search(start, limit, left // 4)  # leaves work for searches with more moves
        complete = search.with_moves(moves)
        if search.found is not None:
            return search.found, fewest
        fewest &= complete or moves == most
        left -= left // 4 - search.left
    return known, fewest


class _Search:
    """A depth-first search. Some slot must leave the fullest queue, so the search branches over its slots only."""

    def __init__(self, start: Division, limit: float, left: int) -> None:
        self._now = start.copy()
        self._limit = limit * EXACT
        self._fixed: set[int] = set()
        """The slots that have moved, and those that stay in this branch."""
        self.left = left
        """The remaining work."""
        self.found: Division | None = None
        self._moved = self._least_moved = 0.0
        """The load that moves: to the current division, and to the best one found."""

    def with_moves(self, moves: int) -> bool:
        """Find the best division with this many moves, if fewer do not suffice; return whether the search was complete."""
        try:
            self._descend(moves)
        except _GaveUp:
            return False
        return True

    def least_moves(self) -> int:
        """A lower bound for the moves still needed: each full queue loses its largest slots first."""
        leaving = sum(map(self._least_from, range(len(self._now.fair))))
        return max(leaving, len(self._now.empty))  # one move may fill an empty queue from a full one

    def _least_from(self, queue: int) -> int:
        now = self._now
        over = now.total[queue] - self._limit * now.fair[queue]
        if over <= 0:
            return 0
        for count, slot in enumerate(self._movable(queue), start=1):
            over -= now.loads[slot]
            if over <= 0:
                return count
        return len(now.loads) + 1  # impossible

    def _movable(self, queue: int) -> list[int]:
        return sorted(self._now.slots_in[queue] - self._fixed)

    def _descend(self, left: int) -> None:
        now = self._now
        least = self.least_moves()
        if least > left:
            return
        if not least:
            self._keep()
            return
        fixed: list[int] = []
        for slot, queues in self._branches():
            old, size = now.queue_of[slot], now.loads[slot]
            same = any(now.queue_of[each] == old and now.loads[each] == size for each in fixed[-1:])
            fixed.append(slot)
            self._fixed.add(slot)
            if not same:  # an equal slot stays, so this one need not move either
                for queue in queues:
                    self._try(slot, queue, left)
            if self.least_moves() > left:
                break
        self._fixed.difference_update(fixed)

    def _keep(self) -> None:
        """Keep the division if it is lower than the best, or as low and moves less load."""
        highest = self._now.highest * EXACT
        if self.found is None or highest * EXACT < self._limit or self._moved * EXACT < self._least_moved:
            self.found, self._least_moved = self._now.copy(), self._moved
            self._limit = min(highest, self._limit)
        # From now on, only divisions that are at least as low matter.

    def _try(self, slot: int, queue: int, left: int) -> None:
        now = self._now
        old = now.queue_of[slot]
        fits = now.level(queue, now.loads[slot]) <= self._limit
        if queue == old or (left == 1 and not fits):
            return
        self.left -= len(now.fair)
        if self.left < 0:
            raise _GaveUp
        totals = now.total[old], now.total[queue]  # so that rounding errors do not add up
        now.move(slot, queue)
        self._moved += now.loads[slot]
        self._descend(left - 1)
        now.move(slot, old)
        self._moved -= now.loads[slot]
        now.total[old], now.total[queue] = totals

    def _branches(self) -> Iterator[tuple[int, list[int]]]:
        """Slots, each with its possible queues, the emptiest first. At least one of these slots must move."""
        now = self._now
        by_level = sorted(range(len(now.fair)), key=now.level)
        if now.level(by_level[-1]) > self._limit:
            for slot in self._movable(by_level[-1]):
                yield slot, by_level
            return
        empty = now.empty[:1]
        yield from ((slot, empty) for slot in range(len(now.loads)) if slot not in self._fixed)
