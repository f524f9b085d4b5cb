"""Messages of a queue as rows: Arrow batches on the driver, shipped to tasks inside their partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import chain, pairwise
from operator import attrgetter
from sys import getsizeof
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rabbit_chx import Field
from rabbit_chx.consuming import Message
from rabbit_chx.message_fields import HEADERS, MILLISECONDS, TEXT, MessageField
from rabbit_chx.streams import Milliseconds, as_text
from spark_connector.columns import FIELD_OF
from spark_connector.reading.schema import AS_DOCUMENTED, Forms, arrow_schema, batch_of
from spark_connector.worker import freeze_worker

_MOST_BYTES: Final = 1 << 20
"""Of messages whose headers are decoded at a time: decoded, they can take 25 times as much memory."""


@dataclass(frozen=True)
class RowsPartition(InputPartition):
    """The rows of one task, in the streaming format of Arrow."""

    rows: bytes


def partitions(
    messages: Sequence[Message], columns: tuple[str, ...], count: int, forms: Forms = AS_DOCUMENTED
) -> list[RowsPartition]:
    """Divide messages among at most ``count`` partitions, each with consecutive messages."""
    cuts = [len(messages) * number // count for number in range(count + 1)]
    return [
        RowsPartition(_packed(record_batches(messages[start:end], columns, forms)))
        for start, end in pairwise(cuts)
        if end > start
    ]


def _packed(batches: Iterator[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    compression = "lz4" if pa.Codec.is_available("lz4") else None
    first = next(batches)
    with pa.ipc.new_stream(
        sink, first.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as stream:
        for batch in chain([first], batches):
            stream.write_batch(batch)
    return bytes(sink.getvalue())


def rows(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task; none for the empty partition that Spark adds to a micro-batch without rows."""
    if isinstance(partition, RowsPartition):
        with pa.ipc.open_stream(partition.rows) as stream:
            yield from stream
    freeze_worker()


def record_batches(
    messages: Sequence[Message], columns: tuple[str, ...], forms: Forms = AS_DOCUMENTED
) -> Iterator[pa.RecordBatch]:
    """One row for each message, in order; a batch ends when the messages in it have 1 MiB."""
    piece: list[Message] = []
    size = 0
    for message in messages:
        piece.append(copy(message))  # whose decoded headers are not kept
        size += getsizeof(message)
        if size >= _MOST_BYTES:
            yield record_batch(piece, columns, forms)
            piece, size = [], 0
    if piece:
        yield record_batch(piece, columns, forms)


def record_batch(
    messages: Sequence[Message], columns: tuple[str, ...], forms: Forms = AS_DOCUMENTED
) -> pa.RecordBatch:
    """One row for each message, in order."""
    arrays = [
        pa.array(_values(messages, FIELD_OF[one.name], forms), one.type)
        for one in arrow_schema(columns, forms)
    ]
    return batch_of(arrays, columns, forms)


def _values(messages: Sequence[Message], field: MessageField, forms: Forms) -> list[Any]:
    """What fills a column. Most properties are text or missing, which is what the column holds."""
    values = map(attrgetter(field.name), messages)
    if field.kind is HEADERS:
        converted = _bytes if forms.binary_headers else _text
        return [[(_text(name), converted(value)) for name, value in headers.items()] for headers in values]
    if field.kind in {TEXT, MILLISECONDS}:
        return [None if value is None else _text(value) for value in values]
    return list(values)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else as_text(plain(value))


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    text = _text(value)
    return None if text is None else text.encode()


def plain(value: Any) -> Any:
    """Convert a header's value, as a `Message` has it, to the types that `as_text` accepts."""
    match value:
        case datetime():
            return Milliseconds(round(value.timestamp() * 1_000))
        case Field(tag="T"):
            return Milliseconds(value.value * 1_000)
        case Decimal():
            return str(value)
        case bytearray():
            return bytes(value)
        case list():
            return [plain(item) for item in value]
        case dict():
            return {name: plain(item) for name, item in value.items()}
    return value
