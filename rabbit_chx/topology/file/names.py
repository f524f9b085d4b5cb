"""Names in a file: whether they are declared, and ranges of them: ``orders.{00..15}`` expands to sixteen names.

A name has at most one range, from low to high. A leading zero fixes the width of all numbers. A brace that belongs
to the name is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, Literal, TypeVar

from rabbit_chx.base.names import VALID_NAME, name_flaw
from rabbit_chx.base.text import too_long
from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.mirror.hashing import MAX_SHORTSTR
from rabbit_chx.topology.file.problems import Document, Path, did_you_mean
from rabbit_chx.topology.model import RESERVED

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
    if width and len(number) > width:
        return False  # numbers with leading zeros have equal widths
    return (first[1], number, first[3]) == following.groups()


def _as_range(run: list[tuple[str, _Value]]) -> list[tuple[str, _Value]]:
    if len(run) < _MIN_RANGE:
        return [(literal(name), value) for name, value in run]
    first, last = _NUMBERED.fullmatch(run[0][0]), _NUMBERED.fullmatch(run[-1][0])
    assert first
    assert last
    return [(f"{literal(first[1])}{{{first[2]}..{last[2]}}}{literal(first[3])}", run[0][1])]


MAX_NAMES: Final = 100_000
"""The number of queue names in a file with ranges expanded, references included."""

_MAX_COMPARISONS: Final = 20_000
_ARTICLES: Final = {"exchange": "an", "queue": "a"}


class Lookup:
    """The names in one file; unknown and invalid ones are reported to its document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.exchanges: Collection[str] = dict.fromkeys(self.section("exchanges"))
        self.queues: dict[str, str] = {}
        """Each queue, and the key in the file that declares it."""
        self._count = 0

    def section(self, name: str) -> dict[str, Any]:
        """A section as it is in the file, including entries that violate the schema."""
        found = self.document.value.get(name)
        return found if isinstance(found, dict) else {}

    def is_valid(self, path: Path, name: str, *, at_key: bool = True) -> bool:
        """Whether a name is valid."""
        flaw = name_flaw(name)
        if flaw:
            is_default = not name and path[0] == "exchanges"
            hint = "The default exchange exists already and cannot be bound" if is_default else ""
            self.document.report(path, Unquoted(flaw), VALID_NAME, hint, at_key=at_key)
        return not flaw

    def members(self, path: Path, name: str, *, at_key: bool = False) -> tuple[str, ...]:
        """Expand a name into names of queues; none if it is malformed."""
        try:
            names = expand(name)
        except InvalidValue as error:
            self.document.add(path, error, at_key=at_key)
            return ()
        self._count += len(names)
        if self._count > MAX_NAMES:
            got = Unquoted(f"more than {MAX_NAMES} with ranges expanded")
            many = InvalidValue("number of queues", got, f"at most {MAX_NAMES} in a file")
            self.document.add(path, many, at_key=at_key)
            self.document.raise_problems()
        return names if self.is_valid(path, max(names, key=len), at_key=at_key) else ()

    def is_declared(
        self, kind: Literal["exchange", "queue"], path: Path, name: str, *, at_key: bool = False
    ) -> bool:
        """Whether an exchange or queue is declared in the file or is the broker's own."""
        known = self.exchanges if kind == "exchange" else self.queues
        if name in known or name.startswith(RESERVED):
            return True
        # The most similar name takes 15 us for each known name.
        is_quick = len(known) * (1 + len(self.document.found)) <= _MAX_COMPARISONS
        hint = (is_quick and did_you_mean(name, known)) or f"Declare it under {kind}s"
        self.document.report(path, name, f"{_ARTICLES[kind]} {kind} of this file", hint, at_key=at_key)
        return False
