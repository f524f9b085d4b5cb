"""Properties of messages whose headers keep every value that a broker can send, and the frame that carries them.

pika cuts a float off to an integer, reads some integers with the wrong sign (up to 1.3), and drops the connection at a timestamp after
the year 9999 or at deep nesting. Each redelivery would then end the next connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from copy import copy
from datetime import UTC, datetime
from typing import Any, Final, Self

from pika import BasicProperties, data, frame
from pika.compat import long

from rabbit_chx.broker.deliveries import text_or_bytes
from rabbit_chx.mirror.fields import Field

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_DOUBLE: Final = struct.Struct(">d")
_FRAME: Final = struct.Struct(">BHIHHQ")
"""Type, channel and size; then class, weight and body size."""
_BEFORE_SIZED: Final = 7
_HEADER, _END = 2, 0xCE
_LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999, the latest time of Python."""
_DEEPEST: Final = 32


class Properties(BasicProperties):  # type: ignore[misc] # pika has no types
    """Properties as pika decodes and encodes them, except for the headers.

    Floats are `float`, timestamps are aware, and a timestamp after the year 9999 is ``Field("T", seconds)``. A table or an array that
    is nested more than 32 deep stays encoded.
    """

    headers: dict[str | bytes, Any] | None

    def decode(self, encoded: bytes, offset: int = 0) -> Self:
        """Take the properties from a content header."""
        (flags,) = _U16.unpack_from(encoded, offset)
        if not flags & self.FLAG_HEADERS:
            super().decode(encoded, offset)
            return self
        at = self._headers_at(encoded, offset)
        start = at + _U32.size
        stop = start + _U32.unpack_from(encoded, at)[0]
        others = _U16.pack(flags & ~self.FLAG_HEADERS) + encoded[offset + _U16.size : at]
        super().decode(others + encoded[stop:])
        self.headers = _table_items(encoded, start, stop, 1)
        return self

    def encode(self) -> list[bytes]:
        """Return the pieces of a content header."""
        if not self.headers:
            pieces: list[bytes] = super().encode()
            return pieces
        others = copy(self)
        others.headers = {}
        encoded = b"".join(others.encode())
        start = self._headers_at(encoded, 0)
        return [encoded[:start], table(self.headers), encoded[start + _U32.size :]]

    def _headers_at(self, encoded: bytes, offset: int) -> int:
        """Return where the headers begin: after two strings, each of which may be missing."""
        (flags,) = _U16.unpack_from(encoded, offset)
        at = offset + _U16.size
        for flag in (self.FLAG_CONTENT_TYPE, self.FLAG_CONTENT_ENCODING):
            if flags & flag:
                at += 1 + encoded[at]
        return at


def content_header(received: bytes) -> tuple[int, frame.Header] | None:
    """Return the size and the contents of a content header; None if the data begins with anything else or is incomplete."""
    if received[:1] != bytes([_HEADER]) or len(received) < _FRAME.size:
        return None
    _, channel, size, _, _, body_size = _FRAME.unpack_from(received)
    end = _BEFORE_SIZED + size
    if received[end : end + 1] != bytes([_END]):
        return None
    return end + 1, frame.Header(channel, body_size, decoded(received[_FRAME.size : end]))


def decoded(encoded: bytes) -> Properties:
    """Return the properties; none if they cannot be decoded, because each redelivery would end the next connection."""
    try:
        return Properties().decode(encoded)
    except Exception:  # noqa: BLE001 - a publisher may send any bytes
        return Properties()


def _moment(seconds: int) -> datetime | Field:
    return datetime.fromtimestamp(seconds, UTC) if seconds <= _LAST_SECOND else Field("T", seconds)


_FIXED: Final[dict[bytes, tuple[struct.Struct, Callable[[Any], Any]]]] = {
    b"b": (struct.Struct(">b"), int),
    b"B": (struct.Struct(">B"), int),
    b"l": (struct.Struct(">q"), long),
    b"f": (struct.Struct(">f"), float),
    b"d": (_DOUBLE, float),
    b"T": (_U64, _moment),
}
"""The types of fixed size that a supported release of pika decodes to another value."""


def decode_value(encoded: bytes, at: int, depth: int = 1) -> tuple[Any, int]:
    """Decode the value at ``at`` and return it with the start of the next one."""
    kind = encoded[at : at + 1]
    if kind in _FIXED:
        layout, convert = _FIXED[kind]
        return convert(layout.unpack_from(encoded, at + 1)[0]), at + 1 + layout.size
    if kind not in (b"S", b"A", b"F"):
        value: tuple[Any, int] = data.decode_value(encoded, at)
        return value
    start = at + 1 + _U32.size
    stop = start + _U32.unpack_from(encoded, at + 1)[0]
    if kind == b"S":
        return text_or_bytes(encoded[start:stop]), stop
    if depth > _DEEPEST:
        return encoded[start:stop], stop
    items = _array_items if kind == b"A" else _table_items
    return items(encoded, start, stop, depth + 1), stop


def _array_items(encoded: bytes, at: int, stop: int, depth: int) -> list[Any]:
    items = []
    while at < stop:
        item, at = decode_value(encoded, at, depth)
        items.append(item)
    return items


def _table_items(encoded: bytes, at: int, stop: int, depth: int) -> dict[str | bytes, Any]:
    items = {}
    while at < stop:
        name, at = data.decode_short_string(encoded, at)
        items[name], at = decode_value(encoded, at, depth)
    return items


def table(items: dict[str | bytes, Any]) -> bytes:
    """Encode headers, with their size."""
    pieces: list[bytes] = []
    for name, value in items.items():
        data.encode_short_string(pieces, name)
        pieces.append(_encoded(value))
    return _sized(b"", pieces)


def _encoded(value: Any) -> bytes:
    match value:
        case float():
            return b"d" + _DOUBLE.pack(value)
        case Field(tag="T"):
            return b"T" + _U64.pack(value.value)
        case dict():
            return b"F" + table(value)
        case list():
            return _sized(b"A", map(_encoded, value))
    pieces: list[bytes] = []
    data.encode_value(pieces, value)
    return b"".join(pieces)


def _sized(tag: bytes, pieces: Iterable[bytes]) -> bytes:
    joined = b"".join(pieces)
    return tag + _U32.pack(len(joined)) + joined
