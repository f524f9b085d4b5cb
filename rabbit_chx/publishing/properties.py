"""The properties of a message as bytes of a content header. Encoded by pika, after checks that pika lacks.

A float in the headers is sent as a double of AMQP; pika has none.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import pika
from pika.data import decode_short_string, decode_value
from pika.exceptions import AMQPError

from rabbit_chx.errors import InvalidValue
from rabbit_chx.fields import seconds
from rabbit_chx.hashing import shortstr

DEFAULT_FRAME_MAX: Final = 131_072
"""RabbitMQ's default ``frame_max``, and the most that pika agrees to."""
ROUTING_HEADERS: Final = ("CC", "BCC")
"""Headers that hold lists of further routing keys; any other value makes the broker close the channel."""
SHORT_STRINGS: Final = (
    *("app_id", "cluster_id", "content_encoding", "content_type", "correlation_id"),
    *("message_id", "reply_to", "type", "user_id"),
)

PROPERTIES: Final = {*SHORT_STRINGS, "delivery_mode", "expiration", "headers", "priority", "timestamp"}
_PERSISTENT: Final = 2
_BEFORE_HEADERS: Final = ("content_type", "content_encoding")
"""The properties that precede the headers in a content header."""
_FLAG_BYTES: Final = 2
_TABLE_SIZE: Final = struct.Struct(">I")
_FIXED_SIZES: Final = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
"""Bytes of the properties that are neither short strings nor a table."""
_HEADER_FRAME_BYTES: Final = 8 + 2 + 2 + 8
"""What a content header frame holds besides the properties: the frame itself, class, weight and body size."""


def max_property_bytes(frame_max: int = DEFAULT_FRAME_MAX) -> int:
    """Return how long the properties of a message may be: a content header must fit into one frame."""
    return frame_max - _HEADER_FRAME_BYTES


def encode_properties(properties: Mapping[str, Any], *, frame_max: int) -> bytes:
    """Encode properties as in a content header; messages are persistent by default."""
    encoded = _encode(with_defaults(properties))
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
    return _encode({name: value})[2:]


def flag_of(name: str) -> int:
    """Return the flag of a property in a content header."""
    return int(getattr(pika.BasicProperties, f"FLAG_{name.upper()}"))


_FLAGS: Final = sorted(((flag_of(name), name) for name in PROPERTIES), reverse=True)
"""In the order of the fields in a content header."""


def split_properties(encoded: bytes) -> dict[str, bytes]:
    """Return the properties in a content header, and each header as ``headers.NAME``, all as they are encoded."""
    flags, start = int.from_bytes(encoded[:_FLAG_BYTES], "big"), _FLAG_BYTES
    found: dict[str, bytes] = {}
    for name in (name for flag, name in _FLAGS if flags & flag):
        end = start + _size_of(name, encoded, start)
        if name == "headers":
            found |= _split_table(encoded, start + _TABLE_SIZE.size, end)
        else:
            found[name] = encoded[start:end]
        start = end
    return found


def _size_of(name: str, encoded: bytes, start: int) -> int:
    if name == "headers":
        (size,) = _TABLE_SIZE.unpack_from(encoded, start)
        return _TABLE_SIZE.size + int(size)
    return _FIXED_SIZES.get(name) or 1 + encoded[start]


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


def _encode(properties: Mapping[str, Any]) -> bytes:
    unknown = properties.keys() - PROPERTIES
    if unknown:
        expected = f"one of {', '.join(sorted(PROPERTIES))}"
        raise InvalidValue("property", min(unknown), expected, "Use a header for anything else")
    checked = {name: _CHECKS[name](name, value) for name, value in properties.items()}
    doubles = {name: value for name, value in checked.get("headers", {}).items() if isinstance(value, float)}
    if doubles:
        return _with_doubles(checked, doubles)
    return _encode_checked(checked)


def _with_doubles(checked: Mapping[str, Any], doubles: Mapping[str, float]) -> bytes:
    """Encode properties whose headers have floats, which pika cannot encode: as the last entries of the table."""
    others = {name: value for name, value in checked["headers"].items() if name not in doubles}
    encoded = _encode_checked({**checked, "headers": others})
    start = len(_encode_checked({name: checked[name] for name in _BEFORE_HEADERS if name in checked}))
    (size,) = _TABLE_SIZE.unpack_from(encoded, start)
    end = start + _TABLE_SIZE.size + size
    entries = b"".join(_double(name, value) for name, value in doubles.items())
    table = _TABLE_SIZE.pack(size + len(entries)) + encoded[start + _TABLE_SIZE.size : end] + entries
    return encoded[:start] + table + encoded[end:]


def _double(name: str, value: float) -> bytes:
    if not math.isfinite(value):
        raise InvalidValue(f"header {name}", value, "a finite number", "RabbitMQ fails on infinity and NaN")
    return bytes([len(name.encode())]) + name.encode() + b"d" + struct.pack(">d", value)


def _encode_checked(checked: Mapping[str, Any]) -> bytes:
    try:
        return b"".join(pika.BasicProperties(**checked).encode())
    except UnicodeEncodeError as error:
        raise InvalidValue("properties", error.object, "text without lone surrogates") from None
    except (AMQPError, struct.error, TypeError, AttributeError, AssertionError, ValueError):
        raise InvalidValue(
            "properties",
            sorted(checked),
            "values that pika can encode",
            "Header values of type str always work",
        ) from None


def _short(name: str, value: Any) -> Any:
    shortstr(value, f"property {name}")
    return value


def _expiration(name: str, value: Any) -> str:
    text = str(value) if type(value) is int else value
    digits = text.lstrip("0") if isinstance(text, str) and text.isascii() and text.isdigit() else None
    # Count the digits first: Python refuses to convert thousands of them.
    if digits is None or len(digits) > 10 or int(digits or "0") >= 2**32:
        expected = "whole milliseconds below 2^32, as int or str"
        raise InvalidValue(
            f"property {name}", value, expected, "Leave it out for a message that does not expire"
        )
    return text


def _timestamp(name: str, value: Any) -> int:
    try:
        number = seconds(value) if isinstance(value, datetime) else value
    except OverflowError:
        number = None
    if type(number) is not int or not 0 <= number < 2**64:
        raise InvalidValue(
            f"property {name}", value, "a datetime or whole seconds since 1970", "Use int(time.time())"
        )
    return number


def _headers(_name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidValue(
            "headers", value, "a mapping of names to values", "A column of headers holds one mapping per row"
        )
    for name in ROUTING_HEADERS:
        keys = value.get(name, [])
        if not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
            raise InvalidValue(
                f"header {name}", keys, "a list of str", "RabbitMQ reads this header as further routing keys"
            )
    for name, content in value.items():
        shortstr(name, "header name")
        _check_integers(name, content)
    return dict(value)


def _check_integers(name: str, value: Any) -> None:
    """Refuse integers that some releases of pika would truncate without an error."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidValue(f"header {name}", value, "an integer of at most 64 bits", "Send it as a str")
    for content in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_integers(name, content)


_CHECKS: Final[dict[str, Any]] = dict.fromkeys(PROPERTIES, lambda _name, value: value) | {
    **dict.fromkeys(SHORT_STRINGS, _short),
    "expiration": _expiration,
    "headers": _headers,
    "timestamp": _timestamp,
}
