"""``block_hash``, and so ``phash2``, of whole columns of binaries, in NumPy.

The same arithmetic as ``block_hash`` in :mod:`rabbit_chx.kernel.phash2`, with rows side by side instead
of one after the other. What makes it fast:

* blocks of 8,192 rows, so that the three running words and the scratch stay in the first-level cache;
* rows sorted by their number of whole 12-byte blocks, the longest first, so that the rows which still
  have a block to give are a prefix of the arrays, and short rows do not pay for long ones;
* keys read as aligned 32-bit words, put together by shifts where a row starts between two of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from rabbit_chx.kernel.columns import Binaries, binaries
from rabbit_chx.kernel.phash2 import (
    HCONST,
    HCONST_BINARY,
    HCONST_NIL,
    NIL_ALONE,
    NIL_TAIL,
    PHASH2_BITS,
    block_hash,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["block_hash_column", "phash2_column", "phash2_lists_column"]

_ROWS: Final = 8192
_BYTES: Final = 1 << 26
"""A block of rows is copied once: so much of huge keys, and no more, at a time."""
_FEW: Final = 16
"""Below so many rows a NumPy call costs more than hashing them one by one."""

_MOST_BLOCKS: Final = 0x7FFF
_MASK27: Final = np.uint32((1 << PHASH2_BITS) - 1)
# _KEPT[word][rest]: of the three words behind the whole blocks, the bytes that the row's rest reaches.
_KEPT: Final = np.array(
    [[(1 << 8 * min(max(rest - 4 * word, 0), 4)) - 1 for rest in range(12)] for word in range(3)], np.uint32
)

_Column: TypeAlias = "NDArray[np.uint32]"


def phash2_column(column: Any, *, what: str = "the key", limit: int | None = None) -> _Column:
    """``phash2`` of each row of a list, NumPy array or Arrow column of str or bytes."""
    return block_hash_column(column, what=what, limit=limit) & _MASK27


def phash2_lists_column(column: Any, *, what: str = "the key", limit: int | None = None) -> _Column:
    """``phash2([Row])`` of each row: the hash of a list that holds one binary."""
    hashes = block_hash_column(column, what=what, limit=limit)
    # The empty list that ends it is stirred in. (Where the hash so far is 0 it would replace it instead,
    # once in 2^32 keys.)
    alone = hashes == 0
    a = np.full(len(hashes), (HCONST_NIL + NIL_TAIL) & 0xFFFF_FFFF, np.uint32)
    b = np.full(len(hashes), HCONST_NIL, np.uint32)
    _mix(a, b, hashes, np.empty_like(hashes))
    hashes[alone] = NIL_ALONE
    return hashes & _MASK27


def block_hash_column(
    column: Any, initval: int = HCONST_BINARY, *, what: str = "the key", limit: int | None = None
) -> _Column:
    """``block_hash(row, initval)`` of each row of a list, NumPy array or Arrow column of str or bytes.

    All 32 bits: with the initval of a lone binary, ``phash2`` is the lowest 27 of them. ``what`` names
    the values in errors, and ``limit`` is the length above which one is refused.
    """
    pieces = binaries(column, what=what, limit=limit)
    hashes = [_block_hash_binaries(piece, initval) for piece in pieces]
    if len(hashes) == 1:
        return hashes[0]
    return np.concatenate([np.empty(0, np.uint32), *hashes])


def _block_hash_binaries(column: Binaries, initval: int) -> _Column:
    hashes = np.empty(len(column), np.uint32)
    start = 0
    while start < len(column):
        # Rows that end within the next _BYTES, but at least one and at most _ROWS of them.
        fitting = int(np.searchsorted(column.offsets, column.offsets[start] + np.int64(_BYTES), "right")) - 1
        end = min(max(fitting, start + 1), start + _ROWS)
        _hash_rows(Binaries(column.data, column.offsets[start : end + 1]), initval, hashes[start:end])
        start = end
    return hashes


def _hash_rows(rows: Binaries, initval: int, hashes: _Column) -> None:
    lengths = np.diff(rows.offsets)
    if len(rows) <= _FEW:
        hashes[:] = [block_hash(rows[row], initval) for row in range(len(rows))]
        return
    if lengths.min() == lengths.max():
        length = int(lengths[0])
        words: _Words = _EvenRows(_readable(rows), length, len(rows))
        hashes[:] = _lookup2(words, np.full(length // 12, len(rows)), lengths, initval)
    else:
        _hash_uneven_rows(rows, lengths, initval, hashes)
    if not lengths.all():
        hashes[lengths == 0] = initval  # an empty binary is not even mixed


def _hash_uneven_rows(rows: Binaries, lengths: NDArray[Any], initval: int, hashes: _Column) -> None:
    blocks = np.minimum(lengths // 12, _MOST_BLOCKS).astype(np.int16)  # 16 bits are sorted by radix
    order = np.argsort(-blocks, kind="stable")
    shortest_first = blocks[order[::-1]]
    # with_block[i] rows have a block number i. Where only a few do, those few are hashed one by one,
    # and so are rows with more blocks than can be counted here.
    with_block = len(rows) - np.searchsorted(shortest_first, np.arange(shortest_first[-1]), side="right")
    uncounted = int(np.count_nonzero(blocks == _MOST_BLOCKS))
    steps = int(np.count_nonzero(with_block > max(_FEW, uncounted)))
    few = int(with_block[steps]) if steps < len(with_block) else 0
    for row in order[:few]:
        hashes[row] = block_hash(rows[row], initval)
    order = order[few:]
    starts = (rows.offsets[:-1] - rows.offsets[0])[order]
    words = _UnevenRows(_readable(rows), starts, lengths[order], blocks[order])
    hashes[order] = _lookup2(words, with_block[:steps] - few, lengths[order], initval)


def _readable(rows: Binaries) -> NDArray[np.uint32]:
    """The bytes of the rows, copied (into the cache, for a block) to where reading beyond the last is safe."""
    first, last = int(rows.offsets[0]), int(rows.offsets[-1])
    words = np.zeros((last - first) // 4 + 5, np.uint32)
    words.view(np.uint8)[: last - first] = rows.data[first:last]
    return words


# utils.c, block_hash/3. Rows come with the most blocks first: with_block[i] of them have a block i.
def _lookup2(words: _Words, with_block: NDArray[np.intp], lengths: NDArray[Any], initval: int) -> _Column:
    a = np.full(len(lengths), HCONST, np.uint32)
    b = np.full(len(lengths), HCONST, np.uint32)
    c = np.full(len(lengths), initval, np.uint32)
    scratch = np.empty(len(lengths), np.uint32)
    for block, count in enumerate(with_block.tolist()):
        x, y, z = words.block(block, count)
        a[:count] += x
        b[:count] += y
        c[:count] += z
        _mix(a[:count], b[:count], c[:count], scratch[:count])
    x, y, z = words.rest()
    a += x
    b += y
    c += z << np.uint32(8)  # the lowest byte of c is the length's
    c += lengths.astype(np.uint32)
    _mix(a, b, c, scratch)
    return c


# The MIX macro: nine times x -= y; x -= z; x ^= z shifted.
def _mix(a: _Column, b: _Column, c: _Column, scratch: _Column) -> None:
    _round(a, b, c, np.right_shift, 13, scratch)
    _round(b, c, a, np.left_shift, 8, scratch)
    _round(c, a, b, np.right_shift, 13, scratch)
    _round(a, b, c, np.right_shift, 12, scratch)
    _round(b, c, a, np.left_shift, 16, scratch)
    _round(c, a, b, np.right_shift, 5, scratch)
    _round(a, b, c, np.right_shift, 3, scratch)
    _round(b, c, a, np.left_shift, 10, scratch)
    _round(c, a, b, np.right_shift, 15, scratch)


def _round(x: _Column, y: _Column, z: _Column, shift: np.ufunc, by: int, scratch: _Column) -> None:
    np.subtract(x, y, out=x)
    np.subtract(x, z, out=x)
    shift(z, by, out=scratch)
    np.bitwise_xor(x, scratch, out=x)


class _Words(Protocol):
    """Reads twelve bytes of many rows at once, as three words."""

    def block(self, index: int, count: int) -> Sequence[_Column]:
        """Block number ``index`` of the first ``count`` rows."""

    def rest(self) -> Sequence[_Column]:
        """What follows the whole blocks of every row, zeros where the row has ended."""


class _EvenRows:
    """Rows of one length: a word of all rows is a strided view of the buffer."""

    def __init__(self, buffer: _Column, length: int, rows: int) -> None:
        self._buffer = buffer
        self._length = length
        self._rows = rows

    def block(self, index: int, count: int) -> Sequence[_Column]:
        offsets = range(12 * index, 12 * index + 12, 4)
        return [np.ndarray((count,), "<u4", self._buffer, at, (self._length,)) for at in offsets]

    def rest(self) -> Sequence[_Column]:
        blocks, rest = divmod(self._length, 12)
        words = self.block(blocks, self._rows)
        return [word & kept[rest] for word, kept in zip(words, _KEPT, strict=True)]


class _UnevenRows:
    """Rows that start anywhere: a word is put together from the two aligned words that share it."""

    def __init__(
        self, buffer: _Column, starts: NDArray[Any], lengths: NDArray[Any], blocks: NDArray[Any]
    ) -> None:
        self._buffer = buffer
        self._first = (starts >> 2).astype(np.intp)
        self._right = ((starts & 3) << 3).astype(np.uint32)
        self._left = 31 - self._right  # and one more: a shift by all 32 bits is not defined
        self._blocks = blocks.astype(np.intp)
        self._rest = (lengths - 12 * self._blocks).astype(np.intp)

    def block(self, index: int, count: int) -> Sequence[_Column]:
        return self._read(self._first[:count] + 3 * index)

    def rest(self) -> Sequence[_Column]:
        words = self._read(self._first + 3 * self._blocks)
        for word, kept in zip(words, _KEPT, strict=True):
            word &= kept.take(self._rest, mode="clip")  # noqa: PLW2901 - in place, to save a column
        return words

    def _read(self, at: NDArray[np.intp]) -> Sequence[_Column]:
        words = []
        right, left = self._right[: len(at)], self._left[: len(at)]
        high = self._buffer.take(at, mode="clip")  # the fastest mode; no index ever needs it
        for _ in range(3):
            at += 1
            word = high >> right
            high = self._buffer.take(at, mode="clip")
            word |= (high << np.uint32(1)) << left
            words.append(word)
        return words
