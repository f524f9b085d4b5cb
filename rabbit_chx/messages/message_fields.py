"""The fields of a message: one table from which publishers, streams and the Spark connector derive theirs.

A new column of Spark, of a write or of a read, has an entry here. A property of AMQP also needs one line in each of four places:
`Properties`, `PropertyColumns`, `rabbit_chx.messages.message.Message`, and the reference that decodes stored messages,
`rabbit_chx.streams.messages.message`. A read column that is no property also needs its values: in
`rabbit_chx.streams.messages.arrow.batch` for streams, and as an attribute of `Message` for queues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, TypeVar

from rabbit_chx.base.limits import as_integer
from rabbit_chx.base.text import is_utf8
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.fields import EPOCH, Field, encode
from rabbit_chx.mirror.hashing import MAX_SHORTSTR, shortstr

HeaderValue: TypeAlias = (
    bool | int | float | str | bytes | Decimal | datetime | Field | list[Any] | dict[str, Any] | None
)
"""A header: integers of 64 bits, finite floats, aware datetimes, and lists and dicts of such values."""
Headers: TypeAlias = Mapping[str, HeaderValue]

ROUTING_HEADERS: Final = ("CC", "BCC")
"""Headers that hold lists of further routing keys; any other value makes the broker close the channel."""

_SECOND: Final = timedelta(seconds=1)
_DEEPEST: Final = 32
"""Reading stops at this depth, too, see `rabbit_chx.broker.properties`."""


class Properties(TypedDict, total=False):
    """The properties of a message, with the names of AMQP 0-9-1; None means not set."""

    content_type: str | None
    content_encoding: str | None
    delivery_mode: int | None
    """1 (transient) or 2 (persistent, the default of publishers)."""
    priority: int | None
    correlation_id: str | None
    reply_to: str | None
    expiration: str | int | None
    """Milliseconds."""
    message_id: str | None
    timestamp: datetime | None
    """An aware datetime from 1970 on, sent in whole seconds."""
    type: str | None
    user_id: str | None
    app_id: str | None


class DefaultProperties(Properties, total=False):
    """The properties and headers that a publisher gives to every message; those of a message replace them one by one."""

    headers: Headers | None


class _ToList(Protocol):
    """A column of NumPy."""

    def tolist(self) -> Any:
        """Return the values as Python's own."""


class _ToPylist(Protocol):
    """A column of Arrow."""

    def to_pylist(self) -> Any:
        """Return the values as Python's own."""


V = TypeVar("V")
Column: TypeAlias = V | Sequence[V] | _ToList | _ToPylist
"""One value for all rows, or a list, tuple or array with one for each row."""


class PropertyColumns(TypedDict, total=False):
    """The properties of many messages: each is one value for all rows, or a column. See `Properties`."""

    content_type: Column[str | None]
    content_encoding: Column[str | None]
    delivery_mode: Column[int | None]
    priority: Column[int | None]
    correlation_id: Column[str | None]
    reply_to: Column[str | None]
    expiration: Column[str | int | None]
    message_id: Column[str | None]
    timestamp: Column[datetime | None]
    type: Column[str | None]
    user_id: Column[str | None]
    app_id: Column[str | None]


# ---- the kinds of values, and which values are valid


def _text(what: str, value: Any) -> Any:
    shortstr(value, what)
    return value


_WHOLE_MILLISECONDS: Final = "whole milliseconds below 2^32"
_KNOWN_TIMES: Final = "from 1970 to 9999"
"""The years that Python and the protocol have; no Python client could read a later time."""


def _milliseconds(what: str, value: Any) -> str:
    text = str(value) if type(value) is int else value
    is_number = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= MAX_SHORTSTR
    if not is_number or int(text) >= 2**32:
        expected = f"{_WHOLE_MILLISECONDS}, as int or str"
        raise InvalidValue(what, value, expected, "Omit it for a message that does not expire")
    return str(text)


def _integer(least: int, most: int) -> Callable[[str, Any], int]:
    def check(what: str, value: Any) -> int:
        number = as_integer(value)
        if number is None or not least <= number <= most:
            raise InvalidValue(what, value, f"an integer from {least} to {most}")
        return number

    return check


def _seconds(what: str, value: Any) -> int:
    if not isinstance(value, datetime) or value.utcoffset() is None or value < EPOCH:
        hint = "Give it a time zone, such as UTC"
        raise InvalidValue(what, value, f"an aware datetime {_KNOWN_TIMES}", hint)
    return (value - EPOCH) // _SECOND


def moment(since_1970: int, unit: timedelta = _SECOND) -> datetime | None:
    """Return a time, by default a timestamp of AMQP 0-9-1, as an aware datetime; None outside the years 1 to 9999, which Python does not have."""
    try:
        return EPOCH + since_1970 * unit
    except OverflowError:
        return None


def _headers(what: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        hint = "A column of headers holds one mapping per row"
        raise InvalidValue(what, value, "a mapping of names to values", hint)
    for name in ROUTING_HEADERS:
        keys = value.get(name, [])
        if not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
            hint = "RabbitMQ reads this header as further routing keys"
            raise InvalidValue(f"header {name}", keys, "a list of str", hint)
    for name, content in value.items():
        shortstr(name, "header name")
        _check_header(f"header {name}", content, 1)
    return dict(value)


def _check_header(what: str, value: Any, depth: int) -> None:
    if isinstance(value, (list, dict)) and depth <= _DEEPEST:
        _check_items(what, value, depth)
    elif isinstance(value, datetime):
        _seconds(what, value)
    elif expected := _expected(value):
        raise InvalidValue(what, value, expected, "Send it as a str")


def _expected(value: Any) -> str:
    """Return what a value that is not valid in a header would have to be; empty if it is valid."""
    match value:
        case str():
            return "" if is_utf8(value) else "text without lone surrogates"
        case None | bool() | bytes():
            return ""
        case int():
            return "" if -(2**63) <= value < 2**63 else "an integer of at most 64 bits"
        case float():
            return "" if math.isfinite(value) else "a finite number: RabbitMQ fails on infinity and NaN"
        case Decimal():
            return "" if _is_short(value) else "a decimal of at most 32 bits and 255 places"
        case Field(tag="T", value=int(number)) if 0 <= number < 2**64:
            return ""  # a time after the year 9999, as a `Message` has it
        case list() | dict():
            return f"lists and dicts nested at most {_DEEPEST} deep"
    return "None, bool, int, float, str, bytes, Decimal, datetime, list or dict"


def _check_items(what: str, items: Any, depth: int) -> None:
    if isinstance(items, dict):
        for name in items:
            shortstr(name, f"name in {what}")
    for item in items.values() if isinstance(items, dict) else items:
        _check_header(what, item, depth + 1)


def _is_short(value: Decimal) -> bool:
    try:
        encode(value, "pika")
    except InvalidValue:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of fields."""

    written: tuple[str, ...]
    """The types of Spark SQL that a column of a write may have."""
    arrow: str
    """The Arrow type of a column of a read."""
    check: Callable[[str, Any], Any] | None = None
    """Takes the words for an error and a value, and returns the value as AMQP 0-9-1 has it."""
    bounds: tuple[int, int] = (0, 0)
    """The least and the most that an integer, or the seconds of a time, may be."""
    limits: str = ""
    """The bounds in words, for errors: what an invalid value is not."""


_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")


def _integers(least: int, most: int) -> Kind:
    return Kind(_WHOLE, "int32", _integer(least, most), (least, most), f"an integer from {least} to {most}")


BODY: Final = Kind(("binary", "string"), "binary")
TEXT: Final = Kind(("string",), "string", _text)
MILLISECONDS: Final = Kind(("string", *_WHOLE), "string", _milliseconds, (0, 2**32 - 1), _WHOLE_MILLISECONDS)
TIME: Final = Kind(("timestamp",), "timestamp[us, tz=UTC]", _seconds, (0, 253_402_300_799), _KNOWN_TIMES)
HEADERS: Final = Kind(("map", "array", "struct"), "map<string, string>", _headers)
_OFFSET: Final = Kind((), "int64")
_FLAG: Final = Kind((), "bool")


# ---- the table


@dataclass(frozen=True, slots=True)
class MessageField:
    """A field of a message."""

    name: str
    kind: Kind
    written: str
    """What the column of a write says; empty if there is none."""
    read: str = ""
    """What the column of a read says, if it differs."""
    flag: int = 0
    """Of a property: its bit in the content header of AMQP 0-9-1, where properties follow in descending order of the bits."""
    places: tuple[str, ...] = ()
    """Where AMQP 1.0 has it: names of annotations (``x-...``) or of properties. Readers take the first that is set; publishers
    use the first."""
    sources: tuple[Literal["queue", "stream"], ...] = ("queue", "stream")
    """What a read with this column reads."""

    @property
    def meaning(self) -> str:
        """What the column of a read says."""
        return self.read or self.written


FIELDS: Final = (
    MessageField("body", BODY, "Body; text is sent as UTF-8. Required.", "Body."),
    MessageField(
        "routing_key",
        TEXT,
        "Required unless the option routingKey or stream is given.",
        "Null if a stream client published the message without one.",
        places=("x-routing-key",),
    ),
    MessageField(
        "exchange",
        TEXT,
        "Required unless the option exchange is given. Streams only store it.",
        "Null if a stream client published the message.",
        places=("x-exchange",),
    ),
    MessageField(
        "headers",
        HEADERS,
        "A map, a struct (fields may differ in type) or array<struct<key,value>>.",
        "Headers, or application properties of AMQP 1.0, as text.",
        flag=1 << 13,
    ),
    MessageField(
        "message_id",
        TEXT,
        "At most 255 bytes, like all texts below.",
        "As the publisher set it, like all columns below.",
        1 << 7,
        ("message_id",),
    ),
    MessageField(
        "correlation_id", TEXT, "Matches replies to requests.", flag=1 << 10, places=("correlation_id",)
    ),
    MessageField("content_type", TEXT, "Such as application/json.", flag=1 << 15, places=("content_type",)),
    MessageField("content_encoding", TEXT, "Such as gzip.", flag=1 << 14, places=("content_encoding",)),
    MessageField("reply_to", TEXT, "Queue for replies.", flag=1 << 9, places=("reply_to",)),
    MessageField("type", TEXT, "Kind of message.", flag=1 << 5, places=("x-basic-type", "subject")),
    MessageField("app_id", TEXT, "Sending application.", flag=1 << 3, places=("group_id", "x-basic-app-id")),
    MessageField(
        "user_id", TEXT, "Must be the user of the connection.", "Publishing user.", 1 << 4, ("user_id",)
    ),
    MessageField(
        "expiration",
        MILLISECONDS,
        "Milliseconds until the queue may drop the message.",
        "Milliseconds, as text; a stream ignores it.",
        1 << 8,
        ("x-basic-expiration",),
    ),
    MessageField("priority", _integers(0, 255), "0 to 255.", flag=1 << 11, places=("x-basic-priority",)),
    MessageField(
        "delivery_mode",
        _integers(1, 2),
        "1 (transient) or 2 (persistent).",
        flag=1 << 12,
        places=("x-basic-delivery-mode",),
    ),
    MessageField(
        "timestamp",
        TIME,
        "Sent in whole seconds.",
        "Property of the message; in whole seconds if it was published over AMQP 0-9-1.",
        1 << 6,
        ("timestamp",),
    ),
    MessageField(
        "redelivered",
        _FLAG,
        "",
        "Whether the broker has delivered the message before; its row may have been written already.",
        sources=("queue",),
    ),
    MessageField("stream", TEXT, "", "Stream, or partition of a super stream.", sources=("stream",)),
    MessageField("offset", _OFFSET, "", "Offset in the stream.", sources=("stream",)),
    MessageField(
        "stream_timestamp",
        TIME,
        "",
        "When the broker stored the message; the same for all messages of a chunk.",
        sources=("stream",),
    ),
)
"""Every field of a message, in the order of the columns."""

PROPERTIES: Final[Mapping[str, MessageField]] = MappingProxyType(
    {field.name: field for field in FIELDS if field.flag}
)
"""The properties of AMQP 0-9-1, headers included. ``cluster_id``, which AMQP has deprecated, is not among them."""


def checked(name: str, value: Any) -> Any:
    """Check the value of a property, and return it as AMQP 0-9-1 has it: times as seconds. None means not set.

    Raises:
        InvalidValue: the property is unknown, or the value is invalid.
    """
    check_name(name)
    check = PROPERTIES[name].kind.check
    if value is None or check is None:
        return None
    return check("headers" if name == "headers" else f"property {name}", value)


def check_name(name: str) -> None:
    """Refuse the name of an unknown property."""
    if name not in PROPERTIES:
        expected = f"one of {', '.join(sorted(PROPERTIES))}"
        raise InvalidValue("property", name, expected, "Use a header for anything else")
