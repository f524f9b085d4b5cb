"""The columns of a read: their meaning, and the schema of one DataFrame.

Their names and types are those of `rabbit_chx.streams.COLUMNS`; most are also columns of a write, so that rows which were
read can be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from rabbit_chx import InvalidValue
from rabbit_chx.streams import COLUMNS
from spark_connector.option_table import unknown_name

READ_COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "value": "Body.",
        "routing_key": "Null if a stream client published the message without one.",
        "exchange": "Null if a stream client published the message.",
        "headers": "Headers, or application properties of AMQP 1.0, as text.",
        "message_id": "As the publisher set it, like all columns below.",
        "correlation_id": "Matches replies to requests.",
        "content_type": "Such as application/json.",
        "content_encoding": "Such as gzip.",
        "reply_to": "Queue for replies.",
        "type": "Kind of message.",
        "app_id": "Sending application.",
        "user_id": "Publishing user.",
        "expiration": "Milliseconds, as text; a stream ignores it.",
        "priority": "0 to 255.",
        "delivery_mode": "1 (transient) or 2 (persistent).",
        "timestamp": "Property of the message; in whole seconds if it was published over AMQP 0-9-1.",
        "stream": "Stream, or partition of a super stream.",
        "offset": "Offset in the stream.",
        "stream_timestamp": "When the broker stored the message; the same for all messages of a chunk.",
    }
)
"""Every column of a read of streams, and its meaning."""

_OF_STREAMS: Final = ("stream", "offset", "stream_timestamp")

QUEUE_COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {name: meaning for name, meaning in READ_COLUMNS.items() if name not in _OF_STREAMS}
    | {
        "redelivered": "Whether the broker has delivered the message before; its row may have been written already."
    }
)
"""Every column of a read of a queue, and its meaning."""

_TYPES: Final[Mapping[str, pa.DataType]] = MappingProxyType({**COLUMNS, "redelivered": pa.bool_()})


def spark_schema(
    columns: tuple[str, ...] | None = None, known: Mapping[str, str] = READ_COLUMNS
) -> StructType:
    """The schema of a read of these columns; None for all that are known."""
    names = list(known) if columns is None else columns
    for name in names:
        if name not in known:
            raise unknown_name("name in option columns", name, known)
    return StructType([StructField(name, _type(name)) for name in names])


def _type(name: str) -> Any:
    return from_arrow_type(_TYPES[name], prefer_timestamp_ntz=False)


def checked_columns(
    schema: StructType, columns: tuple[str, ...] | None, known: Mapping[str, str] = READ_COLUMNS
) -> tuple[str, ...]:
    """The columns of the schema that Spark passes: the user's after ``.schema(...)``, else that of `spark_schema`.

    Raises:
        InvalidValue: the user's schema has a column or type that a read does not have.
    """
    for field in schema.fields:
        hint = f'Remove .schema(...), and cast afterwards: col("{field.name}").cast("{field.dataType.simpleString()}")'
        if field.name not in known:
            error = unknown_name("column in the schema of a read", field.name, known)
            raise InvalidValue(error.what, error.got, error.expected, error.hint or "Remove .schema(...)")
        if field.dataType != _type(field.name):
            expected = _type(field.name).simpleString()
            what = f"type of column {field.name} in the schema of a read"
            raise InvalidValue(what, field.dataType.simpleString(), expected, hint)
        if not field.nullable:
            raise InvalidValue(
                f"column {field.name} in the schema of a read", "NOT NULL", "a column that can be null", hint
            )
    names = tuple(schema.names)
    if columns is not None and names != columns:
        raise InvalidValue(
            "schema of a read", list(names), f"the option columns: {', '.join(columns)}", "Remove one of them"
        )
    if len(set(names)) < len(names):
        raise InvalidValue("schema of a read", list(names), "each column once")
    return names


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The schema of the batches that Spark expects."""
    return pa.schema([(name, _TYPES[name]) for name in columns])
