"""Numbered families of queues: ``orders.{00..15}`` stands for sixteen names.

One range of numbers from low to high. A first number with a leading zero fixes the width of all. A brace that is
meant as such is written twice. Text in, names out.
"""

from __future__ import annotations

import re
from typing import Final

from rabbit_chx.errors import InvalidValue

__all__ = ["MOST_MEMBERS", "expand", "literal"]

MOST_MEMBERS: Final = 10_000
"""Of one family: a broker with more queues has other troubles."""

_RANGE: Final = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")
_TOKEN: Final = re.compile(r"\{\{|\}\}|\{[0-9]+\.\.[0-9]+\}|[{}]|[^{}]+")


def expand(name: str) -> tuple[str, ...]:
    """The names that a name stands for, in the order of their numbers; just itself without a range.

    >>> expand("orders.{08..10}")
    ('orders.08', 'orders.09', 'orders.10')
    >>> expand("{{id}}")
    ('{id}',)
    """
    tokens = _TOKEN.findall(name)
    ranges = [index for index, token in enumerate(tokens) if _RANGE.fullmatch(token)]
    if len(ranges) > 1 or any(token in ("{", "}") for token in tokens):
        raise InvalidValue(
            "name",
            name,
            "at most one range of numbers, such as {00..15}",
            "A brace that belongs to the name is written twice: {{ or }}",
        )
    parts = [{"{{": "{", "}}": "}"}.get(token, token) for token in tokens]
    if not ranges:
        return ("".join(parts),)
    before, after = "".join(parts[: ranges[0]]), "".join(parts[ranges[0] + 1 :])
    return tuple(before + number + after for number in _numbers(name, tokens[ranges[0]]))


def _numbers(name: str, token: str) -> list[str]:
    found = _RANGE.fullmatch(token)
    assert found
    low, high = found[1], found[2]
    has_width = any(len(end) > 1 and end.startswith("0") for end in (low, high))
    if int(low) > int(high) or (has_width and len(low) != len(high)):
        raise InvalidValue(
            f"range in {name!r}",
            token,
            "the lower number first; both as wide where one begins with 0",
            "{0..15} counts 0, 1, 2 and on, {00..15} counts 00, 01, 02",
        )
    if int(high) - int(low) >= MOST_MEMBERS:
        raise InvalidValue(
            f"range in {name!r}",
            f"{int(high) - int(low) + 1} names",
            f"{MOST_MEMBERS} at most",
            "A consistent-hash exchange slows down from 500 buckets on",
        )
    width = len(low) if has_width else 0
    return [f"{number:0{width}}" for number in range(int(low), int(high) + 1)]


def literal(name: str) -> str:
    """The text that stands for this one name: its braces doubled."""
    return name.replace("{", "{{").replace("}", "}}")
