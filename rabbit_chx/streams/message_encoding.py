"""Encode messages as AMQP 1.0 that every release delivers to consumers over AMQP 0-9-1.

The sections follow the table in `messages`. Where its columns differ, this module encodes delivery mode, priority and
expiration as annotations, because RabbitMQ 3.10 cannot deliver messages with a header section, and closes the consumer's
connection. It encodes the type and the app id as RabbitMQ 4 does, so consumers of 3.10 do not receive them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import chain, repeat
from operator import index
from typing import Any, Final, SupportsIndex, TypeAlias

from rabbit_chx.errors import InvalidValue

Text: TypeAlias = str | bytes | None
"""Text, or its encoding in UTF-8."""

_U32: Final = struct.Struct(">I")
_SIZE_AND_COUNT: Final = struct.Struct(">II")
_I64: Final = struct.Struct(">q")
_DOUBLE: Final = struct.Struct(">d")
_NULL: Final = b"\x40"
_TRUE, _FALSE = b"\x41", b"\x42"
_MOST_SECONDS: Final = (2**63 - 1) // 1000
"""AMQP 1.0 has milliseconds of 64 bits."""
_SHORT: Final = 256
"""Smaller sizes are encoded in one byte."""
_KEPT: Final = 50_000
"""The number of encoded sections to cache, because values repeat."""


def encode_messages(
    bodies: Iterable[bytes],
    *,
    routing_keys: Text | Iterable[Text] = None,
    exchange: Text | Iterable[Text] = None,
    headers: Mapping[str, Any] | Iterable[Mapping[str, Any] | None] | None = None,
    **properties: Any,
) -> Iterator[bytes]:
    """Encode messages for `StreamPublisher.send_messages`.

    Stream readers receive the columns in `COLUMNS`, and consumers over AMQP 0-9-1 the properties of that protocol.

    Args:
        bodies: the body of each message.
        routing_keys: one value for all messages, or a value for each message.
        exchange: likewise; streams store the name, but do not route by it.
        headers: likewise; values are text, bytes, bool, int, float or an aware `datetime`.
        properties: likewise; the properties of AMQP 0-9-1: ``content_type``, ``content_encoding``, ``delivery_mode``,
            ``priority``, ``correlation_id``, ``reply_to``, ``expiration`` (milliseconds), ``message_id``, ``timestamp``
            (seconds since 1970), ``type``, ``user_id`` and ``app_id``.

    Raises:
        InvalidValue: a property is unknown, or a value has no encoding.
    """
    if unknown := sorted(set(properties) - _PROPERTIES):
        raise InvalidValue("property", unknown[0], f"one of {', '.join(sorted(_PROPERTIES))}")
    given = properties.get
    sections = (
        _each(_annotations, routing_keys, exchange, *map(given, _IN_ANNOTATIONS)),
        _each(_properties, *map(given, _IN_PROPERTIES)),
        _each(_application_properties, headers),
    )
    # The bodies come first: when they end, zip must not take a value from another column.
    for body, message_annotations, basic_properties, application_properties in zip(
        map(data_section, bodies), *sections, strict=False
    ):
        yield message_annotations + basic_properties + application_properties + body


def _each(section: Callable[..., bytes], *columns: Any) -> Iterator[bytes]:
    """Encode a section of each message. Each field has one value for all messages, or a column of values."""
    if all(map(_is_single, columns)):
        return repeat(section(*columns))
    return map(section, *(repeat(one) if _is_single(one) else chain(one, _Ended()) for one in columns))


def _is_single(column: Any) -> bool:
    return isinstance(column, (str, bytes, Mapping)) or not isinstance(column, Iterable)


class _Ended(Iterator[Any]):
    """Follows the last value of a column and raises an error if there are more bodies."""

    def __next__(self) -> Any:
        raise InvalidValue("column", "fewer values than bodies", "one value for each body")


# ---- sections: a descriptor, then a list, a map or binary data


def _annotations(routing_key: Text, *others: Any) -> bytes:
    # Routing keys often differ, but many have the same length, and the others are often equal in all messages.
    if routing_key is None:
        return _other_annotations(*others)
    key = _bytes(routing_key)
    return _before_key(len(key), *others) + key


@lru_cache(maxsize=_KEPT)
def _before_key(size: int, *others: Any) -> bytes:
    """Return the section up to a routing key of this size, which ends it."""
    section = _annotations_section(b" " * size, *others)
    return section[: len(section) - size]


@lru_cache(maxsize=_KEPT)
def _other_annotations(*others: Any) -> bytes:
    return _annotations_section(None, *others)


def _annotations_section(
    routing_key: Text,
    exchange: Text,
    kind: Text,
    delivery_mode: SupportsIndex | None,
    priority: SupportsIndex | None,
    expiration: str | int | None,
) -> bytes:
    named = {
        "x-exchange": _text(exchange),
        "x-basic-type": _text(kind),
        "x-basic-delivery-mode": _byte("delivery_mode", delivery_mode),
        "x-basic-priority": _byte("priority", priority),
        "x-basic-expiration": _text(None if expiration is None else str(expiration)),
        "x-routing-key": _text(routing_key),
    }
    pairs = [part for name, value in named.items() if value != _NULL for part in (_symbol(name), value)]
    return b"\0\x53\x72" + _map(b"".join(pairs), len(pairs)) if pairs else b""


_IN_ANNOTATIONS: Final = ("type", "delivery_mode", "priority", "expiration")
_IN_PROPERTIES: Final = (
    *("message_id", "user_id", "reply_to", "correlation_id", "content_type", "content_encoding"),
    *("timestamp", "app_id"),
)


def _properties(
    message_id: Text,
    user_id: Text,
    reply_to: Text,
    correlation_id: Text,
    content_type: Text,
    content_encoding: Text,
    timestamp: SupportsIndex | None,
    app_id: Text,
) -> bytes:
    fields = [
        _text(message_id),
        _NULL if user_id is None else _binary(_bytes(user_id)),
        _NULL,  # to
        _NULL,  # subject
        _text(reply_to),
        _text(correlation_id),
        _symbol(content_type),
        _symbol(content_encoding),
        _NULL,  # absolute-expiry-time
        _timestamp(timestamp),
        _text(app_id),  # group-id
    ]
    while fields and fields[-1] == _NULL:
        fields.pop()
    return b"\0\x53\x73" + _compound(b"\xc0", b"\xd0", b"".join(fields), len(fields)) if fields else b""


def _application_properties(headers: Mapping[str, Any] | None) -> bytes:
    if not headers:
        return b""
    if not isinstance(headers, Mapping):
        raise InvalidValue("headers", headers, "a mapping of names to values")
    pairs = [part for name, value in headers.items() for part in (_text(name), _value(value))]
    return b"\0\x53\x74" + _map(b"".join(pairs), len(pairs))


def data_section(body: bytes) -> bytes:
    """Encode a body as a data section, which alone is a valid message."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidValue("message body", body, "bytes")
    return _sized(b"\0\x53\x75\xa0", b"\0\x53\x75\xb0", body)


_PROPERTIES: Final = {*_IN_ANNOTATIONS, *_IN_PROPERTIES}


# ---- values


def _value(value: Any) -> bytes:
    """Encode the value of a header."""
    match value:
        case None:
            return _NULL
        case bool():
            return _TRUE if value else _FALSE
        case str():
            return _text(value)
        case bytes():
            return _binary(value)
        case int() if -(1 << 63) <= value < 1 << 63:
            return b"\x81" + _I64.pack(value)
        case float():
            return b"\x82" + _DOUBLE.pack(value)
        case datetime() if value.tzinfo is not None:
            return b"\x83" + _I64.pack(round(value.timestamp() * 1000))
    raise InvalidValue(
        "value of a header", value, "text, bytes, bool, an integer of 64 bits, float or an aware datetime"
    )


def _bytes(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidValue("text in a message", text, "valid text, or bytes") from None


def _byte(name: str, number: SupportsIndex | None) -> bytes:
    if number is None:
        return _NULL
    expected = "an integer from 0 to 255"
    return b"\x50" + _integer(name, number, 0, 255, expected).to_bytes(1, "big")


def _timestamp(seconds: SupportsIndex | None) -> bytes:
    if seconds is None:
        return _NULL
    expected = f"whole seconds since 1970 from -{_MOST_SECONDS} to {_MOST_SECONDS}"
    return b"\x83" + _I64.pack(_integer("timestamp", seconds, -_MOST_SECONDS, _MOST_SECONDS, expected) * 1000)


def _integer(name: str, got: SupportsIndex, least: int, most: int, expected: str) -> int:
    """Return an integer of any type, such as one of numpy, as one of Python; raise if it is none, or out of range."""
    with suppress(TypeError):
        number = index(got)
        if least <= number <= most:
            return number
    raise InvalidValue(f"property {name}", got, expected)


def _text(text: Text) -> bytes:
    return _NULL if text is None else _sized(b"\xa1", b"\xb1", _bytes(text))


def _symbol(text: Text) -> bytes:
    return _NULL if text is None else _sized(b"\xa3", b"\xb3", _bytes(text))


def _binary(data: bytes) -> bytes:
    return _sized(b"\xa0", b"\xb0", data)


def _sized(short: bytes, long: bytes, data: bytes) -> bytes:
    size = len(data)
    return b"%b%c%b" % (short, size, data) if size < _SHORT else b"%b%b%b" % (long, _U32.pack(size), data)


def _map(pairs: bytes, count: int) -> bytes:
    return _compound(b"\xc1", b"\xd1", pairs, count)


def _compound(short: bytes, long: bytes, parts: bytes, count: int) -> bytes:
    """Encode a list or a map: size, number of parts, parts. The size includes the number of parts."""
    size = len(parts)
    if size + 1 < _SHORT and count < _SHORT:
        return b"%b%c%c%b" % (short, size + 1, count, parts)
    return b"%b%b%b" % (long, _SIZE_AND_COUNT.pack(size + 4, count), parts)
