"""Encode messages as AMQP 1.0 that every release delivers to consumers over AMQP 0-9-1.

The sections follow the table in `message`. Where its columns differ, this module encodes delivery mode, priority and
expiration as annotations, because RabbitMQ 3.10 cannot deliver messages with a header section, and closes the consumer's
connection. It encodes the type and the app id as RabbitMQ 4 does, so consumers of 3.10 do not receive them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, Final, Unpack

from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.message_fields import (
    FIELDS,
    PROPERTIES,
    ROUTING_HEADERS,
    TEXT,
    Headers,
    PropertyColumns,
    check_name,
    checked,
)
from rabbit_chx.mirror.fields import Field, milliseconds
from rabbit_chx.mirror.hashing import shortstr
from rabbit_chx.publishing.batch_columns import body_column, by_row, checked_body, column, short_strings
from rabbit_chx.streams.messages.message import PROPERTY_NAMES

_U32: Final = struct.Struct(">I")
_SIZE_AND_COUNT: Final = struct.Struct(">II")
_I64: Final = struct.Struct(">q")
_DOUBLE: Final = struct.Struct(">d")
_NULL: Final = b"\x40"
_TRUE, _FALSE = b"\x41", b"\x42"
_SHORT: Final = 256
"""Smaller sizes are encoded in one byte."""
_KEPT: Final = 50_000
"""The number of encoded sections to cache, because values repeat."""
_LARGEST_BODY: Final = 2**32 - 1
_MOST_SECONDS: Final = (2**63 - 1) // 1000
"""AMQP 1.0 has milliseconds of 64 bits."""


def encode_messages(
    bodies: Iterable[bytes | str],
    *,
    routing_keys: str | bytes | Iterable[str | bytes | None] | None = None,
    exchange: str | bytes | Iterable[str | bytes | None] | None = None,
    headers: Headers | Iterable[Headers | None] | None = None,
    **properties: Unpack[PropertyColumns],
) -> Iterator[bytes]:
    """Encode messages for `StreamConnection.publish`.

    Stream readers receive the columns in `COLUMNS`, and consumers over AMQP 0-9-1 the properties of that protocol. The
    arguments are those of `Publisher.publish_many`, checked before the first message is returned.

    Args:
        bodies: the body of each message.
        routing_keys: one value for all messages, or a list, an Arrow array or another iterable with a value for each message.
        exchange: likewise; streams store the name, but do not route by it.
        headers: likewise; streams store no lists, dicts and decimals, which are refused.
        properties: likewise.

    Raises:
        InvalidValue: a property is unknown, or a value or the length of a column is invalid.
    """
    return encode_bodies(checked_bodies(bodies), routing_keys, exchange, headers, properties)


def checked_bodies(bodies: Iterable[bytes | str]) -> list[bytes]:
    """Return bodies as bytes, none longer than AMQP 1.0 allows."""
    return body_column(bodies, _LARGEST_BODY)


def encode_bodies(
    bodies: list[bytes],
    routing_keys: Any,
    exchange: Any,
    headers: Any,
    properties: Mapping[str, Any],
) -> Iterator[bytes]:
    """Encode messages as `encode_messages` does, whose bodies are checked."""
    count, sizes = len(bodies), list(map(len, bodies))
    for name in properties:
        check_name(name)
    given = {name: _checked_column(name, value, count) for name, value in properties.items()}
    given["routing_key"] = _text_column("routing key", routing_keys, count)
    given["exchange"] = _text_column("exchange", exchange, count)
    tables = column(headers, count, "headers")
    sections = (
        *_annotation_parts(*map(given.get, _IN_ANNOTATIONS)),
        _each(_properties, *map(given.get, _IN_PROPERTIES)),
        by_row(tables, _headers) if isinstance(tables, list) else repeat(_headers(tables)),
    )
    present = [each for each in sections if not isinstance(each, repeat) or next(each)]
    before = {size: _before_data(size) for size in set(sizes)}
    return map(b"".join, zip(*present, map(before.__getitem__, sizes), bodies, strict=False))


def encode_message(
    body: bytes | str,
    routing_key: str | bytes | None,
    headers: Headers | None,
    properties: Mapping[str, Any],
) -> bytes:
    """Encode one message as `encode_messages` does."""
    content = checked_body(body, _LARGEST_BODY)
    given: dict[str, Any] = {}
    for name in properties:  # first, as in a batch: of several invalid values, both name the same one
        check_name(name)
    for name, value in properties.items():
        text = PROPERTIES[name].kind is TEXT
        given[name] = _short(f"property {name}", value) if text else checked(name, value)
    given["routing_key"] = _short("routing key", routing_key)
    sections = (
        _annotations(*map(given.get, _IN_ANNOTATIONS)),
        _properties(*map(given.get, _IN_PROPERTIES)),
        _headers(headers),
    )
    return b"".join((*sections, _before_data(len(content)), content))


def _short(what: str, text: Any) -> bytes | None:
    return None if text is None else shortstr(text, what)


def _checked_column(name: str, given: Any, count: int) -> Any:
    """Check a property, and return it as AMQP 0-9-1 has it: a list with a value for each message, or one value."""
    if PROPERTIES[name].kind is TEXT:
        return _text_column(f"property {name}", given, count)
    found = column(given, count, name)
    if not isinstance(found, list):
        return checked(name, found)
    # The type counts, too: 5 == 5.0.
    cached = lru_cache(maxsize=None, typed=True)(partial(checked, name))
    return by_row(
        found, lambda value: cached(value) if isinstance(value, (str, int)) else checked(name, value)
    )


def _text_column(what: str, given: Any, count: int) -> Any:
    found = column(given, count, what.removeprefix("property "))
    if not isinstance(found, list):
        return _short(what, found)
    encoded = short_strings(found)
    if encoded is not None:
        return encoded
    return by_row(found, partial(_short, what))


def _each(section: Callable[..., bytes], *columns: Any) -> Iterable[bytes]:
    """Encode a section of each message. Each field has one value for all messages, or a list of values."""
    if not any(isinstance(one, list) for one in columns):
        return repeat(section(*columns))
    return map(section, *(one if isinstance(one, list) else repeat(one) for one in columns))


# ---- sections: a descriptor, then a list, a map or binary data

_PLACED: Final = {field.name: field.places[0] for field in FIELDS if field.places}
_IN_ANNOTATIONS: Final = tuple(name for name, place in _PLACED.items() if place.startswith("x-"))
"""The routing key is the first."""
_IN_PROPERTIES: Final = tuple(name for name in _PLACED if name not in _IN_ANNOTATIONS)


def _annotation_parts(routing_key: Any, *others: Any) -> Iterable[Iterable[bytes]]:
    """Encode the section of each message, in two parts if all have their own routing keys."""
    if isinstance(routing_key, list) and None not in routing_key:
        return _each(_before_key, list(map(len, routing_key)), *others), routing_key
    return (_each(_annotations, routing_key, *others),)


def _annotations(routing_key: bytes | None, *others: Any) -> bytes:
    # Routing keys often differ, but many have the same length, and the others are often equal in all messages.
    if routing_key is None:
        return _before_key(None, *others)
    return _before_key(len(routing_key), *others) + routing_key


@lru_cache(maxsize=_KEPT, typed=True)
def _before_key(size: int | None, *others: Any) -> bytes:
    """Return the section up to a routing key of this size, which ends it; without a key, the whole section."""
    values = (*others, None if size is None else b" " * size)
    pairs = [
        part
        for name, value in zip((*_IN_ANNOTATIONS[1:], _IN_ANNOTATIONS[0]), values, strict=True)
        if value is not None
        for part in (_symbol(_PLACED[name]), b"\x50%c" % value if isinstance(value, int) else _text(value))
    ]
    section = b"\0\x53\x72" + _compound(b"\xc1", b"\xd1", b"".join(pairs), len(pairs)) if pairs else b""
    return section[: len(section) - (size or 0)]


def _properties(*values: Any) -> bytes:
    fields: list[bytes] = []
    for place, at, encode in _PROPERTY_FIELDS:
        if values[at] is not None:
            fields += [_NULL] * (place - len(fields))  # fields that are not set
            fields.append(encode(values[at]))
    return b"\0\x53\x73" + _compound(b"\xc0", b"\xd0", b"".join(fields), len(fields)) if fields else b""


def _headers(headers: Any) -> bytes:
    """Encode the section of application properties."""
    if headers is None:
        return b""
    pairs = _plain_pairs(headers)
    if pairs is None:
        table = checked("headers", headers)
        pairs = [part for name, value in table.items() for part in (_header_name(name), _header(name, value))]
    return b"\0\x53\x74" + _compound(b"\xc1", b"\xd1", b"".join(pairs), len(pairs)) if pairs else b""


def _plain_pairs(headers: Any) -> list[bytes] | None:
    """Encode headers whose values need no check but the ones here; None for any others, and invalid ones."""
    if type(headers) is not dict or any(name in headers for name in ROUTING_HEADERS):
        return None
    pairs: list[bytes] = []
    try:
        for name, value in headers.items():
            kind = type(value)
            if kind is str:
                encoded = _text(value)
            elif kind is int:
                encoded = b"\x81" + _I64.pack(value)
            elif kind is float and value - value == 0:  # neither infinite nor NaN
                encoded = b"\x82" + _DOUBLE.pack(value)
            elif kind is bool:
                encoded = _TRUE if value else _FALSE
            else:
                return None
            pairs += (_header_name(name), encoded)
    except (UnicodeEncodeError, struct.error):
        return None
    return pairs


@lru_cache(maxsize=_KEPT, typed=True)
def _header_name(name: str | bytes) -> bytes:
    return _text(shortstr(name, "header name"))


# ---- values


def _header(name: str, value: Any) -> bytes:
    """Encode the value of a header, which has been checked."""
    match value:
        case None:
            return _NULL
        case bool():
            return _TRUE if value else _FALSE
        case str():
            return _text(value)
        case bytes():
            return _binary(value)
        case int():
            return b"\x81" + _I64.pack(value)
        case float():
            return b"\x82" + _DOUBLE.pack(value)
        case datetime():
            return b"\x83" + _I64.pack(milliseconds(value))
        case Field(tag="T") if value.value <= _MOST_SECONDS:
            return _seconds(value.value)
    raise InvalidValue(
        f"header {name}",
        value,
        "None, bool, int, float, str, bytes or datetime, because streams store no other headers",
        "Send a list or a dict as JSON",
    )


def _seconds(number: int) -> bytes:
    return b"\x83" + _I64.pack(number * 1000)


def _sized(short: bytes, long: bytes, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    size = len(data)
    return b"%b%c%b" % (short, size, data) if size < _SHORT else b"%b%b%b" % (long, _U32.pack(size), data)


_text = partial(_sized, b"\xa1", b"\xb1")
_symbol = partial(_sized, b"\xa3", b"\xb3")
_binary = partial(_sized, b"\xa0", b"\xb0")


@lru_cache(maxsize=_KEPT)
def _before_data(size: int) -> bytes:
    """Return the section of the body up to the body, which has this size."""
    return b"\0\x53\x75\xa0%c" % size if size < _SHORT else b"\0\x53\x75\xb0" + _U32.pack(size)


def _compound(short: bytes, long: bytes, parts: bytes, count: int) -> bytes:
    """Encode a list or a map: size, number of parts, parts. The size includes the number of parts."""
    size = len(parts)
    if size + 1 < _SHORT and count < _SHORT:
        return b"%b%c%c%b" % (short, size + 1, count, parts)
    return b"%b%b%b" % (long, _SIZE_AND_COUNT.pack(size + 4, count), parts)


_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "user_id": _binary,
    "content_type": _symbol,
    "content_encoding": _symbol,
    "timestamp": _seconds,
}
_FIELD_AT: Final = {_PLACED[name]: at for at, name in enumerate(_IN_PROPERTIES)}
_PROPERTY_FIELDS: Final = [
    (place, _FIELD_AT[name], _ENCODERS.get(name, _text))
    for place, name in enumerate(PROPERTY_NAMES)
    if name in _FIELD_AT
]
"""The place in the list of the section, the place among the arguments of `_properties`, and how the value is encoded."""
