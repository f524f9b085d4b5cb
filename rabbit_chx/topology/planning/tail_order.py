"""Find the order of the tail of a ring that moves the fewest keys.

The number of keys that a destination keeps depends only on its weight and on its first bucket. A single table of
counts therefore gives the exact cost of any order as a sum. Up to seven destinations, all orders are tried; above that,
a greedy order is improved by local search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rabbit_chx.mirror.movement import MovementTracker, first_buckets
from rabbit_chx.mirror.ring import Destination

_TRY_ALL: Final = 7
_IMPROVE: Final = 50
"""The most destinations for local search, whose rounds take quadratic time."""
_ROUNDS: Final = 12


def fewest_moved(
    tracker: MovementTracker, head: int, tail: Mapping[Destination, int]
) -> Iterator[tuple[Destination, int]]:
    """The tail in the order that leaves the most keys on their current destinations.

    The ``head`` buckets before the tail do not change. The tail holds weights; destinations that are bound already
    come first in it, in their current order.
    """
    runs = tuple(tail.items())
    search = _Search(tracker, head, tail)
    if len(runs) <= _TRY_ALL:
        orders = np.array(list(permutations(range(len(runs)))), np.intp)
    else:
        orders = np.stack([np.arange(len(runs)), search.built()])
    best = orders[int(np.argmax(search.kept(orders)))]
    if _TRY_ALL < len(runs) <= _IMPROVE:
        best = search.improved(best)
    return (runs[i] for i in best)


class _Search:
    def __init__(self, tracker: MovementTracker, head: int, tail: Mapping[Destination, int]) -> None:
        self._head = head
        self._weights = np.array(list(tail.values()), np.intp)
        size = head + int(self._weights.sum())
        known, counts = tracker.overlap(size)
        kept = np.zeros((len(tail), size), np.int64)
        for row, name in enumerate(tail):
            if name in known:
                kept[row] = counts[known.index(name)]
        # Destination d keeps _sums[d, b] - _sums[d, a] keys if it owns the buckets a to b - 1.
        self._sums = np.concatenate([np.zeros((len(tail), 1), np.int64), kept.cumsum(axis=1)], axis=1)
        first = first_buckets(tracker.start)
        self._starts = [first.get(name, -1) for name in tail]

    def kept(self, orders: NDArray[Any]) -> NDArray[np.int64]:
        """The number of keys that each order of indices keeps."""
        widths = self._weights[orders]
        ends = self._head + widths.cumsum(axis=1)
        kept: NDArray[np.int64] = (self._sums[orders, ends] - self._sums[orders, ends - widths]).sum(axis=1)
        return kept

    def built(self) -> NDArray[np.intp]:
        """The greedy order: always append the destination that gains most over its current position."""
        left = list(range(len(self._weights)))
        order: list[int] = []
        place = self._head
        while left:
            best = max(left, key=lambda one: self._gain(one, place))
            left.remove(best)
            order.append(best)
            place += int(self._weights[best])
        return np.array(order, np.intp)

    def _gain(self, one: int, place: int) -> int:
        start = self._starts[one]
        elsewhere = self._keeps(one, start) if start > place else 0
        return self._keeps(one, place) - elsewhere

    def _keeps(self, one: int, place: int) -> int:
        last = self._sums.shape[1] - 1
        end = min(last, place + int(self._weights[one]))
        return int(self._sums[one, end] - self._sums[one, min(place, last)])

    def improved(self, order: NDArray[np.intp]) -> NDArray[np.intp]:
        """The order after repeating the best single move until no move helps."""
        best = int(self.kept(order[None, :])[0])
        for _ in range(_ROUNDS):
            moves = np.array(list(_moves(order.tolist())), np.intp)
            kept = self.kept(moves)
            if int(kept.max()) <= best:
                break
            best, order = int(kept.max()), moves[int(np.argmax(kept))]
        return order


def _moves(order: Sequence[int]) -> Iterator[Sequence[int]]:
    """All orders that swap two indices, move one index, or move several of the last indices together."""
    count = len(order)
    for i in range(count):
        for j in range(i + 1, count):
            yield [*order[:i], order[j], *order[i + 1 : j], order[i], *order[j + 1 :]]
            yield [*order[:i], order[j], *order[i:j], *order[j + 1 :]]
            yield [*order[:i], *order[i + 1 : j + 1], order[i], *order[j + 1 :]]
            yield [*order[:i], *order[j:], *order[i:j]]
