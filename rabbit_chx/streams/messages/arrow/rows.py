"""The messages of several chunks in one buffer, with their offsets and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rabbit_chx.errors import CorruptChunk
from rabbit_chx.streams.messages.chunks import PADDING, Chunk, Records, Whole, records_of

_MOST_ARROW_BYTES: Final = 2**31 - 1 - PADDING
"""Arrow's binary arrays have offsets of 32 bits."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages, as slices of one buffer that ends with `PADDING`."""

    stream: str
    data: bytes
    starts: Whole
    """Ascending; messages do not overlap."""
    stops: Whole
    offsets: Whole
    times: Whole
    """The times of the chunks, in milliseconds since 1970."""

    def chosen(self, start: int, end: int | None) -> Rows:
        """Return the messages whose offset is in the range."""
        first, last = np.searchsorted(self.offsets, [start, 2**62 if end is None else end]).tolist()
        return self.slice(first, max(first, last))

    def parts(self, most_rows: int, most_bytes: int) -> Iterator[Rows]:
        """Split the messages into parts of at most ``most_rows`` and ``most_bytes``; a larger message is alone in its part."""
        low = 0
        while low < len(self.starts):
            full = int(np.searchsorted(self.stops, self.starts[low] + most_bytes, side="right"))
            high = min(max(full, low + 1), low + most_rows)
            yield _small_enough(self.slice(low, high))
            low = high

    def slice(self, low: int, high: int) -> Rows:
        """Return the messages with these indexes."""
        chosen = slice(low, high)
        starts, stops = self.starts[chosen], self.stops[chosen]
        return Rows(self.stream, self.data, starts, stops, self.offsets[chosen], self.times[chosen])


def _small_enough(rows: Rows) -> Rows:
    """The same messages in a buffer that Arrow can address."""
    if len(rows.data) <= _MOST_ARROW_BYTES:
        return rows
    base, stop = int(rows.starts[0]), int(rows.stops[-1])
    if stop - base > _MOST_ARROW_BYTES:
        raise CorruptChunk("a message has 2 GiB or more", rows.stream, int(rows.offsets[0]))
    data = rows.data[base : stop + PADDING]
    return replace(rows, data=data, starts=rows.starts - base, stops=rows.stops - base)


def rows_of(
    chunks: Sequence[Chunk], most_bytes: int, *, max_batch_bytes: int | None = None
) -> Iterator[Rows]:
    """Yield the messages of chunks of one stream, at once unless they decompress to ``most_bytes`` or more."""
    while chunks:
        records = records_of(*chunks, most_bytes=most_bytes, max_batch_bytes=max_batch_bytes)
        searched, chunks = chunks[: len(records.counts)], chunks[len(records.counts) :]
        if len(records.starts):
            yield _rows(searched, records)


def _rows(chunks: Sequence[Chunk], records: Records) -> Rows:
    counts = np.array(records.counts)
    firsts = np.array([chunk.first_offset for chunk in chunks], np.int64) - np.cumsum(counts) + counts
    rows = Rows(
        stream=chunks[0].stream,
        data=records.data,
        starts=records.starts,
        stops=records.stops,
        offsets=np.repeat(firsts, counts) + np.arange(len(records.starts)),
        times=np.repeat(np.array([chunk.timestamp_ms for chunk in chunks]), counts),
    )
    if (rows.starts[1:] >= rows.stops[:-1]).all():
        return rows
    # The buffer has decompressed messages after all others.
    pairs = zip(rows.starts.tolist(), rows.stops.tolist(), strict=True)
    data = b"".join([*(rows.data[start:stop] for start, stop in pairs), bytes(PADDING)])
    sizes = rows.stops - rows.starts
    stops = np.cumsum(sizes)
    return replace(rows, data=data, starts=stops - sizes, stops=stops)
