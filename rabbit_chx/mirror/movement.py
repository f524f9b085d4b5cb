"""The share of all keys that each destination gets, and the share that a change of the ring moves.

A ring distinguishes 2^21 hashes, each for an equal part of all keys, so shares are counted and exact.

``moved`` compares two rings; :class:`MovementTracker` follows a ring through many small changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rabbit_chx.base.markup import notebook
from rabbit_chx.mirror.kernel.table import SEEDS, Visits, all_buckets, bucket_table, visits
from rabbit_chx.mirror.ring import Destination, Ring

_FEW: Final = SEEDS // 16
"""Fewer keys than this are looked up one by one."""


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

    A change costs as much as there are buckets and keys that change theirs, so thousands of changes cost less than the
    tables of a few sizes. A lower bound of 1 also allows an empty ring.
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
        keys = _Keys(self._visits, self._map(self.start), self._first.copy())
        moves = [keys.change(owners) for owners in maps]
        keys.settle(len(keys.owners))
        names: tuple[Any, ...] = tuple(self._index)
        hops = tuple(
            ChangeMovement(count / SEEDS, tuple(map(names.__getitem__, losers.tolist())))
            for count, losers in moves
        )
        ends_elsewhere = int(np.count_nonzero(keys.owners[keys.buckets] != self._owners))
        return TrackedMovement(hops, ends_elsewhere / SEEDS, keys.ever_moved / SEEDS)


class _Keys:
    """The bucket of every key in a ring that changes, and whether the key has ever moved.

    Only keys that change their bucket are looked at. Those that stay move if their bucket gets another destination,
    so it is enough to know how many keys are in each bucket, and when its destination changed last. Changes at the end
    of the ring are only counted, and carried out together when a change of another kind follows.
    """

    def __init__(self, visits: Visits, owners: NDArray[Any], buckets: NDArray[Any]) -> None:
        self.owners = owners
        self.buckets = buckets
        self._visits = visits
        self._size = len(owners)  # of the ring in which keys are in these buckets
        self._counts = np.bincount(buckets, minlength=visits.high)
        self._changed = np.zeros(visits.high, np.int32)
        self._since = np.zeros(SEEDS, np.int32)
        self._ever = np.zeros(SEEDS, np.bool_)
        self._step = 0

    @property
    def ever_moved(self) -> int:
        """The number of keys that have moved at any step."""
        return int(np.count_nonzero(self._ever | (self._changed[self.buckets] > self._since)))

    def change(self, new: NDArray[Any]) -> tuple[int, NDArray[Any]]:
        """The number of keys that move to the next ring, and the indices of the destinations that lose them."""
        old, self.owners = self.owners, new
        if new is old:
            return 0, old[:0]
        grows = len(new) > len(old)
        ends = _differ_at_the_end(old, new)
        if not ends or grows != (len(old) > self._size):
            self.settle(len(old))
        if not ends:
            return self._change(old, new)
        _, left = self._visits.entering(*sorted((len(old), len(new))))
        return len(left), _distinct(old[left] if grows else old[-1:].repeat(min(1, len(left))))

    def _change(self, old: NDArray[Any], new: NDArray[Any]) -> tuple[int, NDArray[Any]]:
        keys, was, now = self._resize(len(new))
        moves = old[was] != new[now]
        self._step += 1
        self._ever[keys] |= moves | (self._changed[was] > self._since[keys])
        self._since[keys] = self._step
        small = min(len(old), len(new))
        differs = np.flatnonzero(old[:small] != new[:small])
        self._changed[differs] = self._step
        staying = self._counts[differs] - np.bincount(now, minlength=small)[differs]
        lost = np.concatenate([was[moves], differs[staying > 0]])
        return int(np.count_nonzero(moves) + staying.sum()), _distinct(old[lost])

    def settle(self, size: int) -> None:
        """Carry out the changes that were only counted; each of their keys has moved."""
        keys, _, _ = self._resize(size)
        self._ever[keys] = True

    def _resize(self, size: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The keys that change their buckets, with their old and new ones."""
        small, large = sorted((self._size, size))
        keys, _ = self._visits.entering(small, large)
        was = self.buckets[keys]
        self._visits.resize(self.buckets, self._size, size)
        now = self.buckets[keys]
        self._counts[:large] += np.bincount(now, minlength=large) - np.bincount(was, minlength=large)
        self._size = size
        return keys, was, now


def _distinct(lost: NDArray[Any]) -> NDArray[Any]:
    """The indices of the destinations that lose keys; 0 means none."""
    return (np.flatnonzero(np.bincount(lost)[1:]) + 1).astype(lost.dtype)


def _differ_at_the_end(old: NDArray[Any], new: NDArray[Any]) -> bool:
    """Whether one ring has the buckets of the other, and one more destination after them."""
    shorter, longer = sorted((old, new), key=len)
    last = longer[len(shorter) :]
    return bool(
        len(last)
        and (last == last[0]).all()
        and (shorter == longer[: len(shorter)]).all()
        and not (shorter == last[0]).any()
    )


def keys_of(ring: Ring) -> dict[Destination, NDArray[np.intp]]:
    """The keys of the 2^21 that each destination gets."""
    owners = _owners(ring)
    keys, ends = np.argsort(owners, kind="stable"), np.bincount(owners, minlength=1).cumsum()
    return dict(zip(ring.destinations, np.split(keys, ends), strict=False))


def moved_among(keys: NDArray[np.intp], old: Ring, new: Ring) -> float:
    """The share of all keys that are among these and change destination."""
    before, after = (np.array([*ring.destinations, None], object)[_owners(ring, keys)] for ring in (old, new))
    return int(np.count_nonzero(before != after)) / SEEDS


def _owners(ring: Ring, keys: NDArray[np.intp] | None = None) -> NDArray[np.int64]:
    """For every key the index of its destination; one past the last for an empty ring."""
    if not len(ring):
        return np.full(SEEDS if keys is None else len(keys), len(ring.destinations), np.int64)
    if keys is not None and len(keys) < _FEW:
        buckets = bucket_table(len(ring))[keys]
    else:
        buckets = all_buckets(len(ring))[slice(None) if keys is None else keys]
    index = {destination: i for i, destination in enumerate(ring.destinations)}
    owners: NDArray[np.int64] = np.array([index[destination] for destination in ring.bucket_map])[buckets]
    return owners
