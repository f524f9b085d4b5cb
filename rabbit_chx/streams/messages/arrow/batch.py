"""Messages of a stream as Arrow batches, with the columns that the Spark sink writes.

`fields` parses most messages together; `message.row_of` parses the others one by one. Both give the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rabbit_chx.errors import InvalidValue, RabbitChxError
from rabbit_chx.messages.message_fields import FIELDS
from rabbit_chx.streams.messages.amqp10 import MAX_ITEMS, as_bytes, as_text
from rabbit_chx.streams.messages.arrow.fields import Found, find
from rabbit_chx.streams.messages.arrow.rows import Rows, rows_of
from rabbit_chx.streams.messages.arrow.texts import Leave, header_lists, slices, utf8
from rabbit_chx.streams.messages.chunks import Chunk, Whole, pieces_of
from rabbit_chx.streams.messages.message import COLUMNS_OF_MESSAGES, QUEUE_ADDRESS, reply_to, row_of
from rabbit_chx.streams.messages.parser import Flags

_MOMENT: Final = pa.timestamp("us", "UTC")
_TYPES: Final = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "timestamp[us, tz=UTC]": _MOMENT,
    "map<string, string>": pa.map_(pa.string(), pa.string()),
}
COLUMNS: Final[dict[str, Any]] = {
    field.name: _TYPES[field.kind.arrow] for field in FIELDS if "stream" in field.sources
}
"""Name of a column -> its Arrow type.

Columns of the message have the names of the sink's columns, where the body is ``value``. ``timestamp`` is the property
that the publisher set, ``stream_timestamp`` the time at which the broker stored the message's chunk.
"""

HEADERS_AS_STRUCTS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The other type of the column ``headers``: binary values as they are, and the text of all others in UTF-8."""

_MOST_ROWS: Final = 16_384
"""Larger batches exceed the processor's cache: with 65,536 rows, each row took twice the time."""
_MOST_BYTES: Final = 8 << 20
_MOST_PART: Final = 12 << 20
"""The maximum number of bytes of the messages that are parsed together."""
_MOST_OF_HEADERS: Final = 2 << 20
"""Of these, without the bodies that are only copied: as columns, headers may take 35 times their encoded size."""
_FIRST_MOMENT: Final = -62_135_596_800_000
_LAST_MOMENT: Final = 253_402_300_799_999
"""The years 1 to 9999 in milliseconds since 1970. Python and Spark support no other times, so those become null."""


def chosen(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the columns that a caller chose; by default all."""
    if isinstance(columns, str):  # otherwise each letter would be a name
        raise InvalidValue("columns", columns, "a list of names")
    return tuple(COLUMNS) if columns is None else tuple(columns)


def schema(columns: Sequence[str] = tuple(COLUMNS), *, binary_headers: bool = False) -> pa.Schema:
    """The schema of batches with these columns.

    Raises:
        InvalidValue: A name is unknown or duplicate.
    """
    for name in columns:
        if name not in COLUMNS:
            raise InvalidValue("column", name, f"one of {', '.join(COLUMNS)}")
    if len(set(columns)) < len(columns):
        raise InvalidValue("columns", list(columns), "names without duplicates")
    types = COLUMNS | {"headers": HEADERS_AS_STRUCTS} if binary_headers else COLUMNS
    return pa.schema([(name, types[name]) for name in columns])


def record_batches(
    chunks: Iterable[Chunk],
    columns: Sequence[str] = tuple(COLUMNS),
    *,
    start: int = 0,
    end: int | None = None,
    binary_headers: bool = False,
    most_rows: int = _MOST_ROWS,
    most_bytes: int = _MOST_BYTES,
    max_items: int = MAX_ITEMS,
    max_batch_bytes: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Convert chunks of one stream to batches: one row for each message whose offset is in the range, in order.

    Small chunks share a batch, because each batch has a fixed cost.

    Args:
        chunks: In the order of the stream.
        columns: Names from `COLUMNS`. Only these are decoded.
        start: The first offset.
        end: The offset after the last one; None for no limit.
        binary_headers: Return headers as `HEADERS_AS_STRUCTS`.
        most_rows: The maximum number of rows of a batch.
        most_bytes: A batch ends after the chunk that reaches this size, before or after decompression.
        max_items: The maximum number of items of a message.
        max_batch_bytes: The maximum size of a decompressed sub-entry batch; by default in proportion to its stored size.
    """
    built = partial(_built, checked=schema(columns, binary_headers=binary_headers), max_items=max_items)
    wanted = (
        piece
        for chunk in chunks
        for piece in pieces_of(chunk, max_batch_bytes, start, math.inf if end is None else end)
    )
    for group in _groups(wanted, most_rows, most_bytes):
        for rows in rows_of(group, most_bytes, max_batch_bytes=max_batch_bytes):
            for part in rows.chosen(start, end).parts(most_rows, _MOST_PART):
                yield from built(part)


def _groups(chunks: Iterable[Chunk], most_rows: int, most_bytes: int) -> Iterator[list[Chunk]]:
    waiting: list[Chunk] = []
    rows = size = 0
    try:
        for chunk in chunks:
            waiting.append(chunk)
            rows, size = rows + chunk.records, size + len(chunk.data)
            if rows >= most_rows or size >= most_bytes:
                yield waiting
                waiting, rows, size = [], 0, 0
    except RabbitChxError:  # a later chunk is damaged, or retention has removed it
        yield waiting
        raise
    yield waiting


def _built(rows: Rows, checked: pa.Schema, max_items: int) -> Iterator[pa.RecordBatch]:
    """Build a batch, or several smaller ones if the messages have much besides their bodies."""
    batch = _Batch(rows, checked, max_items)
    sizes = np.cumsum(batch.header_bytes())
    if sizes[-1] <= _MOST_OF_HEADERS:
        yield batch.build()
        return
    del batch
    low = 0
    while low < len(sizes):
        before = sizes[low - 1] if low else 0
        high = max(int(np.searchsorted(sizes, before + _MOST_OF_HEADERS, side="right")), low + 1)
        yield _Batch(rows.slice(low, high), checked, max_items).build()
        low = high


class _Batch:
    """One batch: the messages parsed together, and those decoded one by one, in the order of the stream."""

    def __init__(self, rows: Rows, checked: pa.Schema, max_items: int) -> None:
        self.rows = rows
        self.max_items = max_items
        self.schema = checked
        self.count = len(rows.starts)
        self.data = np.frombuffer(rows.data, np.uint8)
        self.buffer = pa.py_buffer(rows.data)
        self.wanted = [name for name in checked.names if name in COLUMNS_OF_MESSAGES]
        self.found = find(self.data, rows.starts, rows.stops, self.wanted) if self.wanted else None

    def header_bytes(self) -> Whole:
        """The size of each message without its body, if that is copied as it is."""
        if self.found is None:
            return np.zeros(self.count, np.int64)
        body = self.found.texts["body"]
        copied = np.where(self.found.simple, body.stop - body.start, 0)
        return self.rows.stops - self.rows.starts - copied

    def build(self) -> pa.RecordBatch:
        arrays = {} if self.found is None else self._of_the_messages(self.found)
        if "stream" in self.schema.names:
            arrays["stream"] = pa.repeat(pa.scalar(self.rows.stream), self.count)
        if "offset" in self.schema.names:
            arrays["offset"] = pa.array(self.rows.offsets)
        if "stream_timestamp" in self.schema.names:
            arrays["stream_timestamp"] = _moments(self.rows.times, np.ones(self.count, np.bool_))
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)

    def _of_the_messages(self, found: Found) -> dict[str, pa.Array]:
        while True:
            single = np.flatnonzero(~found.simple)
            decoded = [self._decode(row) for row in single.tolist()]
            try:
                return {name: self._column(name, found, single, decoded) for name in self.wanted}
            except Leave as error:
                found.simple[error.rows] = False

    def _decode(self, row: int) -> dict[str, Any]:
        start, stop = int(self.rows.starts[row]), int(self.rows.stops[row])
        offset = int(self.rows.offsets[row])
        convert = as_text if COLUMNS["headers"] in self.schema.types else as_bytes
        data = self.rows.data[start:stop]
        return row_of(data, self.rows.stream, offset, self.max_items, convert, self.wanted)

    def _column(self, name: str, found: Found, single: Whole, decoded: list[dict[str, Any]]) -> pa.Array:
        if not len(single):
            return self._together(name, found)
        values = [row[name] for row in decoded]
        if name == "headers":
            values = [list(headers.items()) for headers in values]
        others = pa.array(values, self.schema.field(name).type)
        if len(single) == self.count:
            return others
        order = np.arange(self.count)
        order[single] = self.count + np.arange(len(single))
        return pa.concat_arrays([self._together(name, found), others]).take(pa.array(order))

    def _together(self, name: str, found: Found) -> pa.Array:
        if name == "headers":
            kind = self.schema.field(name).type
            return header_lists(self.data, self.buffer, self.count, found, kind)
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
        if name == "reply_to" and pc.any(pc.starts_with(texts, QUEUE_ADDRESS)).as_py():
            return pa.array([reply_to(text) for text in texts.to_pylist()], pa.string())
        return texts

    def _texts(self, name: str, found: Found) -> pa.Array:
        if name not in found.texts:
            return pa.nulls(self.count, COLUMNS[name])
        span = found.texts[name]
        valid = found.simple & (span.stop >= 0)
        raw = slices(self.buffer, span.start, span.stop, valid)
        if name == "body":
            return raw
        return utf8(raw, np.arange(self.count))


def _moments(milliseconds: Whole, valid: Flags) -> pa.Array:
    valid = valid & (milliseconds >= _FIRST_MOMENT) & (milliseconds <= _LAST_MOMENT)
    return pa.array(np.where(valid, milliseconds, 0) * 1000, mask=~valid).cast(_MOMENT)
