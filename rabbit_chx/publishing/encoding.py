"""The columns of a batch, checked and encoded: at one go where they are plain, else row by row.

Each function has a fast way for what columns mostly hold, and a slow one which also names the row that is wrong.
Whether both give the same bytes is a test's business. This file opens no socket.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import InvalidValue
from rabbit_chx.hashing import MAX_SHORTSTR, shortstr
from rabbit_chx.publishing.frames import (
    LISTS_OF_KEYS,
    SHORT_STRINGS,
    encode_properties,
    encode_property,
    flag_of,
    most_bytes,
    with_defaults,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["body_column", "checked_body", "column", "key_column", "property_column", "values"]

_LENGTHS: Final = [bytes([length]) for length in range(MAX_SHORTSTR + 1)]
_SIZE = struct.Struct(">I").pack
_FLAGS = struct.Struct(">H").pack
_TEXT: Final = b"S"


def values(given: Any) -> Iterable[Any]:
    """The Python values of a column; Arrow's and NumPy's give theirs in one call."""
    for method in ("to_pylist", "tolist"):
        if hasattr(given, method):
            found: Iterable[Any] = getattr(given, method)()
            return found
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise InvalidValue("column", given, "a list or an Arrow column", "Use publish()")
    return list(given)


def column(given: Any, count: int, what: str) -> Any:
    """A list of one value a row, or the value itself where it is one for all."""
    if not (isinstance(given, (list, tuple)) or hasattr(given, "to_pylist") or hasattr(given, "tolist")):
        return given
    found = list(values(given))
    if len(found) != count:
        raise InvalidValue(
            what,
            f"{len(found)} rows",
            f"as many as there are bodies, {count}",
            "One value alone, not in a list, stands for all rows",
        )
    return found


def body_column(given: Any, limit: int) -> list[bytes]:
    """Bodies as bytes, none of them longer than the broker takes."""
    found = list(values(given))
    if set(map(type, found)) <= {bytes} and max(map(len, found), default=0) <= limit:
        return found
    return [checked_body(body, limit, row) for row, body in enumerate(found)]


def checked_body(body: Any, limit: int, row: int) -> bytes:
    """One body as bytes; text is sent as UTF-8."""
    try:
        encoded = body.encode() if isinstance(body, str) else body
    except UnicodeEncodeError:
        encoded = None
    if not isinstance(encoded, (bytes, bytearray, memoryview)):
        raise InvalidValue(
            f"body in row {row}",
            "text with a lone surrogate" if isinstance(body, str) else type(body).__name__,
            "bytes, or str as UTF-8",
            "Json.dumps() makes text of most things",
        )
    if len(encoded) > limit:
        raise InvalidValue(
            f"body in row {row}",
            f"{len(encoded)} bytes",
            f"at most {limit} bytes",
            "The broker would close the channel; if its max_message_size is larger, say most_body_bytes",
        )
    return bytes(encoded)


def key_column(given: Any, count: int, what: str = "the routing key") -> list[bytes]:
    """Routing keys, or the names of exchanges, as they go over the wire."""
    keys = column(given, count, f"{what}s")
    if not isinstance(keys, list):
        return [shortstr(keys, what)] * count
    encoded = _short_strings(keys)
    if encoded is not None:
        return encoded
    return [shortstr(key, f"{what} in row {row}") for row, key in enumerate(keys)]


def property_column(
    constant: Mapping[str, Any], varying: Mapping[str, list[Any]], count: int, *, frame_max: int
) -> list[bytes]:
    """The properties of each row as they stand in its content header."""
    if not varying:
        return [encode_properties(constant, frame_max=frame_max)] * count
    encoded = _joined(constant, varying, count, frame_max)
    return encoded if encoded is not None else _row_by_row(constant, varying, count, frame_max)


def _row_by_row(
    constant: Mapping[str, Any], varying: Mapping[str, list[Any]], count: int, frame_max: int
) -> list[bytes]:
    encoded = []
    for row in range(count):
        own = {name: found[row] for name, found in varying.items()}
        try:
            encoded.append(encode_properties({**constant, **own}, frame_max=frame_max))
        except InvalidValue as error:
            raise InvalidValue(f"{error.what} in row {row}", error.got, error.expected, error.hint) from None
    return encoded


def _joined(
    constant: Mapping[str, Any], varying: Mapping[str, list[Any]], count: int, frame_max: int
) -> list[bytes] | None:
    """Flags and fields put together; None where a row has no value, or takes a closer look."""
    if any(None in found for found in varying.values()):
        return None
    alike = {name: [value] for name, value in with_defaults(constant).items() if name not in varying}
    try:
        columns = {name: _fields(name, found) for name, found in {**alike, **varying}.items()}
    except InvalidValue:
        return None
    # A content header holds its fields in the order of their flags.
    names = sorted(columns, key=flag_of, reverse=True)
    flags = _FLAGS(sum(map(flag_of, names)))
    fields = [columns[name] * count if name in alike else columns[name] for name in names]
    encoded = [flags + b"".join(row) for row in zip(*fields, strict=True)]
    return encoded if max(map(len, encoded), default=0) <= most_bytes(frame_max) else None


def _fields(name: str, found: list[Any]) -> list[bytes]:
    """A property's values, each as it stands in a content header."""
    if name in SHORT_STRINGS:
        encoded = _short_strings(found)
        if encoded is not None:
            return [_LENGTHS[len(text)] + text for text in encoded]
    if name == "headers":
        names: dict[str, bytes] = {}
        return [_text_table(table, names) or encode_property(name, table) for table in found]
    known: dict[Any, bytes] = {}
    return [_remembered(known, name, value) for value in found]


def _remembered(known: dict[Any, bytes], name: str, value: Any) -> bytes:
    """What pika makes of a value, asked once for each; 1, 1.0 and True are one key, so by type."""
    key = (type(value), value) if isinstance(value, (str, int)) else None
    if key is None:
        return encode_property(name, value)
    if key not in known:
        known[key] = encode_property(name, value)
    return known[key]


def _text_table(table: Any, names: dict[str, bytes]) -> bytes | None:
    """A table of headers that all are text; None for any other."""
    if type(table) is not dict or set(map(type, table.values())) != {str}:
        return None
    pieces: list[bytes] = []
    for name, text in table.items():
        start = names.get(name)
        if start is None:
            if name in LISTS_OF_KEYS:
                return None
            short = shortstr(name, "the name of a header")
            start = names[name] = _LENGTHS[len(short)] + short + _TEXT
        encoded = text.encode()
        pieces += (start, _SIZE(len(encoded)), encoded)
    content = b"".join(pieces)
    return _SIZE(len(content)) + content


def _short_strings(found: list[Any]) -> list[bytes] | None:
    """A column of text as UTF-8, or of bytes as they are; None where one is neither, or too long."""
    kinds = set(map(type, found))
    try:
        encoded = [text.encode() for text in found] if kinds == {str} else found
    except UnicodeEncodeError:
        return None
    plain = kinds <= {str} or kinds == {bytes}
    return encoded if plain and max(map(len, encoded), default=0) <= MAX_SHORTSTR else None
