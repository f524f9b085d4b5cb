"""The properties of a message as bytes of a content header."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from pika.data import decode_short_string

from rabbit_chx.broker.deliveries import BEFORE_PROPERTIES
from rabbit_chx.broker.properties import decode_value, table
from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.message_fields import (
    MILLISECONDS,
    PROPERTIES,
    TEXT,
    TIME,
    MessageField,
    check_name,
    checked,
)

DEFAULT_FRAME_MAX: Final = 131_072
"""RabbitMQ's default ``frame_max``, and the most that pika agrees to."""

_PERSISTENT: Final = 2
_FLAGS: Final = struct.Struct(">H")
_SIZE: Final = struct.Struct(">I")
_SECONDS: Final = struct.Struct(">Q")
_IN_ORDER: Final = sorted(PROPERTIES.values(), key=lambda field: field.flag, reverse=True)
"""A content header holds its fields in the order of their flags."""
_SHORT_STRINGS: Final = (TEXT, MILLISECONDS)


def max_property_bytes(frame_max: int = DEFAULT_FRAME_MAX) -> int:
    """Return how long the properties of a message may be: a content header must fit into one frame."""
    return frame_max - BEFORE_PROPERTIES - 1  # the end byte


def encode_properties(properties: Mapping[str, Any], *, frame_max: int) -> bytes:
    """Encode properties as in a content header; messages are persistent by default."""
    given = with_defaults(properties)
    for name in given:
        check_name(name)
    fields = [field for field in _IN_ORDER if field.name in given]
    pieces = [encode_property(field.name, given[field.name]) for field in fields]
    encoded = _FLAGS.pack(sum(field.flag for field in fields)) + b"".join(pieces)
    limit = max_property_bytes(frame_max)
    if len(encoded) > limit:
        raise InvalidValue(
            "properties",
            f"{len(encoded)} bytes",
            f"at most {limit} bytes with all headers, to fit into one frame",
            "Move the data into the body",
        )
    return encoded


def encode_property(name: str, value: Any) -> bytes:
    """Encode one property as in a content header, without its flag."""
    return _ENCODERS[name](checked(name, value))


def _short_string(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return b"%c%b" % (len(encoded), encoded)


_ENCODERS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    **{name: _short_string for name, field in PROPERTIES.items() if field.kind in _SHORT_STRINGS},
    **{name: lambda number: b"%c" % number for name in ("priority", "delivery_mode")},
    "timestamp": _SECONDS.pack,
    "headers": table,
}


def split_properties(encoded: bytes) -> dict[str, bytes]:
    """Return the properties in a content header, and each header as ``headers.NAME``, all as they are encoded."""
    (flags,), start = _FLAGS.unpack_from(encoded), _FLAGS.size
    found: dict[str, bytes] = {}
    for field in _IN_ORDER:
        if flags & field.flag:
            end = start + _size_of(field, encoded, start)
            if field.name == "headers":
                found |= _split_table(encoded, start + _SIZE.size, end)
            else:
                found[field.name] = encoded[start:end]
            start = end
    return found


def _size_of(field: MessageField, encoded: bytes, start: int) -> int:
    if field.name == "headers":
        (size,) = _SIZE.unpack_from(encoded, start)
        return _SIZE.size + int(size)
    if field.kind in _SHORT_STRINGS:
        return 1 + encoded[start]
    return _SECONDS.size if field.kind is TIME else 1


def _split_table(encoded: bytes, start: int, end: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    while start < end:
        name, value_start = decode_short_string(encoded, start)
        _, start = decode_value(encoded, value_start)
        found[f"headers.{name}"] = encoded[value_start:start]
    return found


def with_defaults(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that are set (None means unset), with the default delivery mode."""
    given = {name: value for name, value in properties.items() if value is not None}
    return {"delivery_mode": _PERSISTENT} | given
