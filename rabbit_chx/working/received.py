"""What others have written into a message or a record: types and sizes are checked here, and no error about it ends a member. No IO.

The functions that check a value of JSON raise ValueError for one of another type or size.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rabbit_chx.working.settings import log

_T = TypeVar("_T")
_LONGEST_NAME: Final = 255
"""Bytes of the name of a queue or a host."""
_MOST: Final = 1 << 63
"""More than any number that a member or a command writes."""


def contained(read: Callable[[], _T], otherwise: _T, what: object) -> _T:
    """Read what others have written. If that raises an unexpected error, log it and return ``otherwise``."""
    try:
        return read()
    except Exception:  # noqa: BLE001 - of any kind, since others wrote the input
        log.warning("%r cannot be read, and commands nothing", what, exc_info=True)
        return otherwise


def object_in(encoded: object, most: int) -> dict[str, Any]:
    """The JSON object in a text of at most this size. A longer text is not parsed, which takes many times its memory."""
    if not isinstance(encoded, (str, bytes)) or len(encoded) > most:
        raise ValueError(f"expected a text of at most {most} bytes")
    try:
        return as_object(json.loads(encoded))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _as(kind: type[_T], value: object, what: str) -> _T:
    if isinstance(value, kind):
        return value
    raise ValueError(f"expected {what}")


def as_object(value: object) -> dict[str, Any]:
    """An object."""
    return _as(dict, value, "an object")


def as_list(value: object) -> list[Any]:
    """A list."""
    return _as(list, value, "a list")


def as_text(value: object) -> str:
    """A text."""
    return _as(str, value, "a text")


def as_bool(value: object) -> bool:
    """True or false."""
    return _as(bool, value, "true or false")


def as_name(value: object) -> str:
    """A name that a client can send to a broker."""
    name = as_text(value)
    if len(name.encode()) > _LONGEST_NAME or not {"\r", "\n"}.isdisjoint(name):  # a broker drops line breaks
        raise ValueError(f"expected a name of at most {_LONGEST_NAME} bytes, without line breaks")
    return name


def as_names(value: object) -> tuple[str, ...]:
    """A list of names."""
    return tuple(map(as_name, as_list(value)))


def as_whole(value: object) -> int:
    """An integer, of a size that can be shown."""
    number = _as(int, value, "an integer")
    if isinstance(value, bool) or abs(number) >= _MOST:
        raise ValueError("expected an integer of 64 bits")
    return number


def as_amount(value: object) -> float:
    """A rate, or a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST:
        raise ValueError("expected a number, at least 0")
    return value
