"""Buckets of many keys at once, for one ring size.

Drawing costs the same for every key, and a ring size knows only 2^21 different ones, so an answer once
drawn is kept. The table fills itself with just the keys that were asked for, so that a short column
draws a few thousand times; once half of it is known, the rest follows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rabbit_chx.kernel.exs1024 import EXS64_FACTOR, EXS1024_FACTOR, SEED_BITS, SEED_FACTORS, STATE_WORDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SEEDS", "BucketTable", "bucket_table"]

SEEDS: Final = 1 << SEED_BITS
"""How many keys a ring can tell apart."""

_MASK21: Final = np.uint64(SEEDS - 1)
_ROWS: Final = 1 << 14


@lru_cache(maxsize=8)
def bucket_table(buckets: int) -> BucketTable:
    """The table of a ring size, shared by all rings of that size (2 MB, above 255 buckets 4)."""
    return BucketTable(buckets)


class BucketTable:
    """``jump_consistent_hash(key, buckets)`` for arrays of keys."""

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets
        # Bucket + 1, so that 0 means "not drawn yet": fresh zeros cost nothing until they are touched.
        self._known: NDArray[Any] = np.zeros(SEEDS, np.min_scalar_type(buckets))
        self._drawn = 0
        self._complete = False

    def __getitem__(self, keys: NDArray[Any]) -> NDArray[Any]:
        """The bucket of each key; keys are integers of any NumPy type, of which 21 bits count."""
        found = np.empty(len(keys), self._known.dtype)
        for start in range(0, len(keys), _ROWS):
            seeds = keys[start : start + _ROWS].astype(np.intp) & (SEEDS - 1)
            if not self._complete:
                self._draw_missing(seeds)
            self._known.take(seeds, mode="wrap", out=found[start : start + _ROWS])
        found -= 1
        return found

    def all(self) -> NDArray[Any]:
        """The bucket of every key from 0 to 2^21 - 1."""
        self._draw_rest()
        found: NDArray[Any] = self._known - 1
        return found

    def _draw_missing(self, seeds: NDArray[np.intp]) -> None:
        missing = seeds[self._known[seeds] == 0]
        self._drawn += len(missing)
        if self._drawn > SEEDS // 2:
            self._draw_rest()  # it costs no more than was spent so far, and nothing is looked for again
        elif len(missing):
            self._draw(missing)

    def _draw_rest(self) -> None:
        rest = np.flatnonzero(self._known == 0)
        for start in range(0, len(rest), _ROWS):
            self._draw(rest[start : start + _ROWS])
        self._complete = True

    def _draw(self, seeds: NDArray[np.intp]) -> None:
        self._known[seeds] = _jump(seeds.astype(np.uint64), self.buckets) + 1


# jump_consistent_hash/2 of the plugin over rand.erl's exs1024: rabbit_chx.kernel.jump, many keys abreast.
def _jump(seeds: NDArray[np.uint64], buckets: int) -> NDArray[np.int64]:
    state = _gen1024(seeds)
    bucket = np.zeros(len(seeds), np.int64)
    if buckets == 1:
        return bucket
    rows = np.arange(len(seeds))  # those still drawing, and the bucket each has reached
    reached = np.zeros(len(seeds))
    s0 = state[0]
    index = 0
    while len(rows):
        index = (index + 1) % STATE_WORDS
        s0 = _calc(s0, state[index][rows])
        state[index][rows] = s0
        uniform = (s0 * np.uint64(EXS1024_FACTOR)).astype(np.float64) * 2.0**-64
        candidate = np.trunc((reached + 1) / uniform)
        goes_on = candidate < buckets
        bucket[rows[~goes_on]] = reached[~goes_on]
        rows, reached, s0 = rows[goes_on], candidate[goes_on], s0[goes_on]
    return bucket


# rand.erl, exs1024_calc/2.
def _calc(s0: NDArray[np.uint64], s1: NDArray[np.uint64]) -> NDArray[np.uint64]:
    s1 = s1 ^ s1 << np.uint64(31)
    s1 ^= s1 >> np.uint64(11)
    s1 ^= s0
    s1 ^= s0 >> np.uint64(30)
    return s1


# rand.erl, exs1024_seed/1 and exs1024_gen1024/1: the last word drawn is the first of the state.
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
