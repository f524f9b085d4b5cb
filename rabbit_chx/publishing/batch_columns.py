"""The columns of a batch, checked and encoded: in one pass where they are plain, otherwise row by row.

Each function has a fast path for what columns usually hold, and a slow path that also names the invalid row. A test
checks that both return the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

from rabbit_chx.base.text import counted
from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.message_fields import PROPERTIES, ROUTING_HEADERS, TEXT
from rabbit_chx.mirror.hashing import MAX_SHORTSTR, shortstr
from rabbit_chx.publishing.properties import (
    encode_properties,
    encode_property,
    max_property_bytes,
    with_defaults,
)

T = TypeVar("T")
_LENGTHS: Final = [bytes([length]) for length in range(MAX_SHORTSTR + 1)]
_SIZE = struct.Struct(">I").pack
_FLAGS = struct.Struct(">H").pack
_TEXT: Final = b"S"


def values(given: Any) -> Iterable[Any]:
    """Return the Python values of a column; Arrow and NumPy columns convert theirs in one call."""
    for method in ("to_pylist", "tolist"):
        if hasattr(given, method):
            found: Iterable[Any] = getattr(given, method)()
            return found
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise InvalidValue("column", given, "a list or an Arrow column", "Use publish() for one message")
    return list(given)


def column(given: Any, count: int, what: str) -> Any:
    """Return a list with one value per row, or the value itself where it applies to all rows."""
    if hasattr(given, "tolist") and not getattr(given, "shape", True):
        return given.tolist()  # a number of NumPy
    if not (hasattr(given, "to_pylist") or hasattr(given, "tolist")) and (
        isinstance(given, (str, bytes, bytearray))
        or hasattr(given, "items")
        or not hasattr(given, "__iter__")
    ):
        return given
    found = list(values(given))
    if len(found) != count:
        raise InvalidValue(
            f"column {what}",
            counted(len(found), "row"),
            f"as many rows as bodies ({count})",
            "A single value that is not in a list applies to all rows",
        )
    return found


def body_column(given: Any, limit: int) -> list[bytes]:
    """Return bodies as bytes, none longer than the broker accepts."""
    found = list(values(given))
    if set(map(type, found)) <= {bytes} and max(map(len, found), default=0) <= limit:
        return found
    return by_row(found, lambda body: checked_body(body, limit))


def checked_body(body: Any, limit: int) -> bytes:
    """Return one body as bytes; a str is encoded as UTF-8."""
    try:
        encoded = body.encode() if isinstance(body, str) else body
    except UnicodeEncodeError:
        encoded = None
    if not isinstance(encoded, (bytes, bytearray, memoryview)):
        got = "a str with a lone surrogate" if isinstance(body, str) else type(body).__name__
        raise InvalidValue("body", got, "bytes or str", "Encode other types first, as JSON for example")
    if len(encoded) > limit:
        raise InvalidValue(
            "body",
            f"{len(encoded)} bytes",
            f"at most {limit} bytes",
            "If the broker's max_message_size is larger, pass max_message_bytes",
        )
    return bytes(encoded)


def key_column(given: Any, count: int, what: str = "routing key") -> list[bytes]:
    """Return routing keys, or exchange names, as they are sent."""
    keys = column(given, count, what)
    if not isinstance(keys, list):
        return [shortstr(keys, what)] * count
    encoded = short_strings(keys)
    if encoded is not None:
        return encoded
    return by_row(keys, lambda key: shortstr(key, what))


def property_column(
    constant: Mapping[str, Any], varying: Mapping[str, list[Any]], count: int, *, frame_max: int
) -> list[bytes]:
    """Return the properties of each row, encoded as in a content header."""
    if not varying:
        return [encode_properties(constant, frame_max=frame_max)] * count
    encoded = _joined(constant, varying, count, frame_max)
    if encoded is not None:
        return encoded

    def encoded_row(row: int) -> bytes:
        own = {name: found[row] for name, found in varying.items()}
        return encode_properties({**constant, **own}, frame_max=frame_max)

    return by_row(range(count), encoded_row)


def by_row(found: Iterable[Any], check: Callable[[Any], T]) -> list[T]:
    """Check or encode values one by one; the error about an invalid one names its row."""
    checked = []
    for row, value in enumerate(found):
        try:
            checked.append(check(value))
        except InvalidValue as error:
            what = f"{error.what} in row {row}"
            raise InvalidValue(what, error.got, error.expected, error.hint) from None
    return checked


def _joined(
    constant: Mapping[str, Any], varying: Mapping[str, list[Any]], count: int, frame_max: int
) -> list[bytes] | None:
    """Join flags and encoded fields; None if a row lacks a value or needs the slow path."""
    if any(None in found for found in varying.values()):
        return None
    alike = {name: [value] for name, value in with_defaults(constant).items() if name not in varying}
    try:
        columns = {name: _fields(name, found) for name, found in {**alike, **varying}.items()}
    except (InvalidValue, UnicodeEncodeError, KeyError):
        return None
    # A content header holds its fields in the order of their flags.
    names = sorted(columns, key=lambda name: PROPERTIES[name].flag, reverse=True)
    flags = _FLAGS(sum(PROPERTIES[name].flag for name in names))
    fields = [columns[name] * count if name in alike else columns[name] for name in names]
    encoded = [flags + b"".join(row) for row in zip(*fields, strict=True)]
    return encoded if max(map(len, encoded), default=0) <= max_property_bytes(frame_max) else None


def _fields(name: str, found: list[Any]) -> list[bytes]:
    if PROPERTIES[name].kind is TEXT:
        encoded = short_strings(found)
        if encoded is not None:
            return [_LENGTHS[len(text)] + text for text in encoded]
    if name == "headers":
        names: dict[str, bytes] = {}
        return [_text_table(table, names) or encode_property(name, table) for table in found]
    # Encode a value once for all rows that hold it; the type counts, too, since 1 == True.
    cached = lru_cache(maxsize=None, typed=True)(partial(encode_property, name))
    return [
        cached(value) if isinstance(value, (str, int)) else encode_property(name, value) for value in found
    ]


def _text_table(table: Any, names: dict[str, bytes]) -> bytes | None:
    """Encode headers whose values are all str; None for any others."""
    if type(table) is not dict or set(map(type, table.values())) != {str}:
        return None
    pieces: list[bytes] = []
    for name, text in table.items():
        start = names.get(name)
        if start is None:
            if name in ROUTING_HEADERS:
                return None
            short = shortstr(name, "header name")
            start = names[name] = _LENGTHS[len(short)] + short + _TEXT
        encoded = text.encode()
        pieces += (start, _SIZE(len(encoded)), encoded)
    content = b"".join(pieces)
    return _SIZE(len(content)) + content


def short_strings(found: list[Any]) -> list[bytes] | None:
    """Return a column of str as UTF-8, or of bytes unchanged; None if a value is neither, or too long."""
    kinds = set(map(type, found))
    try:
        encoded = [text.encode() for text in found] if kinds == {str} else found
    except UnicodeEncodeError:
        return None
    plain = kinds <= {str} or kinds == {bytes}
    return encoded if plain and max(map(len, encoded), default=0) <= MAX_SHORTSTR else None
