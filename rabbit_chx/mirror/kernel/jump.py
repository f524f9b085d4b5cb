"""The jump consistent hash of the consistent-hash exchange, one key at a time.

This is Lamping and Veach's algorithm with one difference, which makes other implementations give
different results: the plugin draws its random numbers from Erlang's ``exs1024`` instead of the paper's
generator. Its seed keeps only 21 bits of the key, so the bucket depends only on those.

The generator mirrors ``rand.erl`` (unchanged from OTP 18 to 29). The exchange requests ``exs1024``, not ``exs1024s``:
both have the same state and step, but convert its 64 bits to different floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SEED_BITS: Final = 21
"""Only the lowest 21 bits of each part of a seed triple are used."""

_MASK21: Final = (1 << SEED_BITS) - 1
_MASK64: Final = (1 << 64) - 1

STATE_WORDS: Final = 16
SEED_FACTORS: Final = (2097131, 2097133, 2097143)
EXS64_FACTOR: Final = 2685821657736338717
EXS1024_FACTOR: Final = 1181783497276652981


# rand.erl, exs1024_seed/1 for a triple.
def seed(triple: tuple[int, int, int]) -> list[int]:
    """Return the 16 words of a new state."""
    b1, b2, b3 = (
        ((part & _MASK21) + 1) * factor & _MASK21 for part, factor in zip(triple, SEED_FACTORS, strict=True)
    )
    return gen1024(b1 << 43 | b2 << 22 | b3 << 1 | 1)


# rand.erl, exs1024_gen1024/1 over exs64_next/1. Erlang prepends to the list, so the last word comes first.
def gen1024(word: int) -> list[int]:
    """Fill the state with sixteen steps of the smaller generator ``exs64``."""
    state: list[int] = []
    for _ in range(STATE_WORDS):
        word ^= word >> 12
        word ^= word << 25 & _MASK64
        word ^= word >> 27
        state.append(word * EXS64_FACTOR & _MASK64)
    state.reverse()
    return state


# rand.erl, exs1024_next/1 and exs1024_calc/2. The state is a circular buffer of 16 words, read two at a
# time: the word that a step computes is the first word of the next step.
def uniforms(triple: tuple[int, int, int]) -> Iterator[float]:
    """Yield the uniform floats that repeated calls of ``rand:uniform_s/1`` draw from a new seed."""
    state = seed(triple)
    index = 0
    while True:
        s0, s1 = state[index], state[index + 1 & STATE_WORDS - 1]
        s1 ^= s1 << 31 & _MASK64
        s1 ^= s1 >> 11
        s0 ^= s0 >> 30
        word = s0 ^ s1
        index = index + 1 & STATE_WORDS - 1
        state[index] = word
        # rand.erl, exs1024's uniform: all 64 bits; exs1024s and later generators keep 53.
        yield (word * EXS1024_FACTOR & _MASK64) / 2**64


# rabbit_exchange_type_consistent_hash.erl, jump_consistent_hash/2 and jump_consistent_hash_value/4,
# the same from 3.7.8 to 4.3.
def jump_consistent_hash(key: int, buckets: int) -> int:
    """Return the bucket of a key, from 0 to ``buckets - 1``; the key may be any integer, even negative.

    >>> from rabbit_chx.mirror.kernel import phash2
    >>> jump_consistent_hash(phash2(b"customer-42"), 4)
    0
    """
    if buckets < 1:
        raise ValueError(f"there must be at least one bucket, got {buckets!r}")
    if buckets == 1:
        return 0  # without drawing
    draws = uniforms((key, key, key))
    bucket, candidate = -1, 0
    while candidate < buckets:
        bucket = candidate
        candidate = int((bucket + 1) / next(draws))
    return bucket
