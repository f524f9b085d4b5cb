"""Checks of the numbers that callers pass."""

from __future__ import annotations

import math
from operator import index
from typing import Any, Final

from rabbit_chx.errors import InvalidValue

LONGEST: Final = 1e9
"""Seconds that anything waits at most, which are 31 years: Python takes no more than 292."""


def as_integer(value: Any) -> int | None:
    """Return an integer of any library as one of Python; None for any other value, a bool included."""
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None


def check_integer(what: str, got: Any, least: int, most: int) -> int:
    """Return an integer; raise InvalidValue for any other value, and for one outside the limits.

    >>> check_integer("prefetch", 50, 1, 65_535)
    50
    """
    if not isinstance(got, int) or isinstance(got, bool) or not least <= got <= most:
        raise InvalidValue(what, got, f"an integer from {least} to {most}")
    return got


def check_seconds(what: str, got: Any) -> float:
    """Return a number of seconds, at most `LONGEST`; raise InvalidValue for any other value.

    >>> check_seconds("backoff", 0.5)
    0.5
    """
    if not isinstance(got, (int, float)) or isinstance(got, bool) or not 0 <= got < math.inf:
        raise InvalidValue(what, got, "seconds, at least 0")
    return min(got, LONGEST)
