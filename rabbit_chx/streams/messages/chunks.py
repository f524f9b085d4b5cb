"""Chunks: brokers store and deliver a stream as chunks.

A chunk is a header of 48 bytes and entries. An entry is a message, or a sub-entry batch of messages. The header also has the
sizes of a trailer and a filter, but the broker does not deliver those: a delivered chunk ends after its entries.

    offset  bytes  field
         0      1  magic (5) and version (0)
         1      1  type: 0 for messages; 1 and 2 track consumers and publishers, without messages
         2      2  number of entries
         4      4  number of records: messages, including those in sub-entry batches
         8      8  time, in milliseconds since 1970
        16      8  epoch
        24      8  offset of the first record
        32      4  CRC-32 of the entries
        36      4  length of the entries
        40      4  length of the trailer
        44      4  length of the filter (one byte), three reserved bytes
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rabbit_chx.base.text import counted
from rabbit_chx.errors import CorruptChunk
from rabbit_chx.streams.messages.sub_entries import (
    SIZE,
    Damaged,
    Decompressed,
    batch_records,
    entry_at,
    sized_records,
)

Whole: TypeAlias = npt.NDArray[np.int64]

PADDING: Final = 16
"""Zeros after the messages, so that code can read a few bytes beyond the last message."""
HEADER: Final = struct.Struct(">BbHIqQQIIII")
_MAGIC_AND_VERSION: Final = 0x50
_MESSAGES: Final = 0
_TYPES: Final = (0, 1, 2)
_MOST_OFFSET: Final = 2**63 - 1
_MOST_RECORDS: Final = 1 << 16
"""The maximum number of messages to find at once: an empty one takes no space in a compressed batch, but 16 bytes in memory."""
_MOST_BYTES: Final = 16 << 20
"""The maximum number of decompressed bytes to find at once, unless one batch has more."""
_FIRST_BYTE_OF_BATCH: Final = 0x80
_FEW_ENTRIES: Final = 32
"""With fewer entries, a loop is faster than NumPy."""


class Chunk(NamedTuple):
    """A chunk whose header and checksum are valid."""

    stream: str
    type: int
    entries: int
    """The number of messages and sub-entry batches."""
    records: int
    """The number of messages."""
    timestamp_ms: int
    """The time at which the broker stored the chunk."""
    epoch: int
    first_offset: int
    data: memoryview
    """The entries."""

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.first_offset + self.records


@dataclass(frozen=True, slots=True)
class Records:
    """The messages of chunks, as slices of one buffer."""

    data: bytes
    """Ends with `PADDING`."""
    starts: Whole
    stops: Whole
    counts: list[int]
    """The number of messages of each chunk, up to the last one that was searched."""

    def __iter__(self) -> Iterator[bytes]:
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            yield self.data[start:stop]


def parse_chunk(data: bytes | bytearray | memoryview, stream: str) -> Chunk:
    """Check the header and the checksum of a delivered chunk.

    Raises:
        CorruptChunk: The chunk is damaged, incomplete, or of an unknown version.
    """
    view = memoryview(data)
    if len(view) < HEADER.size:
        raise CorruptChunk(
            f"the chunk has {len(view)} bytes, fewer than the {HEADER.size} of a header", stream, 0
        )
    magic, kind, entries, records, time, epoch, offset, checksum, length, _, _ = HEADER.unpack_from(view)
    body = view[HEADER.size :]
    if magic != _MAGIC_AND_VERSION:
        reason = f"the first byte is 0x{magic:02x}, expected 0x50 (a chunk of version 0)"
    elif kind not in _TYPES:
        reason = f"the type is {kind}, expected 0, 1 or 2"
    elif offset + records > _MOST_OFFSET:
        reason = f"the offset is {offset}, expected less than 2^63"
    elif len(body) != length:
        reason = f"{len(body)} bytes follow the header, expected {length}"
    elif zlib.crc32(body) != checksum:
        reason = "the checksum does not match the data"
    else:
        return Chunk(stream, kind, entries, records, time, epoch, offset, body)
    raise CorruptChunk(reason, stream, offset)


def pieces_of(
    chunk: Chunk, max_batch_bytes: int | None = None, start: int = 0, end: float = math.inf
) -> Iterator[Chunk]:
    """Divide a chunk with very many messages or decompressed bytes between its entries, without decompressing them.

    Args:
        chunk: The chunk.
        max_batch_bytes: How many bytes a batch may decompress to; a piece with several batches has at most as many.
        start: The first offset. Entries before it are left out.
        end: The offset after the last one.

    Raises:
        CorruptChunk: The number of messages in its entries differs from its header.
    """
    is_cut = chunk.first_offset < start or end < chunk.end
    if chunk.type == _MESSAGES and (is_cut or may_have_batches(chunk)):
        most = min(_MOST_BYTES, max_batch_bytes or _MOST_BYTES)
        yield from _divided(chunk, _MOST_RECORDS, most, start, end)
    elif chunk.end > start and chunk.first_offset < end:
        yield chunk


def entries_of(piece: Chunk) -> Iterator[Chunk]:
    """Divide a piece of a chunk into its entries."""
    return _divided(piece, -1, -1, 0, math.inf)


def _divided(chunk: Chunk, most_records: int, most_bytes: int, start: int, end: float) -> Iterator[Chunk]:
    at = begin = found = before = entries = size = 0
    for _ in range(chunk.entries):
        if chunk.first_offset + found >= end:
            break
        try:
            count, more, stop = entry_at(chunk.data, at)
        except struct.error:
            raise CorruptChunk("entries are missing", chunk.stream, chunk.first_offset) from None
        is_before = chunk.first_offset + found + count <= start
        if entries and (found - before + count > most_records or size + more > most_bytes):
            yield _piece(chunk, begin, at, entries, before, found)
            begin, before, entries, size = at, found, 0, 0
        at, found = stop, found + count
        if is_before:
            begin, before = at, found
        else:
            entries, size = entries + 1, size + more
        if found > chunk.records:
            break
    else:
        at = len(chunk.data)
    if found > chunk.records or (found < chunk.records and chunk.first_offset + found < end):
        reason = f"the chunk has {found} messages, expected {chunk.records}"
        raise CorruptChunk(reason, chunk.stream, chunk.first_offset)
    if entries:
        yield _piece(chunk, begin, at, entries, before, found)


def may_have_batches(chunk: Chunk) -> bool:
    """Whether a chunk has sub-entry batches; in one that begins with a message, each may contain one message."""
    return chunk.records != chunk.entries or (len(chunk.data) > 0 and chunk.data[0] >= _FIRST_BYTE_OF_BATCH)


def size_of(chunk: Chunk) -> int:
    """How many bytes the messages of a chunk have when they are decompressed, as far as its entries say so."""
    if chunk.type != _MESSAGES:
        return 0
    size = at = 0
    with suppress(struct.error):  # entries are missing
        for _ in range(chunk.entries):
            _, more, at = entry_at(chunk.data, at)
            size += more
    return size


def _piece(chunk: Chunk, start: int, stop: int, entries: int, first: int, end: int) -> Chunk:
    return chunk._replace(
        entries=entries,
        records=end - first,
        first_offset=chunk.first_offset + first,
        data=chunk.data[start:stop],
    )


def records_of(*chunks: Chunk, most_bytes: int = 1 << 62, max_batch_bytes: int | None = None) -> Records:
    """Find the messages of chunks. Chunks that track consumers and publishers have none.

    Args:
        *chunks: In the order of the stream.
        most_bytes: Leave out the chunks after the one that reaches this many decompressed bytes.
        max_batch_bytes: How many bytes the batches of a chunk may decompress to; by default in proportion to its size.

    Raises:
        CorruptChunk: The size or the number of the entries differs from the header, or a chunk decompresses to too much.
        MissingDependency: Decompressing a sub-entry batch needs a library that is not installed.
    """
    data = b"".join([*(chunk.data for chunk in chunks), bytes(PADDING)])
    search = _Search(data, Decompressed(len(data) - PADDING, max_batch_bytes))
    at = 0
    counts: list[int] = []
    for chunk in chunks:
        if counts and search.decompressed.size >= most_bytes:
            break
        end = at + len(chunk.data)
        counts.append(search.chunk(chunk, at, end) if chunk.type == _MESSAGES else 0)
        at = end
    return search.records(counts)


class _Search:
    """A search for messages, chunk by chunk."""

    def __init__(self, data: bytes, decompressed: Decompressed) -> None:
        self.data = data
        self.decompressed = decompressed
        self.found: list[Whole] = []
        """Arrays of alternating starts and stops."""
        self.spans: list[int] = []
        """Starts and stops that are not in `found` yet, so that chunks with few messages share an array."""

    def chunk(self, chunk: Chunk, at: int, end: int) -> int:
        """Find the messages of a chunk at this place in the data and return their number."""
        if chunk.entries < _FEW_ENTRIES or not self._of_equal_size(at, end, chunk.entries):
            before = len(self.spans)
            self.decompressed.begin_chunk(end - at)
            try:
                self._of_any_size(at, end, chunk.entries, before + 2 * chunk.records)
            except Damaged as damage:
                raise CorruptChunk(str(damage), chunk.stream, chunk.first_offset, damage.hint) from None
            count = (len(self.spans) - before) // 2
        else:
            count = chunk.entries
        if count != chunk.records:
            reason = f"the chunk has {counted(count, 'message')}, expected {chunk.records}"
            raise CorruptChunk(reason, chunk.stream, chunk.first_offset)
        return count

    def _of_equal_size(self, at: int, end: int, count: int) -> bool:
        """Find messages of equal length; False if lengths differ or there is a sub-entry batch."""
        size = int.from_bytes(self.data[at : at + SIZE.size], "big")
        step = SIZE.size + size
        if step * count != end - at:
            return False
        sizes = np.frombuffer(self.data, np.uint8, end - at, at).reshape(count, step)[:, : SIZE.size]
        if (sizes != sizes[0]).any():
            return False
        starts = np.arange(at + SIZE.size, end + 1, step, dtype=np.int64)
        self._flush()
        self.found.append(np.stack([starts, starts + size], axis=1).reshape(-1))
        return True

    def _of_any_size(self, at: int, end: int, count: int, most: int) -> None:
        while True:
            plain, at = sized_records(self.data, at, end, count, self.spans)
            count -= plain
            if not count:
                break
            at = batch_records(self.data, at, end, self.spans, self.decompressed)
            count -= 1
            if len(self.spans) > most:
                return  # more messages than in the header
        if at != end:
            raise Damaged(f"{end - at} bytes follow the last entry")

    def _flush(self) -> None:
        self.found.append(np.array(self.spans, np.int64))
        self.spans = []

    def records(self, counts: list[int]) -> Records:
        self._flush()
        places = np.concatenate(self.found)
        data = self.data
        if self.decompressed.pieces:
            data = b"".join([data[:-PADDING], *self.decompressed.pieces, bytes(PADDING)])
        return Records(data, places[0::2], places[1::2], counts)
