"""The rules for a DataFrame that is written: its schema, and the rows that can become messages.

A schema is checked before a task starts, so an invalid one never publishes a row. Two modules apply the rules for rows:
`prepare` to Arrow batches, in the writer, and `split_valid` as native expressions of Spark. This module imports neither
PySpark nor Arrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from rabbit_chx import InvalidValue
from rabbit_chx.messages.message_fields import BODY, MILLISECONDS, ROUTING_HEADERS, TEXT, TIME
from rabbit_chx.publishing.properties import max_property_bytes
from spark_connector.columns import COLUMNS, FIELD_OF, Column, amqp_tag, sql_type
from spark_connector.option_table import MAX_SHORT_TEXT, check_short_text, nearest

# -- the schema ---------------------------------------------------------------------------------------

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
        names = tuple(one.name for one in data_type.fields)
        for name in names:
            check_short_text(name, "name of a header")
        if len(set(names)) < len(names):
            raise InvalidValue("header names", [*names], "unique names")
        if set(names) & set(ROUTING_HEADERS):
            hint = "The broker reads these headers as lists of routing keys"
            raise InvalidValue("header names", [*names], "names other than CC and BCC", hint)
        tags = tuple(amqp_tag(one.dataType, f"type of header {one.name}") for one in data_type.fields)
        return Headers("struct", tags, names)
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


# -- rows ---------------------------------------------------------------------------------------------

_TARGETS: Final = ("routing_key", "exchange")
SIZES: Final[Mapping[str, int]] = {"t": 2, "I": 5, "l": 9, "d": 9, "T": 9}
"""Bytes of a field's tag and value, for the tags of fixed size."""

_OTHER_PROPERTIES: Final = 2_500
"""Bytes that the properties other than headers can take: nine short strings, and the headers of the task."""
_MAX_BODY: Final = 16 << 20


@dataclass(frozen=True)
class Limits:
    """What a broker accepts."""

    body: int
    properties: int

    @classmethod
    def default(cls, max_message_bytes: int | None) -> Limits:
        """Those of RabbitMQ 4 without configuration; older releases accept more."""
        return cls(max_message_bytes or _MAX_BODY, max_property_bytes())

    @property
    def headers(self) -> int:
        """How many bytes the headers of a message may take."""
        return self.properties - _OTHER_PROPERTIES


class InvalidRow(NamedTuple):
    """A row that cannot be sent, and the first rule that it violates."""

    row: int
    """Counted from 0 in its batch."""
    reason: str


Test: TypeAlias = Literal[
    "null", "too long", "not utf-8", "out of range", "time out of range", "not finite", "not milliseconds", "reserved name",
    "repeated name", "headers too large",
]  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A test, and the error of a row that it matches."""

    column: str
    test: Test
    reason: str
    bounds: tuple[int, int] = (0, 0)
    """The lowest and the highest value allowed; of lengths, the highest counts."""
    part: str = ""
    """Of the column headers: a field of the struct, or ``name`` or ``value`` of a list of headers."""


def row_rules(layout: Layout, limits: Limits, *, null_is_empty: bool) -> Iterator[Rule]:
    """The rules for these columns, in the order in which a row is judged."""
    for name in (column.name for column in COLUMNS if column.name in layout.positions):
        if name == "headers":
            assert layout.headers is not None
            yield from _header_rules(layout.headers, limits)
        else:
            yield from _rules_of(name, layout, limits, null_is_empty=null_is_empty)


def _rules_of(name: str, layout: Layout, limits: Limits, *, null_is_empty: bool) -> Iterator[Rule]:
    """The rules for any other column."""
    kind = FIELD_OF[name].kind
    beyond = f"{name} is not {kind.limits}"
    if kind is BODY:
        if not null_is_empty:
            yield Rule(name, "null", f"{name} is null; with nullValue=empty it would be an empty message")
        yield _too_long(name, limits.body)
    elif kind is TEXT:
        if name in _TARGETS and name not in layout.optional:
            yield Rule(name, "null", f"{name} is null")
        yield _too_long(name, MAX_SHORT_TEXT)
        yield Rule(name, "not utf-8", f"{name} is not valid UTF-8")
    elif kind is TIME:
        yield Rule(name, "time out of range", beyond, kind.bounds)
    elif kind is MILLISECONDS and layout.types[name] == "string":
        yield Rule(name, "not milliseconds", beyond, kind.bounds)
    else:
        yield Rule(name, "out of range", beyond, kind.bounds)


def _header_rules(headers: Headers, limits: Limits) -> Iterator[Rule]:
    if headers.form == "struct":
        for name, tag in zip(headers.names, headers.tags, strict=True):
            yield from _value_rules(tag, f"headers: {name}", name)
    else:
        name = "headers: a name"
        yield Rule("headers", "null", f"{name} is null", part="name")
        yield _too_long("headers", MAX_SHORT_TEXT, name, "name")
        yield Rule("headers", "not utf-8", f"{name} is not valid UTF-8", part="name")
        yield from _value_rules(headers.tags[0], "headers: a value", "value")
        reserved = "headers: CC and BCC are reserved; the broker reads them as lists of routing keys"
        yield Rule("headers", "reserved name", reserved, part="name")
        if headers.form == "array":
            yield Rule("headers", "repeated name", f"{name} occurs twice", part="name")
    reason = f"headers take more than the {limits.headers} bytes that fit into one frame"
    yield Rule("headers", "headers too large", reason, (0, limits.headers))


def _too_long(column: str, most: int, what: str = "", part: str = "") -> Rule:
    return Rule(column, "too long", f"{what or column} is longer than {most} bytes", (0, most), part)


def _value_rules(tag: str, what: str, part: str) -> Iterator[Rule]:
    if tag == "S":
        yield Rule("headers", "not utf-8", f"{what} is not valid UTF-8", part=part)
    if tag == "d":
        yield Rule("headers", "not finite", f"{what} is infinite or NaN; RabbitMQ fails on both", part=part)
    if tag == "T":
        yield Rule("headers", "time out of range", f"{what} is not {TIME.limits}", TIME.bounds, part)
