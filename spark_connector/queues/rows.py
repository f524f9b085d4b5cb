"""Messages of a queue as rows: Arrow batches on the driver, shipped to tasks inside their partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from operator import attrgetter, or_
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rabbit_chx import Field
from rabbit_chx.consuming import Message
from rabbit_chx.messages.message_fields import BODY, HEADERS, MILLISECONDS, PROPERTIES, TEXT, MessageField
from rabbit_chx.streams.messages.amqp10 import Milliseconds, as_bytes, as_text
from rabbit_chx.streams.messages.arrow.batch import HEADERS_AS_STRUCTS
from spark_connector.columns import FIELD_OF
from spark_connector.reading.schema import batch_of
from spark_connector.worker import freeze_worker

_MOST_BYTES: Final = 1 << 20
"""Of messages whose headers are decoded at a time: decoded, they can take 25 times as much memory."""


@dataclass(frozen=True)
class RowsPartition(InputPartition):
    """The rows of one task, in the streaming format of Arrow."""

    rows: bytes


def partitions(messages: Sequence[Message], schema: pa.Schema, count: int) -> list[RowsPartition]:
    """Divide messages among at most ``count`` partitions, each with consecutive messages."""
    count = max(min(count, len(messages)), 1)
    cuts = [len(messages) * number // count for number in range(count + 1)]
    return [
        RowsPartition(_packed(messages[start:end], schema)) for start, end in pairwise(cuts) if end > start
    ]


def _packed(messages: Sequence[Message], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if pa.Codec.is_available("lz4") else None)
    with pa.ipc.new_stream(sink, schema, options=options) as stream:
        for batch in record_batches(messages, schema):
            stream.write_batch(batch)
    return bytes(sink.getvalue())


def rows(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task; none for the empty partition that Spark adds to a micro-batch without rows."""
    if isinstance(partition, RowsPartition):
        with pa.ipc.open_stream(partition.rows) as stream:
            yield from stream
    freeze_worker()


def record_batches(messages: Sequence[Message], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """One row for each message, in order; a batch ends when the messages in it have 1 MiB."""
    start = size = 0
    for end, message in enumerate(messages, 1):
        size += len(message.body) + len(_encoded(message))
        if size >= _MOST_BYTES:
            yield record_batch(messages[start:end], schema)
            start, size = end, 0
    if start < len(messages):
        yield record_batch(messages[start:], schema)


def record_batch(messages: Sequence[Message], schema: pa.Schema) -> pa.RecordBatch:
    """One row for each message, in order.

    Most messages of a queue have the same properties, or differ in few: equal ones are decoded and converted once, and a
    property that no message has is not asked for.
    """
    kinds = [_encoded(message) for message in messages]
    alike = dict(zip(kinds, messages, strict=True))
    numbers = {kind: number for number, kind in enumerate(alike)}
    places = pa.array([numbers[kind] for kind in kinds], pa.int32())
    examples = [copy(message) for message in alike.values()]  # what is decoded of a message stays with it
    flags = reduce(or_, {_flags(message) for message in examples}, 0)
    nowhere = pa.repeat(pa.scalar(0, pa.int32()), len(messages))
    arrays = []
    for one in schema:
        field = FIELD_OF[one.name]
        kind = pa.binary() if field.kind is BODY else one.type
        if field.name not in PROPERTIES:
            arrays.append(pa.array(_values(messages, field, kind), kind))
        elif flags & field.flag:
            arrays.append(pa.array(_values(examples, field, kind), kind).take(places))
        else:
            arrays.append(pa.array(_values(examples[:1], field, kind), kind).take(nowhere))
    return batch_of(arrays, schema)


def _flags(message: Message) -> int:
    """The properties that a message has: the first two bytes of a content header (``rabbit_framing_amqp_0_9_1:decode_properties``)."""
    return int.from_bytes(_encoded(message)[:2], "big")


def _encoded(message: Message) -> bytes:
    """The properties as received."""
    encoded: bytes = message.encoded  # type: ignore[attr-defined]  # which each message from a queue has
    return encoded


def _values(messages: Sequence[Message], field: MessageField, kind: pa.DataType) -> list[Any]:
    values = map(attrgetter(field.name), messages)
    if field.kind is HEADERS:
        converted = _bytes if kind == HEADERS_AS_STRUCTS else _text
        return [[(_text(name), converted(value)) for name, value in headers.items()] for headers in values]
    if field.kind in {TEXT, MILLISECONDS}:
        return [None if value is None else _text(value) for value in values]
    return list(values)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else as_text(plain(value))


def _bytes(value: Any) -> bytes | None:
    return as_bytes(plain(value))


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
