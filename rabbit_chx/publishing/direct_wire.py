"""Headers and properties as they stand in an encoded message: what the exchange hashes is read, a header is added.

What is hashed is taken from the bytes that leave and not from the Python value behind them: up to 3.12 a header is
hashed with its AMQP type, which the client chose when it encoded the value. Pure: this file opens no socket and
knows nothing of exchanges.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.fields import Field

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KEY_HEADER", "add_key", "cut", "field_of", "headers_of", "property_of"]

KEY_HEADER: Final = "x-rabbit-chx-key"
"""The header of a message that went straight: the routing key that it was published with."""

_ENTRY: Final = bytes([len(KEY_HEADER)]) + KEY_HEADER.encode() + b"S"
_SIZE: Final = struct.Struct(">I")
_FLAGS: Final = struct.Struct(">H")
_HAS_HEADERS: Final = 0x2000
_BEFORE_HEADERS: Final = (0x8000, 0x4000)  # content type and content encoding, both short strings
_OCTETS: Final = (0x1000, 0x0800)  # delivery mode and priority, which follow the headers
_SHORT_STRINGS: Final = {
    "correlation_id": 0x0400,
    "reply_to": 0x0200,
    "expiration": 0x0100,
    "message_id": 0x0080,
}

# rabbit_binary_parser.erl, parse_table/1: the tags of values of a fixed size. V has no value, others tell their size.
_CODES: Final = {
    "t": "?", "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q",
    "f": "f", "d": "d", "D": "Bi", "T": "Q",
}  # fmt: skip
_FIXED: Final = {ord(tag): struct.Struct(f">{code}") for tag, code in _CODES.items()}
_VOID: Final = ord("V")


def cut(properties: bytes) -> tuple[bytes, bytes, bytes]:
    """Encoded properties, cut so that a header can be added: what precedes the header table, its entries, the rest."""
    (flags,) = _FLAGS.unpack_from(properties)
    at = _FLAGS.size
    for flag in _BEFORE_HEADERS:
        if flags & flag:
            at += 1 + properties[at]
    before = _FLAGS.pack(flags | _HAS_HEADERS) + properties[_FLAGS.size : at]
    if not flags & _HAS_HEADERS:
        return before, b"", properties[at:]
    (size,) = _SIZE.unpack_from(properties, at)
    at += _SIZE.size
    return before, properties[at : at + size], properties[at + size :]


def add_key(parts: tuple[bytes, bytes, bytes], key: bytes) -> bytes:
    """Encoded properties with the header that holds the routing key."""
    before, table, after = parts
    size = len(table) + len(_ENTRY) + _SIZE.size + len(key)
    return b"".join((before, _SIZE.pack(size), table, _ENTRY, _SIZE.pack(len(key)), key, after))


def property_of(properties: bytes, name: str) -> bytes | None:
    """The correlation id or message id in encoded properties; None where it is not there."""
    (flags,) = _FLAGS.unpack_from(properties)
    _, _, rest = cut(properties)
    at = sum(bool(flags & octet) for octet in _OCTETS)
    for known, flag in _SHORT_STRINGS.items():
        if flags & flag:
            end = at + 1 + rest[at]
            if known == name:
                return rest[at + 1 : end]
            at = end
    return None


def headers_of(properties: bytes, name: bytes) -> list[bytes]:
    """All values that a header has in encoded properties, each with its tag; seldom more than one."""
    _, table, _ = cut(properties)
    if name not in table:
        return []
    return [value for known, value in _entries(table) if known == name]


def field_of(value: bytes) -> Field:
    """An encoded value that begins with its tag."""
    tag = value[0]
    if tag in _FIXED:
        parts: tuple[Any, ...] = _FIXED[tag].unpack_from(value, 1)
        return Field(chr(tag), parts if len(parts) > 1 else parts[0])
    content = value[5:]
    if tag == ord("A"):
        return Field("A", tuple(map(field_of, _items(content))))
    if tag == ord("F"):
        return Field("F", tuple((name, field_of(item)) for name, item in _entries(content)))
    return Field(chr(tag), None if tag == _VOID else content)


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(table):
        start = at + 1 + table[at]
        end = _end(table, start)
        yield table[at + 1 : start], table[start:end]
        at = end


def _items(array: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(array):
        end = _end(array, at)
        yield array[at:end]
        at = end


def _end(encoded: bytes, at: int) -> int:
    """Where the value ends whose tag stands there."""
    tag = encoded[at]
    if tag in _FIXED:
        return at + 1 + _FIXED[tag].size
    return at + 1 if tag == _VOID else at + 5 + int.from_bytes(encoded[at + 1 : at + 5])
