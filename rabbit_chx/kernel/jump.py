"""The jump consistent hash of the consistent-hash exchange, one key at a time.

This is Lamping and Veach's algorithm with one difference, which makes other implementations give
different results: the plugin draws its random numbers from Erlang's ``exs1024`` instead of the paper's
generator. Its seed keeps only 21 bits of the key, so the bucket depends only on those.
"""

from __future__ import annotations

from rabbit_chx.kernel.exs1024 import uniforms

__all__ = ["jump_consistent_hash"]


# rabbit_exchange_type_consistent_hash.erl, jump_consistent_hash/2 and jump_consistent_hash_value/4,
# the same from 3.7.8 to 4.3.
def jump_consistent_hash(key: int, buckets: int) -> int:
    """Return the bucket of a key, from 0 to ``buckets - 1``; the key may be any integer, even negative.

    >>> from rabbit_chx.kernel import phash2
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
