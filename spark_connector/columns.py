"""The columns of a DataFrame that is written: their names, their types, and what each type becomes in AMQP.

One column is one part of a message. Types are given as Spark's SQL names them (``bigint``, ``map<string,int>``).
Everything here is known before a task starts, so a schema that cannot be written never publishes a row.
This file imports neither PySpark nor Arrow and opens no socket; a schema is only looked at.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from rabbit_chx import InvalidValue
from rabbit_chx.publishing import ROUTING_HEADERS
from spark_connector.options import check_short_text, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AMQP_TAGS", "COLUMNS", "Column", "Headers", "Layout", "amqp_tag", "layout_of", "sql_type"]

AMQP_TAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "string": "S",
        "binary": "x",
        "boolean": "t",
        "tinyint": "I",
        "smallint": "I",
        "int": "I",
        "bigint": "l",
        "timestamp": "T",
    }
)
"""Spark type -> tag of an AMQP field: how the value of a header is sent, and so what an exchange hashes.

The type of the column decides, never the value: a ``bigint`` of 5 is sent as 64 bits. Timestamps are whole
seconds. A header that is null is not sent at all. Other types (``double``, ``decimal``, ``date``, nested ones)
are refused, since clients and releases disagree about them: ``cast`` them to string.
"""


def sql_type(data_type: Any) -> str:
    """The name of a PySpark type without its parameters: ``string``, ``bigint``, ``map``, ``decimal``."""
    named = re.match(r"[a-z_]+", data_type.simpleString())
    name = named[0] if named else data_type.simpleString()
    return "string" if name in {"char", "varchar"} else name


def amqp_tag(data_type: Any, what: str) -> str:
    """The tag that a header of this PySpark type is sent with; an error that names ``what`` where there is none."""
    tag = AMQP_TAGS.get(sql_type(data_type))
    if tag is None:
        raise InvalidValue(
            what,
            data_type.simpleString(),
            ", ".join(AMQP_TAGS),
            'cast it: col("...").cast("string") always works',
        )
    return tag


@dataclass(frozen=True)
class Column:
    """A column that the connector knows."""

    name: str
    types: tuple[str, ...]
    doc: str
    aliases: tuple[str, ...] = ()


_TEXT: Final = ("string",)
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")

COLUMNS: Final = (
    Column("value", ("binary", "string"), "The body; text is sent as UTF-8. Required.", ("body",)),
    Column("routing_key", _TEXT, "Required, unless the option routingKey is given.", ("key",)),
    Column("exchange", _TEXT, "Required, unless the option exchange is given."),
    Column(
        "headers",
        ("map", "array", "struct"),
        "A map, a struct (types may differ), or array<struct<key,value>>.",
    ),
    Column("message_id", _TEXT, "At most 255 bytes, as all texts below."),
    Column("correlation_id", _TEXT, "For replies."),
    Column("content_type", _TEXT, "Such as application/json."),
    Column("content_encoding", _TEXT, "Such as gzip."),
    Column("reply_to", _TEXT, "A queue for the answer."),
    Column("type", _TEXT, "What kind of message it is."),
    Column("app_id", _TEXT, "The application."),
    Column("user_id", _TEXT, "The broker closes the channel unless this is the user of the connection."),
    Column("expiration", (*_TEXT, *_WHOLE), "Milliseconds until the queue may drop it."),
    Column("priority", _WHOLE, "0 to 255."),
    Column("delivery_mode", _WHOLE, "1 (lost when the broker restarts) or 2 (kept)."),
    Column("timestamp", ("timestamp",), "Sent in whole seconds."),
)
"""Every column that a DataFrame may have."""

_BY_NAME: Final = {name: column for column in COLUMNS for name in (column.name, *column.aliases)}


@dataclass(frozen=True)
class Headers:
    """How the column ``headers`` holds them."""

    form: Literal["map", "array", "struct"]
    tags: tuple[str, ...]
    """Of the values: one tag, or one for each field of a struct."""
    names: tuple[str, ...] = ()
    """The fields of a struct."""
    key_at: int = 0
    """Which field of an array's struct holds the name; the other one holds the value."""


@dataclass(frozen=True)
class Layout:
    """Where each part of a message stands in a row: a schema that was checked."""

    positions: Mapping[str, int]
    """Name of a column, without aliases -> its place in the schema."""
    types: Mapping[str, str]
    """Name of a column -> its type."""
    headers: Headers | None = None


def layout_of(schema: Any, *, ignore_unknown: bool = False, given: frozenset[str] = frozenset()) -> Layout:
    """Check a PySpark ``StructType`` and say where each part of a message stands in it.

    ``given`` holds the columns that options stand in for (``exchange``, ``routing_key``): they are needed no more,
    and an error if they are there nevertheless.
    """
    fields = list(schema.fields)
    names = [field.name for field in fields]
    _refuse_twins(names)
    if not {"value", "body"} & set(map(str.lower, names)):
        raise InvalidValue(
            "DataFrame",
            f"the columns {names}",
            "one with a column value (or body), of type binary or string",
            'to send whole rows as JSON: df.select(to_json(struct("*")).alias("value"), ...)',
        )
    positions: dict[str, int] = {}
    for position, field in enumerate(fields):
        column = _BY_NAME.get(field.name.lower())
        if column is not None:
            _claim(positions, column, position, fields)
        elif not ignore_unknown:
            _refuse_unknown(field.name)
    _refuse_missing(positions, names, given)
    found = {name: fields[position] for name, position in positions.items()}
    types = {name: _checked_type(_BY_NAME[name], field) for name, field in found.items()}
    headers = _headers_of(found["headers"].dataType) if "headers" in found else None
    return Layout(positions, types, headers)


def _refuse_twins(names: list[str]) -> None:
    counts = Counter(map(str.lower, names))
    twins = [name for name in names if counts[name.lower()] > 1]
    if twins:
        raise InvalidValue(
            "DataFrame",
            f"the columns {twins}",
            "one with names that differ in more than upper and lower case",
            "Drop or rename one of them: Spark itself would take either",
        )


def _claim(positions: dict[str, int], column: Column, position: int, fields: list[Any]) -> None:
    if column.name in positions:
        raise InvalidValue(
            f"column {column.name}",
            [fields[positions[column.name]].name, fields[position].name],
            "one of them: they mean the same",
            "Drop the other one",
        )
    positions[column.name] = position


def _refuse_unknown(name: str) -> None:
    raise InvalidValue(
        "column",
        name,
        ", ".join(column.name for column in COLUMNS),
        f"{nearest(name, _BY_NAME)}drop it, put it into value or headers, or say ignoreUnknownColumns=true",
    )


def _refuse_missing(positions: dict[str, int], names: list[str], given: frozenset[str]) -> None:
    for name, option in (("routing_key", "routingKey"), ("exchange", "exchange")):
        if name in positions and name in given:
            raise InvalidValue(
                f"{name.replace('_', ' ')}",
                f"both a column and the option {option}",
                "one of them: neither outranks the other",
                "Drop the column, or leave the option out",
            )
        if name not in positions and name not in given:
            empty = {
                "routing_key": 'an empty one is option("routingKey", "")',
                "exchange": 'the default exchange, where the key names the queue, is option("exchange", "")',
            }
            raise InvalidValue(
                "DataFrame",
                f"the columns {names}",
                f"one with a column {name}, or the option {option} for all rows",
                empty[name],
            )


def _checked_type(column: Column, field: Any) -> str:
    kind = sql_type(field.dataType)
    if kind not in column.types:
        raise InvalidValue(
            f"type of the column {field.name}",
            field.dataType.simpleString(),
            ", ".join(column.types),
            _way_to(column, field.name),
        )
    return kind


def _way_to(column: Column, name: str) -> str:
    if column.name == "headers":
        return f'struct("a", "b").alias("{name}") makes headers of columns'
    if column.name == "value":
        return f'to_json(col("{name}")) makes text of a nested column, cast("string") of any other'
    return f'col("{name}").cast("{column.types[0]}")'


def _headers_of(data_type: Any) -> Headers:
    """What the headers' values are sent as; the forms are map, struct, and Kafka's array of key and value."""
    form = sql_type(data_type)
    if form == "map":
        _check_name_type(data_type.keyType, data_type)
        return Headers("map", (amqp_tag(data_type.valueType, "the type of the headers' values"),))
    if form == "struct":
        _check_names([one.name for one in data_type.fields])
        tags = tuple(amqp_tag(one.dataType, f"the type of the header {one.name}") for one in data_type.fields)
        return Headers("struct", tags, tuple(one.name for one in data_type.fields))
    element = data_type.elementType
    by_name = {one.name.lower(): one for one in getattr(element, "fields", ())}
    if sorted(by_name) != ["key", "value"] or len(element.fields) != len(by_name):
        raise InvalidValue(
            "type of the column headers",
            data_type.simpleString(),
            "array<struct<key:string,value:...>>, a map, or a struct",
            "To make a map, use map_from_arrays(names, values)",
        )
    _check_name_type(by_name["key"].dataType, data_type)
    tag = amqp_tag(by_name["value"].dataType, "the type of the headers' values")
    return Headers("array", (tag,), key_at=list(by_name).index("key"))


def _check_name_type(name_type: Any, whole: Any) -> None:
    if sql_type(name_type) != "string":
        raise InvalidValue(
            "type of the headers' names",
            whole.simpleString(),
            "string",
            "Cast the keys to string",
        )


def _check_names(names: list[str]) -> None:
    for name in names:
        check_short_text(name, "name of a header")
    if len(set(names)) < len(names):
        raise InvalidValue(
            "headers",
            names,
            "each name once",
            "Leave the others out of the struct",
        )
    if set(names) & set(ROUTING_HEADERS):
        raise InvalidValue(
            "headers",
            names,
            "any name but CC and BCC, which the broker takes for lists of more routing keys",
            "Bind the other queues to the exchange, or write the rows once more with their own key",
        )
