"""``block_hash``, and therefore ``phash2``, of whole columns of binaries, in NumPy.

The arithmetic is that of ``block_hash`` in :mod:`rabbit_chx.mirror.kernel.phash2`, on many rows at once. Three
things make it fast:

* blocks of 32,768 rows: enough to spread the cost of a NumPy call, and few enough that the three running
  words and the scratch array stay in the second-level cache;
* rows sorted by their number of whole 12-byte blocks, the longest first, so that the rows with blocks
  left are always a prefix of the arrays, and short rows cost no more because of long ones;
* unaligned rows read as aligned 32-bit words, from four copies of the bytes, each shifted by one byte
  more than the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rabbit_chx.mirror.kernel.binaries import Binaries, binaries
from rabbit_chx.mirror.kernel.phash2 import (
    HCONST,
    HCONST_BINARY,
    HCONST_NIL,
    NIL_TAIL,
    PHASH2_BITS,
    block_hash,
)

_ROWS: Final = 1 << 15
_BYTES: Final = 1 << 24
"""The most bytes in a block of rows, since each block is copied four times."""
_FEW: Final = 16
"""Up to this many rows, hashing them one by one is cheaper than a NumPy call."""

_MOST_BLOCKS: Final = 0x7FFF
_MASK27: Final = np.uint32((1 << PHASH2_BITS) - 1)
# _KEPT[word][rest]: a mask of the bytes that belong to the row, in each of the three words after its whole
# blocks, by the length of the row's rest.
_KEPT: Final = np.array(
    [[(1 << 8 * min(max(rest - 4 * word, 0), 4)) - 1 for rest in range(12)] for word in range(3)], np.uint32
)
# The MIX macro is nine rounds of x -= y; x -= z; x ^= z shifted. These are the shifts; each width is an
# array because NumPy would convert a number to one at every call.
_ROUNDS: Final = [
    (shift, np.array(width, np.uint32))
    for shift, width in zip(
        [np.right_shift, np.left_shift, np.right_shift] * 3, [13, 8, 13, 12, 16, 5, 3, 10, 15], strict=True
    )
]

_Column: TypeAlias = "NDArray[np.uint32]"


def phash2_column(column: Any, *, what: str = "key", limit: int | None = None) -> _Column:
    """``phash2`` of each row of a list, NumPy array or Arrow column of str or bytes."""
    hashes = block_hash_column(column, what=what, limit=limit)
    hashes &= _MASK27
    return hashes


def phash2_lists_column(column: Any, *, what: str = "key", limit: int | None = None) -> _Column:
    """``phash2([Row])`` of each row: the hash of a list that holds one binary."""
    hashes = block_hash_column(column, what=what, limit=limit)
    for start in range(0, len(hashes), _ROWS):
        block = hashes[start : start + _ROWS]
        a, b, scratch = _aligned(3, len(block))
        a[:] = (HCONST_NIL + NIL_TAIL) & 0xFFFF_FFFF  # mix in the empty list at the list's end
        b[:] = HCONST_NIL
        _mix(a, b, block, scratch)
    hashes &= _MASK27
    return hashes


def block_hash_column(
    column: Any, initval: int = HCONST_BINARY, *, what: str = "key", limit: int | None = None
) -> _Column:
    """``block_hash(row, initval)`` of each row of a list, NumPy array or Arrow column of str or bytes.

    Returns all 32 bits; with the default initval, ``phash2`` is the lowest 27. ``what`` names the values in
    errors, and ``limit`` is the greatest length allowed.
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
        # At most _ROWS rows and _BYTES bytes, but at least one row.
        first = column.offsets[start]
        offsets = column.offsets[start : start + _ROWS + 1] - first
        fitting = int(np.searchsorted(offsets, offsets.dtype.type(_BYTES), side="right")) - 1
        end = start + max(fitting, 1)
        _hash_rows(Binaries(column.data[first:], offsets[: end - start + 1]), initval, hashes[start:end])
        start = end
    return hashes


def _hash_rows(rows: Binaries, initval: int, hashes: _Column) -> None:
    if len(rows) <= _FEW:
        hashes[:] = [block_hash(rows[row], initval) for row in range(len(rows))]
        return
    lengths = np.diff(rows.offsets).astype(np.uint32)
    length, longest = int(lengths.min()), int(lengths.max())
    if length == longest:
        words = _EvenRows(_readable(rows), length, len(rows))
        hashes[:] = _lookup2(words, [len(rows)] * (length // 12), lengths, initval)
    else:
        _hash_uneven_rows(rows, lengths, initval, hashes)
    if not length:
        hashes[lengths == 0] = initval  # an empty binary is not mixed in at all


def _hash_uneven_rows(rows: Binaries, lengths: _Column, initval: int, hashes: _Column) -> None:
    blocks = np.minimum(lengths // 12, _MOST_BLOCKS).astype(np.int16)  # 16 bits are sorted by radix
    order = np.argsort(_MOST_BLOCKS - blocks, kind="stable")
    blocks = blocks.take(order, mode="wrap")
    # with_block[i] rows have a block number i. If only a few do, these rows are hashed one by one,
    # and so are rows with more blocks than 16 bits can count.
    with_block = len(rows) - np.searchsorted(blocks[::-1], np.arange(blocks[0], dtype=np.int16), side="right")
    uncounted = int(with_block[-1]) if blocks[0] == _MOST_BLOCKS else 0
    steps = int(np.count_nonzero(with_block > max(_FEW, uncounted)))
    few = int(with_block[steps]) if steps < len(with_block) else 0
    for row in order[:few]:
        hashes[row] = block_hash(rows[row], initval)
    order = order[few:]
    lengths = lengths.take(order, mode="wrap")
    starts = rows.offsets.take(order, mode="wrap")
    words = _UnevenRows(_readable(rows), starts, lengths, blocks[few:])
    hashes[order] = _lookup2(words, (with_block[:steps] - few).tolist(), lengths, initval)


def _readable(rows: Binaries) -> NDArray[np.uint8]:
    """Return the bytes of the rows plus at least 12 of any value: reading a key's last word may reach them."""
    size = int(rows.offsets[-1])
    needed = size // 4 * 4 + 15
    if len(rows.data) >= needed:
        return rows.data[:needed]
    return np.concatenate([rows.data[:size], np.zeros(needed - size, np.uint8)])


def _aligned(columns: int, rows: int) -> Sequence[_Column]:
    """Return uninitialized columns aligned to cache lines, which saves a fifth of the time."""
    width = (rows + 15) // 16 * 16
    memory = np.empty(columns * width + 15, np.uint32)
    first = -memory.ctypes.data % 64 // 4
    return [memory[start : start + rows] for start in range(first, first + columns * width, width)]


# utils.c, block_hash/3. Rows are sorted by their blocks, most first: with_block[i] of them have a block i.
def _lookup2(
    words: _EvenRows | _UnevenRows, with_block: list[int], lengths: _Column, initval: int
) -> _Column:
    a, b, c, scratch = _aligned(4, len(lengths))
    a[:] = b[:] = HCONST
    c[:] = initval
    for block, count in enumerate(with_block):
        x, y, z = words.block(block, count)
        a[:count] += x
        b[:count] += y
        c[:count] += z
        _mix(a[:count], b[:count], c[:count], scratch[:count])
    x, y, z = words.rest()
    a += x
    b += y
    c += z << np.uint32(8)  # the lowest byte of c is reserved for the length
    c += lengths
    _mix(a, b, c, scratch)
    return c


# The MIX macro.
def _mix(a: _Column, b: _Column, c: _Column, scratch: _Column) -> None:
    x, y, z = a, b, c
    for shift, width in _ROUNDS:
        x -= y
        x -= z
        x ^= shift(z, width, out=scratch)
        x, y, z = y, z, x


class _EvenRows:
    """Rows of equal length: one word of every row is a strided view of the buffer."""

    def __init__(self, buffer: NDArray[np.uint8], length: int, rows: int) -> None:
        self._buffer = buffer
        self._length = length
        self._rows = rows

    def block(self, index: int, count: int) -> Sequence[_Column]:
        """Return block number ``index`` of the first ``count`` rows, as three words of each."""
        offsets = range(12 * index, 12 * index + 12, 4)
        return [np.ndarray((count,), "<u4", self._buffer, at, (self._length,)) for at in offsets]

    def rest(self) -> Sequence[_Column]:
        """Return the bytes after the whole blocks of every row, padded with zeros."""
        blocks, rest = divmod(self._length, 12)
        words = self.block(blocks, self._rows)
        return [word & kept[rest] for word, kept in zip(words, _KEPT, strict=True)]


class _UnevenRows:
    """Unaligned rows: one of four copies of the buffer, each shifted by one byte more, has the row aligned."""

    def __init__(
        self, buffer: NDArray[np.uint8], starts: NDArray[Any], lengths: _Column, blocks: NDArray[np.int16]
    ) -> None:
        copies = np.stack([buffer[by : len(buffer) - 3 + by] for by in range(4)]).view("<u4")
        self._words = copies.ravel()
        self._first = ((starts & 3) * copies.shape[1] + (starts >> 2)).astype(np.intp)
        self._blocks = blocks.astype(np.intp)
        self._rest = (lengths - 12 * blocks.astype(np.uint32)).astype(np.intp)

    def block(self, index: int, count: int) -> Sequence[_Column]:
        return self._read(self._first[:count], 3 * index)

    def rest(self) -> Sequence[_Column]:
        words = self._read(self._first + 3 * self._blocks)
        for word, kept in zip(words, _KEPT, strict=True):
            word &= kept.take(self._rest, mode="wrap")  # noqa: PLW2901 - in place, to save a column
        return words

    def _read(self, at: NDArray[np.intp], skip: int = 0) -> Sequence[_Column]:
        # "wrap" is the fastest mode; every index is in range.
        return [self._words[word:].take(at, mode="wrap") for word in range(skip, skip + 3)]
