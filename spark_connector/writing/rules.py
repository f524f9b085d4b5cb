"""The rules that a row must satisfy to become a message: which, in which order, and how a violation is worded.

Two modules apply them: `arrow_checks` to Arrow batches, in the writer, and `sql_checks` as native expressions of
Spark, for `split_valid`. This module imports neither PySpark nor Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from rabbit_chx.publishing import max_property_bytes
from spark_connector.option_table import MAX_SHORT_TEXT
from spark_connector.writing.columns import Headers, Layout

SIZES: Final[Mapping[str, int]] = {"t": 2, "I": 5, "l": 9, "d": 9, "T": 9}
"""Bytes of a field's tag and value, for the tags of fixed size."""

_REQUIRED: Final = ("routing_key", "exchange")
_TEXTS: Final = (
    *("message_id", "correlation_id", "content_type", "content_encoding"),
    *("reply_to", "type", "app_id", "user_id"),
)
_OTHER_PROPERTIES: Final = 2_500
"""Bytes that the properties other than headers can take: nine short strings, and the headers of the task."""
_TIMES: Final = (0, 253_402_300_799)
"""Up to the end of the year 9999; Python cannot represent later times, so no Python client could read them."""
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
    if not null_is_empty:
        yield Rule("value", "null", "value is null; with nullValue=empty it would be an empty message")
    yield _too_long("value", limits.body)
    for name in (*_REQUIRED, *_TEXTS):
        if name in layout.positions:
            if name in _REQUIRED and name not in layout.optional:
                yield Rule(name, "null", f"{name} is null")
            yield _too_long(name, MAX_SHORT_TEXT)
            yield Rule(name, "not utf-8", f"{name} is not valid UTF-8")
    for name, (least, most) in {"priority": (0, 255), "delivery_mode": (1, 2)}.items():
        if name in layout.positions:
            yield Rule(name, "out of range", f"{name} is not from {least} to {most}", (least, most))
    if "expiration" in layout.positions:
        test: Test = "not milliseconds" if layout.types["expiration"] == "string" else "out of range"
        yield Rule(
            "expiration", test, "expiration is not a number of milliseconds below 2^32", (0, 2**32 - 1)
        )
    if "timestamp" in layout.positions:
        yield Rule("timestamp", "time out of range", "timestamp is not from 1970 to 9999", _TIMES)
    if layout.headers is not None:
        rules = _struct_rules if layout.headers.form == "struct" else _list_rules
        yield from rules(layout.headers)
        reason = f"headers take more than the {limits.headers} bytes that fit into one frame"
        yield Rule("headers", "headers too large", reason, (0, limits.headers))


def _too_long(column: str, most: int, what: str = "", part: str = "") -> Rule:
    return Rule(column, "too long", f"{what or column} is longer than {most} bytes", (0, most), part)


def _struct_rules(headers: Headers) -> Iterator[Rule]:
    for name, tag in zip(headers.names, headers.tags, strict=True):
        yield from _value_rules(tag, f"headers: {name}", name)


def _list_rules(headers: Headers) -> Iterator[Rule]:
    """For a map, or for an array of key and value."""
    name = "headers: a name"
    yield Rule("headers", "null", f"{name} is null", part="name")
    yield _too_long("headers", MAX_SHORT_TEXT, name, "name")
    yield Rule("headers", "not utf-8", f"{name} is not valid UTF-8", part="name")
    yield from _value_rules(headers.tags[0], "headers: a value", "value")
    reserved = "headers: CC and BCC are reserved; the broker reads them as lists of routing keys"
    yield Rule("headers", "reserved name", reserved, part="name")
    if headers.form == "array":
        yield Rule("headers", "repeated name", f"{name} occurs twice", part="name")


def _value_rules(tag: str, what: str, part: str) -> Iterator[Rule]:
    if tag == "S":
        yield Rule("headers", "not utf-8", f"{what} is not valid UTF-8", part=part)
    if tag == "d":
        yield Rule("headers", "not finite", f"{what} is infinite or NaN; RabbitMQ fails on both", part=part)
    if tag == "T":
        yield Rule("headers", "time out of range", f"{what} is not from 1970 to 9999", _TIMES, part)
