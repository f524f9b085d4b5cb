"""Compute the buckets of many keys at once, for one ring size.

A ring distinguishes only 2^21 keys, so :class:`BucketTable` caches the bucket of each. It computes only the
keys that are looked up, so that a short column costs a few thousand draws; once half of the keys are
known, it computes the rest.

A ring that grows bucket by bucket does not need a table for every size: :class:`Visits` holds the changes
from each size to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rabbit_chx.mirror.kernel.jump import EXS64_FACTOR, EXS1024_FACTOR, SEED_BITS, SEED_FACTORS, STATE_WORDS

SEEDS: Final = 1 << SEED_BITS
"""The number of keys that a ring can distinguish."""

_MASK21: Final = np.uint64(SEEDS - 1)
_ROWS: Final = 1 << 14
_CACHED: Final = 6
"""The ranges of sizes whose visits are kept, about 20 MB each."""
_WIDER: Final = 16
"""Visits that begin at so many times fewer buckets are not used: they cost less than a draw, but again with each use."""
_cache: list[Visits] = []
"""Most recently used first."""


@lru_cache(maxsize=16)
def bucket_table(buckets: int) -> BucketTable:
    """Return the table of a ring size, shared by all rings of that size (2 MB; 4 MB above 255 buckets)."""
    return BucketTable(buckets)


class BucketTable:
    """``jump_consistent_hash(key, buckets)`` for arrays of keys."""

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets
        # Bucket + 1, so that 0 means "not drawn yet": untouched zero pages cost no memory.
        self._known: NDArray[Any] = np.zeros(SEEDS, np.min_scalar_type(buckets))
        self._drawn = 0
        self._complete = False

    def __getitem__(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Return the bucket of each key; keys are integers of any NumPy type, and only 21 bits are used."""
        found = np.empty(len(keys), self._known.dtype)
        for start in range(0, len(keys), _ROWS):
            seeds = keys[start : start + _ROWS].astype(np.intp) & (SEEDS - 1)
            if not self._complete:
                self._draw_missing(seeds)
            self._known.take(seeds, mode="wrap", out=found[start : start + _ROWS])
        found -= 1
        return found

    def all(self) -> NDArray[Any]:
        """Return the bucket of every key from 0 to 2^21 - 1."""
        self._draw_rest()
        found: NDArray[Any] = self._known - 1
        return found

    def _draw_missing(self, seeds: NDArray[np.intp]) -> None:
        missing = seeds[self._known[seeds] == 0]
        self._drawn += len(missing)
        if self._drawn > SEEDS // 2:
            self._draw_rest()  # costs no more than the draws so far, and later calls skip the search
        elif len(missing):
            self._draw(missing)

    def _draw_rest(self) -> None:
        rest = np.flatnonzero(self._known == 0)
        for start in range(0, len(rest), _ROWS):
            self._draw(rest[start : start + _ROWS])
        self._complete = True

    def _draw(self, seeds: NDArray[np.intp]) -> None:
        self._known[seeds] = _jump(seeds.astype(np.uint64), self.buckets) + 1


def visits(low: int, high: int) -> Visits:
    """Return visits that cover at least these sizes: drawing costs more than a wider range, so ranges are rounded and cached."""
    found = _cached(low, high) or Visits(1 << low.bit_length() - 1, 1 << (high - 1).bit_length())
    _cache[:] = [found, *(each for each in _cache if each is not found)][:_CACHED]
    return found


def all_buckets(buckets: int) -> NDArray[Any]:
    """Return the bucket of every key from 0 to 2^21 - 1 in a ring of that size; further sizes near it cost little more."""
    full = 1 << (buckets - 1).bit_length()
    return (_cached(buckets, buckets) or visits(max(full // 2, 1), full)).at(buckets)


def _cached(low: int, high: int) -> Visits | None:
    return next((each for each in _cache if each.low <= low < _WIDER * each.low and high <= each.high), None)


class Visits:
    """The keys that enter each bucket while a ring grows from ``low`` to ``high`` buckets, and their old buckets.

    The draws of a key visit buckets in ascending order, and in a ring of n buckets the key stays in the last
    one below n. Adding a bucket therefore updates only the keys that visit it, 2^21 / (n + 1) of them, and
    needs no new draw.
    """

    def __init__(self, low: int, high: int) -> None:
        if not 1 <= low <= high:
            raise ValueError(f"sizes rise from 1 or more, got {low!r} to {high!r}")
        self.low = low
        self.high = high
        narrow = np.promote_types(np.uint16, np.min_scalar_type(high))  # 16 bits are sorted by radix
        self._at_low = np.zeros(SEEDS, narrow)
        # One large array each, which goes back to the system as a whole: large rings have 17 million visits.
        most = int(SEEDS * (1.1 * np.log(high / low) + 0.1))
        entered, left, keys = np.empty(most, narrow), np.empty(most, narrow), np.empty(most, np.uint16)
        ends = [0]
        counts = np.zeros(high - low, np.intp)
        for start in range(0, SEEDS, _ROWS):
            end = ends[-1]
            for rows, reached, candidate in _rounds(np.arange(start, start + _ROWS, dtype=np.uint64), high):
                crosses = np.flatnonzero((reached < low) & (candidate >= low))
                self._at_low[start + rows[crosses]] = reached[crosses]
                enters = np.flatnonzero((candidate >= low) & (candidate < high))
                piece = slice(end, end + len(enters))
                entered[piece], left[piece], keys[piece] = candidate[enters], reached[enters], rows[enters]
                end = piece.stop
            counts += np.bincount(entered[ends[-1] : end].astype(np.intp) - low, minlength=high - low)
            ends.append(end)
        self._ends = np.concatenate([[0], counts.cumsum()])
        self._keys = np.empty(end, np.int32)
        self._came_from = np.empty(end, narrow)
        cursor = self._ends[:-1].copy()
        for number, piece in enumerate(map(slice, ends, ends[1:])):
            order = np.argsort(entered[piece], kind="stable")
            buckets, counts = np.unique(entered[piece][order], return_counts=True)
            buckets = buckets.astype(np.intp) - low
            place = np.arange(len(order)) + np.repeat(cursor[buckets] - counts.cumsum() + counts, counts)
            self._keys[place] = keys[piece][order].astype(np.int32) + number * _ROWS
            self._came_from[place] = left[piece][order]
            cursor[buckets] += counts

    def entering(self, low: int, high: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return every key that moves when a ring grows from ``low`` to ``high`` buckets, and its old bucket."""
        visits = slice(self._ends[low - self.low], self._ends[high - self.low])
        keys, came_from = self._keys[visits], self._came_from[visits]
        first = slice(None) if high - low == 1 else came_from < low
        return keys[first], came_from[first]

    def at(self, size: int) -> NDArray[Any]:
        """Return the bucket of every key in a ring of that size, as a new array."""
        buckets: NDArray[Any] = self._at_low.copy()
        self.resize(buckets, self.low, size)
        return buckets

    def resize(self, buckets: NDArray[Any], size: int, to: int) -> None:
        """Update the buckets of a ring of one size to those of another size, in place."""
        for bucket in range(size, to):
            buckets[self._keys[self._visiting(bucket)]] = bucket
        for bucket in reversed(range(to, size)):
            visiting = self._visiting(bucket)
            buckets[self._keys[visiting]] = self._came_from[visiting]

    def _visiting(self, bucket: int) -> slice:
        return slice(self._ends[bucket - self.low], self._ends[bucket + 1 - self.low])


# jump_consistent_hash/2 of the plugin over rand.erl's exs1024: rabbit_chx.mirror.kernel.jump for many keys at once.
def _jump(seeds: NDArray[np.uint64], buckets: int) -> NDArray[np.int64]:
    bucket = np.zeros(len(seeds), np.int64)
    if buckets == 1:
        return bucket
    for rows, reached, candidate in _rounds(seeds, buckets):
        stays = candidate >= buckets
        bucket[rows[stays]] = reached[stays]
    return bucket


# jump_consistent_hash_value/4: one round draws once for every key that is still below the last bucket.
def _rounds(
    seeds: NDArray[np.uint64], buckets: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the keys still drawing, the bucket each has reached, and its next one; at or above ``buckets`` a key stops."""
    state = _gen1024(seeds)
    rows = np.arange(len(seeds))
    reached = np.zeros(len(seeds))
    s0 = state[0]
    index = 0
    while len(rows):
        index = (index + 1) % STATE_WORDS
        s0 = _calc(s0, state[index][rows])
        state[index][rows] = s0
        uniform = (s0 * np.uint64(EXS1024_FACTOR)).astype(np.float64) * 2.0**-64
        candidate = np.trunc((reached + 1) / uniform)
        yield rows, reached, candidate
        continues = candidate < buckets
        rows, reached, s0 = rows[continues], candidate[continues], s0[continues]


# rand.erl, exs1024_calc/2.
def _calc(s0: NDArray[np.uint64], s1: NDArray[np.uint64]) -> NDArray[np.uint64]:
    s1 = s1 ^ s1 << np.uint64(31)
    s1 ^= s1 >> np.uint64(11)
    s1 ^= s0
    s1 ^= s0 >> np.uint64(30)
    return s1


# rand.erl, exs1024_seed/1 and exs1024_gen1024/1: the last word drawn is the first word of the state.
def _gen1024(seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    b1, b2, b3 = ((seeds + np.uint64(1)) * np.uint64(factor) & _MASK21 for factor in SEED_FACTORS)
    word = b1 << np.uint64(43) | b2 << np.uint64(22) | b3 << np.uint64(1) | np.uint64(1)
    state = np.empty((STATE_WORDS, len(seeds)), np.uint64)
    scratch = np.empty_like(word)
    for row in reversed(state):
        word ^= np.right_shift(word, np.uint64(12), out=scratch)
        word ^= np.left_shift(word, np.uint64(25), out=scratch)
        word ^= np.right_shift(word, np.uint64(27), out=scratch)
        np.multiply(word, np.uint64(EXS64_FACTOR), out=row)
    return state
