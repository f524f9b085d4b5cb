"""Chunks: the unit in which a broker stores and delivers a stream.

A chunk is a header of 48 bytes and entries. An entry is a message, or a sub-entry batch of messages. The trailer and the
filter that the header speaks of stay on the broker's disk: a delivered chunk ends after its entries.

    offset  bytes  field
         0      1  magic (5) and version (0)
         1      1  type: 0 for messages; 1 and 2 track consumers and publishers, and have no messages
         2      2  entries
         4      4  records: messages, those in sub-entry batches included
         8      8  time, in milliseconds since 1970
        16      8  epoch
        24      8  offset of the first record
        32      4  CRC-32 of the entries
        36      4  length of the entries
        40      4  length of the trailer
        44      4  one byte for the size of the filter, three reserved bytes
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rabbit_chx.errors import CorruptChunk
from rabbit_chx.streams.sub_entries import SIZE, Damaged, batch_records, sized_records

HEADER: Final = struct.Struct(">BbHIqQQIIII")
_MAGIC_AND_VERSION: Final = 0x50
_MESSAGES: Final = 0
_TYPES: Final = (0, 1, 2)
_FEW_ENTRIES: Final = 32
"""Below this number, a loop finds the entries faster than NumPy."""


@dataclass(frozen=True, slots=True)
class Chunk:
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
    """The messages of a chunk, as slices of one buffer."""

    data: bytes | memoryview
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]

    def __iter__(self) -> Iterator[bytes]:
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            yield bytes(self.data[start:stop])


def parse_chunk(data: bytes | bytearray | memoryview, stream: str) -> Chunk:
    """Check the header and the checksum of a delivered chunk.

    Raises:
        CorruptChunk: The chunk is damaged, incomplete, or of an unknown version.
    """
    view = memoryview(data)
    if len(view) < HEADER.size:
        raise CorruptChunk(f"it has {len(view)} bytes, and the header alone has {HEADER.size}", stream, 0)
    magic, kind, entries, records, time, epoch, offset, checksum, length, _, _ = HEADER.unpack_from(view)
    body = view[HEADER.size :]
    if magic != _MAGIC_AND_VERSION:
        reason = f"it begins with 0x{magic:02x}, expected 0x50 (a chunk of version 0)"
    elif kind not in _TYPES:
        reason = f"its type is {kind}, expected 0, 1 or 2"
    elif len(body) != length:
        reason = f"{len(body)} bytes follow the header, expected {length}"
    elif zlib.crc32(body) != checksum:
        reason = "the checksum does not match the data"
    else:
        return Chunk(stream, kind, entries, records, time, epoch, offset, body)
    raise CorruptChunk(reason, stream, offset)


def records_of(chunk: Chunk) -> Records:
    """Find the messages of a chunk; chunks that track consumers and publishers have none.

    Raises:
        CorruptChunk: The entries do not fill the chunk, or are not as many as the header says.
        MissingDependency: A sub-entry batch is compressed in a way that needs another library.
    """
    if chunk.type != _MESSAGES:
        return Records(b"", np.empty(0, np.int64), np.empty(0, np.int64))
    equal = _of_equal_size(chunk) if chunk.entries >= _FEW_ENTRIES else None
    try:
        found = equal or _of_any_size(chunk)
    except Damaged as damage:
        raise CorruptChunk(str(damage), chunk.stream, chunk.first_offset) from None
    if len(found.starts) != chunk.records:
        reason = f"it has {len(found.starts)} messages, expected {chunk.records}"
        raise CorruptChunk(reason, chunk.stream, chunk.first_offset)
    return found


def _of_equal_size(chunk: Chunk) -> Records | None:
    """The messages of a chunk without sub-entry batches in which all are equally long."""
    size = int.from_bytes(chunk.data[: SIZE.size], "big")
    step = SIZE.size + size
    if step * chunk.entries != len(chunk.data):
        return None
    sizes = np.frombuffer(chunk.data, np.uint8).reshape(chunk.entries, step)[:, : SIZE.size]
    if (sizes != sizes[0]).any():
        return None
    starts = np.arange(SIZE.size, len(chunk.data) + 1, step, dtype=np.int64)
    return Records(chunk.data, starts, starts + size)


def _of_any_size(chunk: Chunk) -> Records:
    data, count = chunk.data, chunk.entries
    spans: list[int] = []
    more: list[bytes] = []
    at = 0
    while count:
        plain, at = sized_records(data, at, count, spans)
        count -= plain
        if count:  # a sub-entry batch is next
            base = len(data) + sum(map(len, more))
            at, decompressed = batch_records(data, at, base, spans)
            more += decompressed
            count -= 1
    if at != len(data):
        raise Damaged(f"{len(data) - at} bytes follow the last entry")
    both = np.array(spans, np.int64).reshape(-1, 2)
    joined = b"".join([data, *more]) if more else data
    return Records(joined, both[:, 0], both[:, 1])
