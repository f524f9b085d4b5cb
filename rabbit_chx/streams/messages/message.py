"""Decode one stored message: the readable reference for the fast paths in `stored` and `arrow`.

Streams store AMQP 1.0. Brokers store a message that was published over AMQP 0-9-1 in these sections:

=================  ===============================  ==================================================================
AMQP 0-9-1         RabbitMQ 3.10                    RabbitMQ 4.0 and 4.3
=================  ===============================  ==================================================================
body               data                             data
routing key        annotation x-routing-key         the same
exchange           annotation x-exchange            the same
delivery mode      annotation x-basic-delivery-     header: durable. Without a delivery mode, the broker stores
                   mode, if set                     durable=false, which is read as 1
priority           annotation x-basic-priority      header: priority
expiration         annotation x-basic-expiration    header: ttl
type               application property             annotation x-basic-type
                   x-basic-type
app id             application property             properties: group-id
                   x-basic-app-id
reply to           properties: reply-to             the same; in 4.3 as the address ``/queues/NAME``
other properties   properties                       the same
headers            application properties           application properties; annotations if the name begins with
                                                    ``x-``
arrays, tables     not stored                       not stored, except in ``x-`` headers, and CC as x-cc
text not in UTF-8  unchanged                        as binary
decimals           the broker closes the publisher's connection
=================  ===============================  ==================================================================

RabbitMQ 4.0 and 4.3 store messages of AMQP 1.0 publishers with their own sections; 3.10 converts them to AMQP 0-9-1 first.
Clients of the stream protocol (Java, Go, .NET, rstream's ``AMQPMessage``) write AMQP 1.0 without x-routing-key and x-exchange.
A message that does not begin like a section of AMQP 1.0, such as the bytes that rstream's ``send`` takes, has only a body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote

from rabbit_chx.errors import InvalidMessage
from rabbit_chx.messages.message import StreamMessage
from rabbit_chx.messages.message_fields import FIELDS, moment
from rabbit_chx.mirror.fields import MILLISECOND
from rabbit_chx.streams.messages.amqp10 import (
    MAX_ITEMS,
    Budget,
    Malformed,
    Milliseconds,
    TooManyItems,
    as_text,
    read,
    read_only,
    skip,
)

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = 0x70, 0x72, 0x73, 0x74
DATA, SEQUENCE, VALUE = 0x75, 0x76, 0x77
_SECTIONS: Final = range(0x70, 0x79)
_SECTION_NAMES: Final = (
    *("header:list", "delivery-annotations:map", "message-annotations:map", "properties:list"),
    *("application-properties:map", "data:binary", "amqp-sequence:list", "amqp-value:*", "footer:map"),
)
_SYMBOLS: Final = {f"amqp:{name}": code for code, name in zip(_SECTIONS, _SECTION_NAMES, strict=True)}
QUEUE_ADDRESS: Final = "/queues/"
"""RabbitMQ 4.3 puts this before the percent-encoded name of the queue in reply-to."""

PROPERTY_NAMES: Final = (
    *("message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type"),
    *("content_encoding", "absolute_expiry_time", "timestamp", "group_id", "group_sequence"),
    "reply_to_group_id",
)
"""The fields of the properties section, in order."""
COLUMNS_OF_MESSAGES: Final = tuple(field.name for field in FIELDS if field.written)
"""The columns of a message. Reads of streams have further ones."""
ANNOTATION_OF: Final = {
    place: field.name for field in FIELDS for place in field.places if place.startswith("x-")
}
"""Name that the broker adds to annotations or application properties -> column."""
_TEXT_PROPERTIES: Final = ("message_id", "correlation_id", "content_type", "content_encoding")
_ADDED: Final = {"headers", *ANNOTATION_OF.values()}
_COLUMNS_IN: Final = {
    HEADER: {"delivery_mode", "priority", "expiration"},
    ANNOTATIONS: _ADDED,
    PROPERTIES: {*_TEXT_PROPERTIES, "reply_to", "user_id", "type", "app_id", "timestamp"},
    APPLICATION_PROPERTIES: _ADDED,
    **{section: {"body"} for section in (DATA, SEQUENCE, VALUE)},
}
"""Section -> the columns that it may have values of."""


def decode(
    data: bytes, stream: str, offset: int, time_ms: int | None = None, *, max_items: int = MAX_ITEMS
) -> StreamMessage:
    """Decode a stored message of a chunk with this time.

    Raises:
        InvalidMessage: The message begins like AMQP 1.0, but cannot be decoded, or has too many items.
    """
    fields = _fields_of(data, stream, offset, max_items)
    headers = {as_text(name) or "": _plain(value) for name, value in fields.pop("headers").items()}
    body, key, exchange = (fields.pop(name) for name in ("body", "routing_key", "exchange"))
    return StreamMessage(
        body or b"",
        key or "",
        exchange=exchange or "",
        queue=stream,
        headers=headers,
        offset=offset,
        stream_timestamp=None if time_ms is None else moment(time_ms, MILLISECOND),
        **fields,
    )


def row_of(
    data: bytes,
    stream: str,
    offset: int,
    max_items: int = MAX_ITEMS,
    header: Callable[[Any], str | bytes | None] = as_text,
    columns: Sequence[str] = COLUMNS_OF_MESSAGES,
) -> dict[str, Any]:
    """Decode a stored message to the values of these columns. What it lacks is None; ``header`` converts a header's value."""
    fields = _fields_of(data, stream, offset, max_items, columns)
    fields["headers"] = {as_text(name) or "": header(value) for name, value in fields["headers"].items()}
    return fields


def _fields_of(
    data: bytes,
    stream: str,
    offset: int,
    max_items: int,
    columns: Sequence[str] = COLUMNS_OF_MESSAGES,
) -> dict[str, Any]:
    if not is_amqp10(data):
        return dict.fromkeys(COLUMNS_OF_MESSAGES) | {"body": data, "headers": {}}
    try:
        return _fields(_sections(data, columns, Budget(max_items)))
    except TooManyItems as error:
        raise InvalidMessage(str(error), stream, offset, error.hint) from None
    except Malformed as error:
        raise InvalidMessage(f"not valid AMQP 1.0: {error}", stream, offset) from None


def is_amqp10(data: bytes) -> bool:
    """Whether a message begins with the descriptor of a section, in any of its three forms."""
    match data[:2]:
        case b"\x00\x53":
            return data[2:3] in _SECTION_BYTES
        case b"\x00\x80":
            return data[2:9] == bytes(7) and data[9:10] in _SECTION_BYTES
        case b"\x00\xa3":
            return data[3:8] == b"amqp:"
    return False


_SECTION_BYTES: Final = {bytes([code]) for code in _SECTIONS}
_KINDS: Final[dict[int, type]] = {0x70: list, 0x72: dict, 0x73: list, 0x74: dict, 0x75: bytes, 0x76: list}


@cache
def _needed(columns: Sequence[str]) -> set[int]:
    return {section for section, there in _COLUMNS_IN.items() if not there.isdisjoint(columns)}


def _sections(data: bytes, columns: Sequence[str], budget: Budget) -> dict[int, list[Any]]:
    """Return the values of each kind of section that these columns need; the size of a value is enough to skip any other."""
    needed = _needed(tuple(columns))
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        if data[at] != 0:
            raise Malformed(f"byte {at} is 0x{data[at]:02x}, expected a section")
        descriptor, at = read(data, at + 1, budget)
        code = _SYMBOLS.get(descriptor, -1) if isinstance(descriptor, str) else descriptor
        if not isinstance(code, int) or code not in _SECTIONS:  # 112.0 is in range(0x70, 0x79) too
            raise Malformed(f"a section has the unknown descriptor {descriptor!r}")
        if code not in needed or (code in (SEQUENCE, VALUE) and DATA in found):
            at = skip(data, at)
            continue
        if code in (ANNOTATIONS, APPLICATION_PROPERTIES) and "headers" not in columns:
            value, at = read_only(ANNOTATION_OF, data, at, budget)
        else:
            value, at = read(data, at, budget)
        if code in _KINDS and not isinstance(value, _KINDS[code]):
            raise Malformed(f"section 0x{code:02x} has a value of the wrong type")
        found.setdefault(code, []).append(value)
    return found


def _fields(found: dict[int, list[Any]]) -> dict[str, Any]:
    header, annotations, values, application = (
        found[code][-1] if code in found else _KINDS[code]()
        for code in (HEADER, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES)
    )
    properties = dict(zip(PROPERTY_NAMES, values, strict=False))
    durable, priority, ttl = [*header, None, None, None][:3]
    added = {
        column: _first(annotations.pop(name, None), application.pop(name, None) if is_basic(name) else None)
        for name, column in ANNOTATION_OF.items()
    }
    return {
        "body": _body(found),
        "routing_key": as_text(added["routing_key"]),
        "exchange": as_text(added["exchange"]),
        "headers": annotations | application,
        **{name: as_text(properties.get(name)) for name in _TEXT_PROPERTIES},
        "reply_to": reply_to(as_text(properties.get("reply_to"))),
        "user_id": _user_id(properties.get("user_id")),
        "type": as_text(_first(added["type"], properties.get("subject"))),
        "app_id": as_text(_first(properties.get("group_id"), added["app_id"])),
        "expiration": as_text(_first(ttl, added["expiration"])),
        "priority": _small(_first(priority, added["priority"])),
        "delivery_mode": _small(_first(_mode(durable), added["delivery_mode"])),
        "timestamp": _moment(properties.get("timestamp")),
    }


def is_basic(name: str) -> bool:
    """Whether RabbitMQ 3.10 stores a property of AMQP 0-9-1 under this name."""
    return name.startswith("x-basic-")


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def reply_to(address: str | None) -> str | None:
    """Return the name of the queue, also if RabbitMQ 4.3 converted the name to an address."""
    if address is None or not address.startswith(QUEUE_ADDRESS):
        return address
    return unquote(address.removeprefix(QUEUE_ADDRESS))


def _user_id(value: Any) -> str | None:
    """Return the name of the user, which is binary in AMQP 1.0."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return as_text(value)


def _small(value: Any) -> int | None:
    """Return an integer from 0 to 255, and None for any other value."""
    return value if type(value) is int and 0 <= value <= 255 else None


def _mode(durable: Any) -> int | None:
    return {True: 2, False: 1}[durable] if isinstance(durable, bool) else None


def _moment(value: Any) -> datetime | None:
    return moment(value, MILLISECOND) if isinstance(value, Milliseconds) else None


def _plain(value: Any) -> Any:
    """Return the value of a header with times as Python has them; others remain milliseconds."""
    match value:
        case Milliseconds():
            return _moment(value) or int(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {as_text(name) or "": _plain(item) for name, item in value.items()}
    return value


def _body(found: dict[int, list[Any]]) -> bytes | None:
    if DATA in found:
        return b"".join(found[DATA])
    value = _first(*found.get(VALUE, ()), [*chain(*found.get(SEQUENCE, ()))] or None)
    if isinstance(value, bytes) or value is None:
        return value
    text = as_text(value)
    return None if text is None else text.encode()
