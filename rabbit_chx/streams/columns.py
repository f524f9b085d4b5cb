"""Messages of a stream as Arrow batches, with the columns that the Spark sink writes.

`fields` parses most messages together; `messages.decode` parses the others one by one. Both give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rabbit_chx.errors import InvalidValue
from rabbit_chx.streams.chunks import Chunk, Whole
from rabbit_chx.streams.encoded import Flags
from rabbit_chx.streams.fields import Found, find
from rabbit_chx.streams.headers import header_maps
from rabbit_chx.streams.messages import QUEUE_ADDRESS, StreamMessage, decode, reply_to
from rabbit_chx.streams.rows import Rows, rows_of
from rabbit_chx.streams.texts import Leave, slices, utf8

_MOMENT: Final = pa.timestamp("us", "UTC")
_OF_THE_MESSAGE: Final = {
    "value": pa.binary(),
    "routing_key": pa.string(),
    "exchange": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "message_id": pa.string(),
    "correlation_id": pa.string(),
    "content_type": pa.string(),
    "content_encoding": pa.string(),
    "reply_to": pa.string(),
    "type": pa.string(),
    "app_id": pa.string(),
    "user_id": pa.string(),
    "expiration": pa.string(),
    "priority": pa.int32(),
    "delivery_mode": pa.int32(),
    "timestamp": _MOMENT,
}
_OF_THE_STREAM: Final = {"stream": pa.string(), "offset": pa.int64(), "stream_timestamp": _MOMENT}

COLUMNS: Final[dict[str, Any]] = _OF_THE_MESSAGE | _OF_THE_STREAM
"""Name of a column -> its Arrow type.

Columns of the message have the names of the sink's columns; `StreamMessage` documents them. ``timestamp`` is the property
that the publisher set, ``stream_timestamp`` the time at which the broker stored the message's chunk.
"""

_MOST_ROWS: Final = 16_384
"""Larger batches exceed the processor's cache: with 65,536 rows, each row took twice the time."""
_MOST_BYTES: Final = 8 << 20
_FIRST_MOMENT: Final = -62_135_596_800_000
_LAST_MOMENT: Final = 253_402_300_799_999
"""The years 1 to 9999 in milliseconds since 1970. Python and Spark support no other times, so those become null."""


def schema(columns: Sequence[str] = tuple(COLUMNS)) -> pa.Schema:
    """The schema of batches with these columns.

    Raises:
        InvalidValue: A name is unknown or duplicate.
    """
    for name in columns:
        if name not in COLUMNS:
            raise InvalidValue("column", name, f"one of {', '.join(COLUMNS)}")
    if len(set(columns)) < len(columns):
        raise InvalidValue("columns", list(columns), "names without duplicates")
    return pa.schema([(name, COLUMNS[name]) for name in columns])


def record_batches(
    chunks: Iterable[Chunk],
    columns: Sequence[str] = tuple(COLUMNS),
    *,
    start: int = 0,
    end: int | None = None,
    most_rows: int = _MOST_ROWS,
    most_bytes: int = _MOST_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Convert chunks of one stream to batches: one row for each message whose offset is in the range, in order.

    Small chunks share a batch, because each batch has a fixed cost.

    Args:
        chunks: In the order of the stream.
        columns: Names from `COLUMNS`. Only these are decoded.
        start: The first offset.
        end: The offset after the last one; None for no limit.
        most_rows: The maximum number of rows of a batch.
        most_bytes: A batch ends after the chunk that reaches this size, before or after decompression.
    """
    checked = schema(columns)
    waiting: list[Chunk] = []
    rows = size = 0
    for chunk in chunks:
        if chunk.end <= start or (end is not None and chunk.first_offset >= end):
            continue
        waiting.append(chunk)
        rows, size = rows + chunk.records, size + len(chunk.data)
        if rows >= most_rows or size >= most_bytes:
            yield from _batches(waiting, checked, start, end, most_rows, most_bytes)
            waiting, rows, size = [], 0, 0
    yield from _batches(waiting, checked, start, end, most_rows, most_bytes)


def _batches(
    chunks: list[Chunk], checked: pa.Schema, start: int, end: int | None, most_rows: int, most_bytes: int
) -> Iterator[pa.RecordBatch]:
    for rows in rows_of(chunks, most_bytes):
        for part in rows.chosen(start, end).parts(most_rows):
            yield _Batch(part, checked).build()


class _Batch:
    """One batch: the messages parsed together, and those decoded one by one, in the order of the stream."""

    def __init__(self, rows: Rows, checked: pa.Schema) -> None:
        self.rows = rows
        self.schema = checked
        self.count = len(rows.starts)
        self.data = np.frombuffer(rows.data, np.uint8)
        self.buffer = pa.py_buffer(rows.data)

    def build(self) -> pa.RecordBatch:
        wanted = [name for name in self.schema.names if name in _OF_THE_MESSAGE]
        arrays = self._of_the_stream()
        if wanted:
            arrays |= self._of_the_messages(wanted)
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)

    def _of_the_stream(self) -> dict[str, pa.Array]:
        wanted = set(self.schema.names)
        arrays: dict[str, pa.Array] = {}
        if "stream" in wanted:
            arrays["stream"] = pa.repeat(pa.scalar(self.rows.stream), self.count)
        if "offset" in wanted:
            arrays["offset"] = pa.array(self.rows.offsets)
        if "stream_timestamp" in wanted:
            arrays["stream_timestamp"] = _moments(self.rows.times, np.ones(self.count, np.bool_))
        return arrays

    def _of_the_messages(self, wanted: list[str]) -> dict[str, pa.Array]:
        found = find(self.data, self.rows.starts, self.rows.stops, wanted)
        while True:
            single = np.flatnonzero(~found.simple)
            decoded = [self._decode(row) for row in single.tolist()]
            try:
                return {name: self._column(name, found, single, decoded) for name in wanted}
            except Leave as error:
                found.simple[error.rows] = False

    def _decode(self, row: int) -> StreamMessage:
        start, stop = int(self.rows.starts[row]), int(self.rows.stops[row])
        return decode(self.rows.data[start:stop], self.rows.stream, int(self.rows.offsets[row]))

    def _column(self, name: str, found: Found, single: Whole, decoded: list[StreamMessage]) -> pa.Array:
        if not len(single):
            return self._together(name, found)
        others = _one_by_one(name, decoded)
        if len(single) == self.count:
            return others
        order = np.arange(self.count)
        order[single] = self.count + np.arange(len(single))
        return pa.concat_arrays([self._together(name, found), others]).take(pa.array(order))

    def _together(self, name: str, found: Found) -> pa.Array:
        if name == "headers":
            return header_maps(self.data, self.buffer, self.count, found)
        if name == "timestamp":
            number = found.number(name)
            return _moments(number.value, number.valid)
        if pa.types.is_integer(COLUMNS[name]):
            number = found.number(name)
            return pa.array(number.value, pa.int32(), mask=~number.valid)
        texts = self._texts(name, found)
        if name == "expiration" and "ttl" in found.numbers:
            ttl = found.numbers["ttl"]
            return pc.coalesce(pa.array(ttl.value, mask=~ttl.valid).cast(pa.string()), texts)
        return _without_addresses(texts) if name == "reply_to" else texts

    def _texts(self, name: str, found: Found) -> pa.Array:
        if name not in found.texts:
            return pa.nulls(self.count, COLUMNS[name])
        span = found.texts[name]
        valid = found.simple & (span.stop >= 0)
        raw = slices(self.buffer, span.start, span.stop, valid)
        if name == "value":
            return raw
        return utf8(raw, np.arange(self.count))


def _moments(milliseconds: Whole, valid: Flags) -> pa.Array:
    valid = valid & (milliseconds >= _FIRST_MOMENT) & (milliseconds <= _LAST_MOMENT)
    return pa.array(np.where(valid, milliseconds, 0) * 1000, mask=~valid).cast(_MOMENT)


def _without_addresses(texts: pa.Array) -> pa.Array:
    if not pc.any(pc.starts_with(texts, QUEUE_ADDRESS)).as_py():
        return texts
    return pa.array([reply_to(text) for text in texts.to_pylist()], pa.string())


def _one_by_one(name: str, decoded: list[StreamMessage]) -> pa.Array:
    values = [getattr(message, name) for message in decoded]
    if name == "timestamp":
        valid = np.array([value is not None for value in values], np.bool_)
        return _moments(np.array([value or 0 for value in values], np.int64), valid)
    if name == "headers":
        values = [list(headers.items()) for headers in values]
    return pa.array(values, COLUMNS[name])
