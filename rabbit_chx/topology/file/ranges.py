"""Ranges of queue names: ``orders.{00..15}`` expands to sixteen names.

A name has at most one range, from low to high. A leading zero fixes the width of all numbers. A brace that belongs
to the name is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from rabbit_chx.base.text import too_long
from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.mirror.hashing import MAX_SHORTSTR

_Value = TypeVar("_Value")

MAX_RANGE: Final = 10_000
"""The number of names in one range."""

_RANGE: Final = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")
_TOKEN: Final = re.compile(r"\{\{|\}\}|\{[0-9]+\.\.[0-9]+\}|[{}]|[^{}]+")


def expand(name: str) -> tuple[str, ...]:
    """Expand a name with a range into names in numeric order; without a range, return the name itself.

    >>> expand("orders.{08..10}")
    ('orders.08', 'orders.09', 'orders.10')
    >>> expand("{{id}}")
    ('{id}',)
    """
    tokens = _TOKEN.findall(name)
    ranges = [index for index, token in enumerate(tokens) if _RANGE.fullmatch(token)]
    if len(ranges) > 1 or any(token in ("{", "}") for token in tokens):
        hint = "Double a brace that belongs to the name: {{ or }}"
        raise InvalidValue("name", name, "at most one range of numbers, such as {00..15}", hint)
    parts = [{"{{": "{", "}}": "}"}.get(token, token) for token in tokens]
    if not ranges:
        return ("".join(parts),)
    before, after = "".join(parts[: ranges[0]]), "".join(parts[ranges[0] + 1 :])
    return tuple(before + number + after for number in _numbers(name, tokens[ranges[0]]))


def _numbers(name: str, token: str) -> list[str]:
    found = _RANGE.fullmatch(token)
    assert found
    low, high = found[1], found[2]
    if max(len(low), len(high)) > MAX_SHORTSTR:
        got = Unquoted(too_long(token, len(token)))
        raise InvalidValue("range of names", got, f"numbers of at most {MAX_SHORTSTR} digits")
    is_padded = any(len(end) > 1 and end.startswith("0") for end in (low, high))
    if int(low) > int(high) or (is_padded and len(low) != len(high)):
        expected = "the lower number first, and equal widths if one has a leading zero"
        hint = "{0..15} counts 0, 1, 2 and so on, {00..15} counts 00, 01, 02"
        raise InvalidValue(f"range in {name!r}", token, expected, hint)
    count = int(high) - int(low) + 1
    if count > MAX_RANGE:
        hint = "A consistent-hash exchange slows down from 500 buckets on"
        raise InvalidValue(f"range in {name!r}", f"{count} names", f"at most {MAX_RANGE}", hint)
    width = len(low) if is_padded else 0
    return [f"{number:0{width}}" for number in range(int(low), int(high) + 1)]


def literal(name: str) -> str:
    """Double the braces of a name, so that `expand` returns it unchanged."""
    return name.replace("{", "{{").replace("}", "}}")


_NUMBERED: Final = re.compile(r"(.*?)([0-9]+)([^0-9]*)", re.DOTALL)
_MIN_RANGE: Final = 3


def with_ranges(items: Iterable[tuple[str, _Value]]) -> Iterator[tuple[str, _Value]]:
    """Replace successive numbered names of equal value by ranges; other names become literal.

    >>> list(with_ranges([("q8", 1), ("q9", 1), ("q10", 1), ("vip", 3)]))
    [('q{8..10}', 1), ('vip', 3)]
    """
    run: list[tuple[str, _Value]] = []
    for name, value in items:
        # By repr(), because 1 == True in Python and not in AMQP.
        if run and (repr(value) != repr(run[0][1]) or not _follows(run, name)):
            yield from _as_range(run)
            run = []
        run.append((name, value))
    yield from _as_range(run)


def _follows(run: list[tuple[str, _Value]], name: str) -> bool:
    """Whether a name has the next number of a run."""
    first, following = _NUMBERED.fullmatch(run[0][0]), _NUMBERED.fullmatch(name)
    if not first or not following or len(run) == MAX_RANGE:
        return False
    width = len(first[2]) if first[2].startswith("0") and len(first[2]) > 1 else 0
    number = f"{int(first[2]) + len(run):0{width}}"
    return (first[1], number, first[3]) == following.groups()


def _as_range(run: list[tuple[str, _Value]]) -> list[tuple[str, _Value]]:
    if len(run) < _MIN_RANGE:
        return [(literal(name), value) for name, value in run]
    first, last = _NUMBERED.fullmatch(run[0][0]), _NUMBERED.fullmatch(run[-1][0])
    assert first
    assert last
    return [(f"{literal(first[1])}{{{first[2]}..{last[2]}}}{literal(first[3])}", run[0][1])]
