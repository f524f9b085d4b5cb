"""The type system of AMQP 1.0: bytes to Python values, and values to text.

Part 1 of the specification (amqp-core-types) defines a constructor code for each encoding of a value.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import uuid
from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np

from rabbit_chx.messages.message_fields import moment
from rabbit_chx.mirror.fields import MILLISECOND

MAX_ITEMS: Final = 150_000
"""In lists, maps and arrays of a message, together: a publisher can compress millions of items to a few kilobytes.

No message that was published over AMQP 0-9-1 has more, since its headers fit into a frame of 131,072 bytes, the broker's default.
"""
_BYTES_OF_ITEM: Final = 32
"""Longer texts in lists and maps count as several items."""
_DEEPEST: Final = 32


class Malformed(Exception):
    """The bytes are not valid AMQP 1.0. The caller adds the stream and the offset."""


class TooManyItems(Malformed):
    """A message is valid, but has more items than its reader accepts."""

    hint = "StreamReader(max_items=...) changes the limit"


class Budget:
    """What the values of one message may still cost a reader."""

    __slots__ = ("_most", "depth", "items")

    def __init__(self, max_items: int = MAX_ITEMS) -> None:
        self.depth: int = 0
        self.items: int = max_items
        self._most = max_items

    def deeper(self) -> None:
        """Enter a value within a value."""
        if self.depth > _DEEPEST:
            raise Malformed(f"values are nested more than {_DEEPEST} deep")
        self.depth += 1

    def take(self, count: int) -> None:
        """Count the items of a list, a map or an array, before they are decoded."""
        self.items -= count
        if self.items < 0:
            raise TooManyItems(
                f"its lists and maps have more than {self._most} items of {_BYTES_OF_ITEM} bytes"
            )


class Milliseconds(int):
    """A timestamp: milliseconds since 1970."""

    __slots__ = ()


def read(data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
    """Decode the value at ``at`` and return it with the position of the next value.

    Integers become `int`, timestamps `Milliseconds`. Strings and symbols become `str`, or `bytes` if they are not UTF-8.
    The descriptor of a described value is dropped. A decimal becomes its bytes.
    """
    code = _byte_at(data, at)
    if code in _FIXED:
        return read_as(code, data, at + 1, budget)
    budget.deeper()
    if code == 0:
        _, at = read(data, at + 1, budget)
        found = read(data, at, budget)
    else:
        found = read_as(code, data, at + 1, budget)
    budget.depth -= 1
    return found


def skip(data: bytes, at: int) -> int:
    """Return the position of the value after the one at ``at``, without decoding this one."""
    values = 1
    while values:
        code = _byte_at(data, at)
        at += 1
        if code == 0:  # a descriptor and a value follow
            values += 1
            continue
        if code in _FIXED:
            size = _FIXED[code][0]
        elif code in _VARIABLE:
            size, at = _number(data, at, _VARIABLE[code][0])
        else:
            raise Malformed(f"unknown constructor 0x{code:02x}")
        _, at = _take(data, at, size)
        values -= 1
    return at


def read_only(names: Collection[str], data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
    """Decode the value at ``at`` as `read` does; of a map only the values with these names."""
    code = _byte_at(data, at)
    if code not in _MAPS:
        return read(data, at, budget)
    width = _VARIABLE[code][0]
    size, at = _number(data, at + 1, width)
    raw, end = _take(data, at, size)
    count, at = _number(raw, 0, width)
    budget.take(count)
    found = {}
    for _ in range(count // 2):
        name, at = read(raw, at, budget)
        if isinstance(name, str) and name in names:
            found[name], at = read(raw, at, budget)
        else:
            at = skip(raw, at)
    return found, end


def read_as(code: int, data: bytes, at: int, budget: Budget) -> tuple[Any, int]:
    """Decode a value whose constructor ends at ``at``."""
    if code in _FIXED:
        size, decode = _FIXED[code]
        raw, at = _take(data, at, size)
        return decode(raw), at
    if code not in _VARIABLE:
        raise Malformed(f"unknown constructor 0x{code:02x}")
    width, decode_variable = _VARIABLE[code]
    size, at = _number(data, at, width)
    raw, at = _take(data, at, size)
    return decode_variable(raw, width, budget), at


def _byte_at(data: bytes, at: int) -> int:
    if at >= len(data):
        raise Malformed("the data ends within a value")
    return data[at]


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    """Return the next ``size`` bytes and their end."""
    if at + size > len(data):
        raise Malformed(f"a value of {size} bytes exceeds the {len(data) - at} remaining bytes")
    return data[at : at + size], at + size


def _number(data: bytes, at: int, width: int) -> tuple[int, int]:
    """Return an unsigned number and its end."""
    raw, at = _take(data, at, width)
    return int.from_bytes(raw, "big"), at


def _binary(raw: bytes, _: int, budget: Budget) -> bytes:
    if budget.depth > 1:  # a body may have any size; in a list, JSON may need six times the size
        budget.take(len(raw) // _BYTES_OF_ITEM)
    return raw


def _text(raw: bytes, width: int, budget: Budget) -> str | bytes:
    _binary(raw, width, budget)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _items(raw: bytes, width: int, budget: Budget) -> list[Any]:
    count, at = _number(raw, 0, width)
    budget.take(count)
    items: list[Any] = []
    while (left := count - len(items)) > 0:
        code = raw[at] if at < len(raw) else -1
        if code in _CONSTANTS:
            run = _RUN.match(raw, at, at + left)
            assert run is not None
            items += map(_CONSTANTS.__getitem__, run[0])
            at = run.end()
        elif code in _FIXED and (end := at + 1 + _FIXED[code][0]) <= len(raw):
            items.append(_FIXED[code][1](raw[at + 1 : end]))
            at = end
        elif code in _SHORT and at + 1 < len(raw) and (end := at + 2 + raw[at + 1]) <= len(raw):
            items.append(_SHORT[code](raw[at + 2 : end], 1, budget))
            at = end
        else:
            item, at = read(raw, at, budget)
            items.append(item)
    if at != len(raw):
        raise Malformed(f"{len(raw) - at} bytes follow the last item of a list or map")
    return items


def _map(raw: bytes, width: int, budget: Budget) -> dict[Any, Any]:
    items = _items(raw, width, budget)
    if len(items) % 2:
        raise Malformed("a map has a key without a value")
    return {_hashable(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _hashable(key: Any) -> Any:
    return as_text(key) if isinstance(key, (list, dict)) else key


def _array(raw: bytes, width: int, budget: Budget) -> list[Any]:
    budget.deeper()
    count, at = _number(raw, 0, width)
    if count > len(raw):  # items of zero bytes would allow any count
        raise Malformed(f"an array of {len(raw)} bytes has {count} items")
    budget.take(count)
    code = _byte_at(raw, at)
    at += 1
    if code == 0:
        _, at = read(raw, at, budget)
        code, at = _byte_at(raw, at), at + 1
    items = []
    for _ in range(count):
        item, at = read_as(code, raw, at, budget)
        items.append(item)
    if at != len(raw):
        raise Malformed(f"{len(raw) - at} bytes follow the last item of an array")
    budget.depth -= 1
    return items


def _integer(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


def _float(raw: bytes) -> float:
    """Return 0.1 for the float 0.1, instead of the double 0.10000000149011612."""
    return float(str(np.frombuffer(raw, ">f4")[0]))


def _char(raw: bytes) -> str:
    code = _integer(raw)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise Malformed(f"0x{code:x} is not a Unicode character")
    return chr(code)


INTEGERS: Final = {
    0x43: (0, False),
    0x44: (0, False),
    0x50: (1, False),
    0x51: (1, True),
    0x52: (1, False),
    0x53: (1, False),
    0x54: (1, True),
    0x55: (1, True),
    0x60: (2, False),
    0x61: (2, True),
    0x70: (4, False),
    0x71: (4, True),
    0x80: (8, False),
    0x81: (8, True),
}
"""Constructor -> size in bytes, and whether the integer is signed."""

_FIXED: Final[dict[int, tuple[int, Callable[[bytes], Any]]]] = {
    **{code: (size, _signed if signed else _integer) for code, (size, signed) in INTEGERS.items()},
    0x40: (0, lambda _: None),
    0x41: (0, lambda _: True),
    0x42: (0, lambda _: False),
    0x45: (0, lambda _: []),
    0x56: (1, lambda raw: raw != b"\0"),
    0x72: (4, _float),
    0x73: (4, _char),
    0x74: (4, bytes),
    0x82: (8, lambda raw: struct.unpack(">d", raw)[0]),
    0x83: (8, lambda raw: Milliseconds(_signed(raw))),
    0x84: (8, bytes),
    0x94: (16, bytes),
    0x98: (16, lambda raw: uuid.UUID(bytes=raw)),
}
"""Constructor -> size and decoder."""

_VARIABLE: Final[dict[int, tuple[int, Callable[[bytes, int, Budget], Any]]]] = {
    0xA0: (1, _binary),
    0xA1: (1, _text),
    0xA3: (1, _text),
    0xB0: (4, _binary),
    0xB1: (4, _text),
    0xB3: (4, _text),
    0xC0: (1, _items),
    0xC1: (1, _map),
    0xD0: (4, _items),
    0xD1: (4, _map),
    0xE0: (1, _array),
    0xF0: (4, _array),
}
"""Constructor -> width of the size and decoder."""


_MAPS: Final = (0xC1, 0xD1)
_SHORT: Final = {code: _VARIABLE[code][1] for code in (0xA0, 0xA1, 0xA3)}
_CONSTANTS: Final[dict[int, Any]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
"""Values without bytes, of which a list may have so many that each of them must cost little."""
_RUN: Final = re.compile(b"[\x40-\x44]+")


def as_text(value: Any) -> str | None:
    """Convert a value to the text of a header or property.

    ==========================  =================================================================================
    string, symbol, char        the text
    binary, text not in UTF-8   base64, which ``unbase64`` of Spark reads
    boolean                     ``true`` or ``false``
    integers                    decimal digits
    float, double               the shortest digits that identify the number, ``inf``, ``-inf`` or ``nan``
    timestamp                   ISO 8601 in UTC, ``2023-11-14T22:13:20Z``, with milliseconds unless they are zero;
                                outside the years 1 to 9999, the milliseconds since 1970 as an integer
    uuid                        ``00112233-4455-6677-8899-aabbccddeeff``
    decimal32, 64, 128          base64 of its bytes
    list, array, map            JSON; items follow this table, except that null, booleans and numbers remain JSON values
    null                        null
    ==========================  =================================================================================

    In Spark, ``cast`` or ``unbase64`` of a header restores the value that the sink sent.
    """
    plain = _plain(value)
    return plain if isinstance(plain, str) or plain is None else json.dumps(plain, **_JSON)


def as_bytes(value: Any) -> bytes | None:
    """Return binary values as they are, and the text of others in UTF-8."""
    if isinstance(value, bytes) or value is None:
        return value
    return (as_text(value) or "").encode()


_AS_IT_IS: Final = {str, bool, int, type(None)}
_JSON: Final[dict[str, Any]] = {"ensure_ascii": False, "separators": (",", ":")}


def _plain(value: Any) -> Any:
    """Convert a value to one that `json` can write."""
    if type(value) in _AS_IT_IS:
        return value
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case Milliseconds():
            return _iso(value)
        case uuid.UUID():
            return str(value)
        case float() if value - value != 0:  # JSON has no infinity or NaN
            return str(value)
        case list():
            return value if _AS_IT_IS.issuperset(map(type, value)) else [_plain(item) for item in value]
        case dict():
            return {as_text(key) or "": _plain(item) for key, item in value.items()}
    return value


def _iso(milliseconds: int) -> str:
    found = moment(milliseconds, MILLISECOND)
    if found is None:
        return str(int(milliseconds))
    precision = "milliseconds" if milliseconds % 1000 else "seconds"
    return found.replace(tzinfo=None).isoformat(timespec=precision) + "Z"
