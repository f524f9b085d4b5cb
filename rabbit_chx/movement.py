"""The share of all keys that each destination gets, and the share that a change of the ring moves.

A ring distinguishes 2^21 hashes, each for an equal part of all keys, so shares are counted and exact.

``moved`` compares two rings; :class:`MovementTracker` follows a ring through many small changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rabbit_chx.kernel.table import SEEDS, Visits, all_buckets, visits
from rabbit_chx.markup import notebook

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rabbit_chx.ring import Destination, Ring

__all__ = [
    "ChangeMovement",
    "Movement",
    "MovementTracker",
    "TrackedMovement",
    "first_buckets",
    "moved",
    "moved_through",
    "shares",
]


def shares(ring: Ring) -> dict[Destination, float]:
    """The exact share of all hashed keys that each destination gets, in bucket order.

    >>> shares(Ring.of({"q0": 1, "q1": 3}))
    {'q0': 0.25033092498779297, 'q1': 0.749669075012207}
    """
    counts = np.bincount(_owners(ring), minlength=len(ring.destinations))
    return {
        destination: int(count) / SEEDS for destination, count in zip(ring.destinations, counts, strict=False)
    }


def first_buckets(ring: Ring) -> dict[Destination, int]:
    """The first bucket of each destination, in bucket order; empty if the order is unknown."""
    first: dict[Destination, int] = {}
    bucket = 0
    for destination, weight in ring.runs or ():
        first[destination] = bucket
        bucket += weight
    return first


@dataclass(frozen=True)
class Movement:
    """The movement of keys between two rings, as shares of all keys."""

    share: float
    """The share of keys that change destination."""

    flows: Mapping[tuple[Destination | None, Destination | None], float]
    """The share of keys for every (from, to), including keys that stay. None means unroutable: the ring is empty."""

    def between(self, source: Destination | None, target: Destination | None) -> float:
        """The share of keys that moves from one destination to another."""
        return self.flows.get((source, target), 0.0)

    def _repr_html_(self) -> str:
        """Show the flows in a notebook, largest first."""
        moving = [(share, ends) for ends, share in self.flows.items() if ends[0] != ends[1]]
        rows = [
            (*("nowhere" if end is None else str(end) for end in ends), f"{share:.3%}")
            for share, ends in sorted(moving, key=lambda flow: -flow[0])
        ]
        return notebook(f"{self.share:.2%} of the keys move.", ("from", "to", "share of all keys"), rows)


def moved(old: Ring, new: Ring) -> Movement:
    """The exact share of keys that change destination when one ring becomes the other.

    >>> moved(Ring.of(["q0", "q1", "q2"]), Ring.of(["q0", "q1", "q2", "q3"])).share
    0.24956703186035156
    """
    names_old, names_new = (*old.destinations, None), (*new.destinations, None)
    pairs, counts = _counted(_owners(old) * len(names_new) + _owners(new), len(names_old) * len(names_new))
    flows = {
        (names_old[pair // len(names_new)], names_new[pair % len(names_new)]): count / SEEDS
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
    }
    share = sum((share for (before, after), share in flows.items() if before != after), start=0.0)
    return Movement(share, flows)


def _counted(values: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The values that occur, in order, and how often; sorting them is slow, and needed only where most is large."""
    if most > SEEDS:
        return np.unique(values, return_counts=True)
    counts = np.bincount(values)
    found = np.flatnonzero(counts)
    return found, counts[found]


@dataclass(frozen=True, slots=True)
class ChangeMovement:
    """The movement caused by one change of a ring."""

    share: float
    """The share of keys that change destination."""
    losers: tuple[Destination, ...]
    """The destinations that lose keys."""


@dataclass(frozen=True, slots=True)
class TrackedMovement:
    """The movement caused by a series of changes."""

    hops: tuple[ChangeMovement, ...]
    share: float
    """The share of keys whose last destination differs from their first."""
    between: float
    """The share of keys that are on another destination at any moment, even if they come back."""


class MovementTracker:
    """Follows a ring through series of changes while it has between ``low`` and ``high`` buckets.

    A change at the end of the ring affects only the keys that visit its buckets, so hundreds of changes cost less than
    the tables of a few sizes. A lower bound of 1 also allows an empty ring.
    """

    def __init__(self, start: Ring, low: int, high: int) -> None:
        self.start = start
        size = max(1, len(start))
        self._visits = visits(max(1, min(low, size)), max(high, size))
        self._first = self._visits.at(size)
        self._index: dict[Destination | None, int] = {None: 0}
        # There are few more destinations than buckets, so a narrow type holds their indices and is fast.
        self._narrow = np.promote_types(np.uint16, np.min_scalar_type(8 * self._visits.high))
        self._owners = self._map(start)[self._first]

    def _map(self, ring: Ring) -> NDArray[Any]:
        """The destination of each bucket; an empty ring is one bucket without a destination."""
        owners: Sequence[Destination | None] = ring.bucket_map or (None,)
        indices = [self._index.setdefault(owner, len(self._index)) for owner in owners]
        return np.array(indices, self._narrow)

    def overlap(self, size: int) -> tuple[tuple[Destination | None, ...], NDArray[np.int64]]:
        """For each destination of the first ring, the number of its keys in each bucket of a ring of another size."""
        pairs = self._owners.astype(np.int64) * size + self._visits.at(size)
        counts = np.bincount(pairs, minlength=len(self._index) * size).reshape(-1, size)
        return tuple(self._index), counts

    def along(self, rings: Iterable[Ring]) -> TrackedMovement:
        """The movement when the first ring becomes each of these in turn."""
        return self._movement(map(self._map, rings))

    def follow(self, changes: Iterable[tuple[Destination, int] | None]) -> TrackedMovement:
        """As `along`, of destinations that are bound at the end, or unbound (weight 0); None changes nothing."""
        return self._movement(self._maps(changes))

    def _maps(self, changes: Iterable[tuple[Destination, int] | None]) -> Iterator[NDArray[Any]]:
        owners = self._map(self.start)
        for change in changes:
            if change is not None:
                index = self._index.setdefault(change[0], len(self._index))
                owners = owners[(owners != index) & (owners != 0)]
                owners = np.append(owners, np.full(change[1], index, self._narrow))
                if not len(owners):
                    owners = np.zeros(1, self._narrow)
            yield owners

    def _movement(self, maps: Iterable[NDArray[Any]]) -> TrackedMovement:
        state = _State(self._visits, self._map(self.start), self._first.copy(), self._owners.copy())
        moves = [state.change(owners) for owners in maps]
        state.settle()
        names = tuple(self._index)
        hops = tuple(
            ChangeMovement(count / SEEDS, tuple(name for i in lost_by if (name := names[i]) is not None))
            for count, lost_by in moves
        )
        ends_elsewhere = int(np.count_nonzero(state.owners != self._owners))
        return TrackedMovement(hops, ends_elsewhere / SEEDS, int(np.count_nonzero(state.ever)) / SEEDS)


class _State:
    """The destination of every key, and whether it ever changed.

    Changes at the end of the ring are only counted, and carried out together when a change of another kind follows.
    """

    def __init__(
        self, visits: Visits, of_bucket: NDArray[Any], buckets: NDArray[Any], owners: NDArray[Any]
    ) -> None:
        self.owners = owners
        self.ever = np.zeros(SEEDS, np.bool_)
        self._visits = visits
        self._buckets = buckets
        self._size = len(of_bucket)  # of the ring in which keys have these owners
        self._of_bucket = of_bucket  # of the current ring, after changes that were only counted
        self._direction = 0

    def change(self, new: NDArray[Any]) -> tuple[int, list[int]]:
        """The number of keys that move to the next ring, and the indices of the destinations that lose them."""
        if new is self._of_bucket:
            return 0, []
        old, direction = self._of_bucket, _direction(self._of_bucket, new)
        if direction != self._direction:
            self.settle()
        self._direction = direction
        self._of_bucket = new
        if direction > 0:
            lost = old[self._visits.entering(len(old), len(new))]
        elif direction < 0:
            count = len(self._visits.entering(len(new), len(old)))
            return count, [int(old[-1])] if count else []
        else:
            lost = self._everything(new)
        return len(lost), np.flatnonzero(np.bincount(lost)).tolist()

    def _everything(self, new: NDArray[Any]) -> NDArray[Any]:
        self._visits.resize(self._buckets, self._size, len(new))
        owners = new[self._buckets]
        differs = owners != self.owners
        lost: NDArray[Any] = self.owners[differs]
        self.owners, self._size = owners, len(new)
        self.ever |= differs
        return lost

    def settle(self) -> None:
        """Carry out the changes that were only counted."""
        size = len(self._of_bucket)
        if self._direction == 0 or size == self._size:
            return
        if size < self._size:
            self.ever |= self._buckets >= size
        self._visits.resize(self._buckets, self._size, size)
        if size > self._size:
            self.ever |= self._buckets >= self._size
        self.owners, self._size = self._of_bucket[self._buckets], size


def _direction(old: NDArray[Any], new: NDArray[Any]) -> int:
    """1 if new destinations are appended, -1 if the last one is removed, 0 for any other change."""
    shorter, longer = sorted((old, new), key=len)
    common = len(shorter)
    if common == len(longer) or (shorter != longer[:common]).any() or np.isin(longer[common:], shorter).any():
        return 0
    if len(old) < len(new):
        return 1
    return -1 if (longer[common:] == longer[-1]).all() else 0


def moved_through(top: Ring, slot: Destination, old: Ring, new: Ring) -> float:
    """The share of a top exchange's keys that move when one slot's ring changes.

    Both exchanges hash the same part of a message.
    """
    sent = (np.array([owner == slot for owner in top.bucket_map]))[all_buckets(len(top))]
    movement = _names(old)[_owners(old)[sent]] != _names(new)[_owners(new)[sent]]
    return int(np.count_nonzero(movement)) / SEEDS


def _names(ring: Ring) -> NDArray[np.object_]:
    return np.array([*ring.destinations, None], object)


def _owners(ring: Ring) -> NDArray[np.int64]:
    """For every seed the index of its destination; one past the last for an empty ring."""
    if not len(ring):
        return np.full(SEEDS, len(ring.destinations), np.int64)
    index = {destination: i for i, destination in enumerate(ring.destinations)}
    of_bucket = np.array([index[destination] for destination in ring.bucket_map], np.int64)
    owners: NDArray[np.int64] = of_bucket[all_buckets(len(ring))]
    return owners
