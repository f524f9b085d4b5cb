"""How a ring divides the key space, and how much of it a change of the ring moves.

A ring tells 2^21 keys apart, each standing for an equal part of all hashes, so everything here is
counted and nothing is sampled: the shares are exact, as are their sums.

``moved`` compares two rings; :class:`MovementTracker` follows a ring through many small changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rabbit_chx.kernel.table import SEEDS, Visits, all_buckets, visits
from rabbit_chx.markup import notebook

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    """The number of the first bucket of each destination, in bucket order; none where the order is not known."""
    first: dict[Destination, int] = {}
    bucket = 0
    for destination, weight in ring.runs or ():
        first[destination] = bucket
        bucket += weight
    return first


@dataclass(frozen=True)
class Movement:
    """What changes hands between two rings, in shares of all hashed keys."""

    share: float
    """The keys that go to another destination than before."""

    flows: Mapping[tuple[Destination | None, Destination | None], float]
    """Every (from, to) with the share of keys that take it, those that stay included.
    None stands for nowhere: the ring has no bucket."""

    def between(self, source: Destination | None, target: Destination | None) -> float:
        """The share that goes from one destination to another; 0.0 where none does."""
        return self.flows.get((source, target), 0.0)

    def _repr_html_(self) -> str:
        """What a notebook shows: the keys that move, the largest flow first."""
        moving = [(share, ends) for ends, share in self.flows.items() if ends[0] != ends[1]]
        rows = [
            (*("nowhere" if end is None else str(end) for end in ends), f"{share:.3%}")
            for share, ends in sorted(moving, key=lambda flow: -flow[0])
        ]
        return notebook(
            f"{self.share:.2%} of the keys go elsewhere.", ("from", "to", "share of all keys"), rows
        )


def moved(old: Ring, new: Ring) -> Movement:
    """The exact share of keys that change destination when one ring becomes the other.

    >>> moved(Ring.of(["q0", "q1", "q2"]), Ring.of(["q0", "q1", "q2", "q3"])).share
    0.24956703186035156
    """
    names_old, names_new = (*old.destinations, None), (*new.destinations, None)
    pairs, counts = np.unique(_owners(old) * len(names_new) + _owners(new), return_counts=True)
    flows = {
        (names_old[pair // len(names_new)], names_new[pair % len(names_new)]): count / SEEDS
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
    }
    share = sum((share for (before, after), share in flows.items() if before != after), start=0.0)
    return Movement(share, flows)


@dataclass(frozen=True, slots=True)
class ChangeMovement:
    """What one change of a ring moves."""

    share: float
    """The keys that go elsewhere after it than before."""
    losers: tuple[Destination, ...]
    """The destinations that they leave."""


@dataclass(frozen=True, slots=True)
class TrackedMovement:
    """What a series of changes moves."""

    hops: tuple[ChangeMovement, ...]
    share: float
    """The keys that end elsewhere than they began."""
    between: float
    """The keys that are elsewhere at any moment between, those that come back included."""


class MovementTracker:
    """Follows one ring through series of changes, as long as it keeps between ``low`` and ``high`` buckets.

    A change at the end of the ring touches only the keys that visit the buckets concerned, so hundreds of
    changes cost less than the tables of a few sizes would. A lower bound of 1 allows the empty ring too.
    """

    def __init__(self, start: Ring, low: int, high: int) -> None:
        self.start = start
        size = max(1, len(start))
        self._visits = visits(max(1, min(low, size)), max(high, size))
        self._first = self._visits.at(size)
        self._index: dict[Destination | None, int] = {None: 0}
        # Indices of all destinations ever met: few more than there are buckets, so narrow means fast here.
        self._narrow = np.promote_types(np.uint16, np.min_scalar_type(8 * self._visits.high))
        self._owners = self._map(start)[self._first]

    def _map(self, ring: Ring) -> NDArray[Any]:
        """The owner of each bucket; a ring without any is one bucket that leads nowhere."""
        owners: Sequence[Destination | None] = ring.bucket_map or (None,)
        indices = [self._index.setdefault(owner, len(self._index)) for owner in owners]
        return np.array(indices, self._narrow)

    def overlap(self, size: int) -> tuple[tuple[Destination | None, ...], NDArray[np.int64]]:
        """For every destination of the first ring, how many of its keys each bucket of another size gets."""
        pairs = self._owners.astype(np.int64) * size + self._visits.at(size)
        counts = np.bincount(pairs, minlength=len(self._index) * size).reshape(-1, size)
        return tuple(self._index), counts

    def along(self, rings: Iterable[Ring]) -> TrackedMovement:
        """What it moves to turn the first ring into each of these, one after the other."""
        walk = _Walk(self._visits, self._map(self.start), self._first.copy(), self._owners.copy())
        hops = []
        for ring in rings:
            moved_keys, lost_by = walk.hop(self._map(ring))
            names = tuple(self._index)
            hops.append(
                ChangeMovement(
                    moved_keys / SEEDS, tuple(name for i in lost_by if (name := names[i]) is not None)
                )
            )
        walk.settle()
        ends_elsewhere = int(np.count_nonzero(walk.owners != self._owners))
        return TrackedMovement(tuple(hops), ends_elsewhere / SEEDS, int(np.count_nonzero(walk.ever)) / SEEDS)


class _Walk:
    """Where every key is, and whether it was ever elsewhere.

    To bind or unbind at the end is counted from the visits alone. Such hops in one direction are carried out
    together, when the next one is of another kind.
    """

    def __init__(
        self, visits: Visits, of_bucket: NDArray[Any], buckets: NDArray[Any], owners: NDArray[Any]
    ) -> None:
        self.owners = owners
        self.ever = np.zeros(SEEDS, np.bool_)
        self._visits = visits
        self._buckets = buckets
        self._size = len(of_bucket)  # that of the ring in which keys have these owners
        self._of_bucket = of_bucket  # of the ring reached, which may be hops further on
        self._direction = 0

    def hop(self, new: NDArray[Any]) -> tuple[int, list[int]]:
        """How many keys move to the next ring, and the indices of the destinations that they leave."""
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
        self.ever |= differs  # a key that moves for the first time is elsewhere then
        return lost

    def settle(self) -> None:
        """Carry out the hops that were only counted."""
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
    """1 where destinations are bound at the end that were not there, -1 where the last one goes, 0 for all else."""
    shorter, longer = sorted((old, new), key=len)
    common = len(shorter)
    if common == len(longer) or (shorter != longer[:common]).any() or np.isin(longer[common:], shorter).any():
        return 0
    if len(old) < len(new):
        return 1
    return -1 if (longer[common:] == longer[-1]).all() else 0


def moved_through(top: Ring, slot: Destination, old: Ring, new: Ring) -> float:
    """The share of a ring's keys that it sends to one exchange, and that change hands when that one's ring does.

    Both exchanges hash the same part of a message here.
    """
    sent = (np.array([owner == slot for owner in top.bucket_map]))[all_buckets(len(top))]
    movement = _names(old)[_owners(old)[sent]] != _names(new)[_owners(new)[sent]]
    return int(np.count_nonzero(movement)) / SEEDS


def _names(ring: Ring) -> NDArray[np.object_]:
    return np.array([*ring.destinations, None], object)


def _owners(ring: Ring) -> NDArray[np.int64]:
    """For every seed the index of its destination, or that behind the last one where there is no bucket."""
    if not len(ring):
        return np.full(SEEDS, len(ring.destinations), np.int64)
    index = {destination: i for i, destination in enumerate(ring.destinations)}
    of_bucket = np.array([index[destination] for destination in ring.bucket_map], np.int64)
    owners: NDArray[np.int64] = of_bucket[all_buckets(len(ring))]
    return owners
