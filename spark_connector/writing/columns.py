"""The columns of a DataFrame that is written: their names, their types, and what each becomes in AMQP.

A column is one part of a message. Types have the names of Spark SQL (``bigint``, ``map<string,int>``). A schema is
checked before a task starts, so an invalid one never publishes a row. This module imports neither PySpark nor Arrow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from rabbit_chx import InvalidValue
from rabbit_chx.publishing import ROUTING_HEADERS
from spark_connector.option_table import check_short_text, nearest

AMQP_TAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "string": "S",
        "binary": "x",
        "boolean": "t",
        "tinyint": "I",
        "smallint": "I",
        "int": "I",
        "bigint": "l",
        "float": "d",
        "double": "d",
        "timestamp": "T",
        "timestamp_ntz": "T",
        "date": "T",
    }
)
"""Spark type -> AMQP field tag: how a header is sent, and so what an exchange hashes.

The column's type decides, not the value: a ``bigint`` of 5 is sent as 64 bits. Times are sent in whole seconds: a
``timestamp_ntz`` as if it were in UTC, a ``date`` as its midnight in UTC. A null header is not sent. Other types
(``decimal``, nested ones) are rejected because clients and releases disagree about them: ``cast`` them to string.
"""


def sql_type(data_type: Any) -> str:
    """The name of a PySpark type without its parameters: ``string``, ``bigint``, ``map``, ``decimal``."""
    named = re.match(r"[a-z_]+", data_type.simpleString())
    name = named[0] if named else data_type.simpleString()
    return "string" if name in {"char", "varchar"} else name


def amqp_tag(data_type: Any, what: str) -> str:
    """The tag with which a header of this PySpark type is sent; ``what`` names the type in an error."""
    tag = AMQP_TAGS.get(sql_type(data_type))
    if tag is None:
        hint = 'Cast it to string: col("...").cast("string")'
        if sql_type(data_type) == "decimal":
            hint += ". AMQP's own decimal has only 32 bits, and the broker reads a negative one as positive"
        raise InvalidValue(what, data_type.simpleString(), f"one of {', '.join(AMQP_TAGS)}", hint)
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
    Column("value", ("binary", "string"), "Body; text is sent as UTF-8. Required.", ("body",)),
    Column("routing_key", _TEXT, "Required unless the option routingKey or stream is given.", ("key",)),
    Column("exchange", _TEXT, "Required unless the option exchange is given. Streams only store it."),
    Column(
        "headers",
        ("map", "array", "struct"),
        "A map, a struct (fields may differ in type) or array<struct<key,value>>.",
    ),
    Column("message_id", _TEXT, "At most 255 bytes, like all texts below."),
    Column("correlation_id", _TEXT, "Matches replies to requests."),
    Column("content_type", _TEXT, "Such as application/json."),
    Column("content_encoding", _TEXT, "Such as gzip."),
    Column("reply_to", _TEXT, "Queue for replies."),
    Column("type", _TEXT, "Kind of message."),
    Column("app_id", _TEXT, "Sending application."),
    Column("user_id", _TEXT, "Must be the user of the connection."),
    Column("expiration", (*_TEXT, *_WHOLE), "Milliseconds until the queue may drop the message."),
    Column("priority", _WHOLE, "0 to 255."),
    Column("delivery_mode", _WHOLE, "1 (transient) or 2 (persistent)."),
    Column("timestamp", ("timestamp",), "Sent in whole seconds."),
)
"""Every column that a DataFrame may have."""

_BY_NAME: Final = {name: column for column in COLUMNS for name in (column.name, *column.aliases)}


@dataclass(frozen=True)
class Headers:
    """The form of the column ``headers``."""

    form: Literal["map", "array", "struct"]
    tags: tuple[str, ...]
    """The tag of all values, or one for each field of a struct."""
    names: tuple[str, ...] = ()
    """The fields of a struct."""
    key_at: int = 0
    """The position of the name in an array's struct; the other field is the value."""


@dataclass(frozen=True)
class Layout:
    """A checked schema: where each part of a message is in a row."""

    positions: Mapping[str, int]
    """Canonical name of a column -> its position in the schema."""
    types: Mapping[str, str]
    """Name of a column -> its type."""
    headers: Headers | None = None
    optional: frozenset[str] = frozenset()
    """Which of the columns exchange and routing_key may be null."""


def layout_of(
    schema: Any,
    *,
    ignore_unknown: bool = False,
    given: frozenset[str] = frozenset(),
    optional: frozenset[str] = frozenset(),
) -> Layout:
    """Check a PySpark ``StructType``.

    ``given`` names the columns that options replace (``exchange``, ``routing_key``), which must then be absent. Columns in
    ``optional`` may be absent without an option.
    """
    fields = list(schema.fields)
    names = [field.name for field in fields]
    counts = Counter(map(str.lower, names))
    if twins := [name for name in names if counts[name.lower()] > 1]:
        raise InvalidValue("columns", twins, "names that differ in more than case")
    if not {"value", "body"} & set(map(str.lower, names)):
        raise InvalidValue(
            "columns",
            names,
            "a column value (or body) of type binary or string",
            'To send whole rows as JSON, select to_json(struct("*")).alias("value")',
        )
    positions = _positions(fields, ignore_unknown=ignore_unknown)
    _check_targets(positions, names, given, optional)
    found = {name: fields[position] for name, position in positions.items()}
    types = {name: _checked_type(_BY_NAME[name], field) for name, field in found.items()}
    headers = _headers_of(found["headers"].dataType) if "headers" in found else None
    return Layout(positions, types, headers, optional)


def _positions(fields: list[Any], *, ignore_unknown: bool) -> dict[str, int]:
    """The position of each known column by its canonical name."""
    positions: dict[str, int] = {}
    for position, field in enumerate(fields):
        column = _BY_NAME.get(field.name.lower())
        if column is None and not ignore_unknown:
            known = ", ".join(column.name for column in COLUMNS)
            near = nearest(field.name, _BY_NAME)
            hint = f"{near}To leave unknown columns out, set ignoreUnknownColumns=true"
            raise InvalidValue("column name", field.name, f"one of {known}", hint)
        if column is not None and column.name in positions:
            twins = [fields[positions[column.name]].name, field.name]
            raise InvalidValue(f"columns for {column.name}", twins, "one of them")
        if column is not None:
            positions[column.name] = position
    return positions


def _check_targets(
    positions: dict[str, int], names: list[str], given: frozenset[str], optional: frozenset[str]
) -> None:
    """Check that exchange and routing key are given once each, by a column or by an option."""
    empty = {
        "routing_key": 'For an empty one, use option("routingKey", "")',
        "exchange": 'For the default exchange, where the key names the queue, use option("exchange", "")',
    }
    for name, option in (("routing_key", "routingKey"), ("exchange", "exchange")):
        if name in positions and name in given:
            got = f"both a column and the option {option}"
            raise InvalidValue(name.replace("_", " "), got, "one of them")
        if name not in positions and name not in given | optional:
            raise InvalidValue("columns", names, f"a column {name}, or the option {option}", empty[name])


def _checked_type(column: Column, field: Any) -> str:
    kind = sql_type(field.dataType)
    if kind not in column.types:
        hints = {
            "headers": f'To make headers of columns, use struct("a", "b").alias("{field.name}")',
            "value": f'Convert it: to_json(col("{field.name}")) for a nested column, cast("string") for any other',
        }
        raise InvalidValue(
            f"type of column {field.name}",
            field.dataType.simpleString(),
            " or ".join(column.types),
            hints.get(column.name, f'Cast it: col("{field.name}").cast("{column.types[0]}")'),
        )
    return kind


def _headers_of(data_type: Any) -> Headers:
    """The form of the headers: a map, a struct, or an array of key and value as Kafka's sink takes."""
    form = sql_type(data_type)
    if form == "map":
        _check_name_type(data_type.keyType, data_type)
        return Headers("map", (amqp_tag(data_type.valueType, "type of header values"),))
    if form == "struct":
        _check_names([one.name for one in data_type.fields])
        tags = tuple(amqp_tag(one.dataType, f"type of header {one.name}") for one in data_type.fields)
        return Headers("struct", tags, tuple(one.name for one in data_type.fields))
    element = data_type.elementType
    by_name = {one.name.lower(): one for one in getattr(element, "fields", ())}
    if sorted(by_name) != ["key", "value"] or len(element.fields) != len(by_name):
        raise InvalidValue(
            "type of column headers",
            data_type.simpleString(),
            "array<struct<key:string,value:...>>, a map or a struct",
            "To make a map, use map_from_arrays(names, values)",
        )
    _check_name_type(by_name["key"].dataType, data_type)
    tag = amqp_tag(by_name["value"].dataType, "type of header values")
    return Headers("array", (tag,), key_at=list(by_name).index("key"))


def _check_name_type(name_type: Any, whole: Any) -> None:
    if sql_type(name_type) != "string":
        raise InvalidValue("type of header names", whole.simpleString(), "string")


def _check_names(names: list[str]) -> None:
    for name in names:
        check_short_text(name, "name of a header")
    if len(set(names)) < len(names):
        raise InvalidValue("header names", names, "unique names")
    if set(names) & set(ROUTING_HEADERS):
        hint = "The broker reads these headers as lists of routing keys"
        raise InvalidValue("header names", names, "names other than CC and BCC", hint)
