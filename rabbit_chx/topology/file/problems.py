"""Problems in a topology file, each with its line and column; a file is read to its end before any is raised."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final, NoReturn, TypeAlias

from rabbit_chx.base.text import is_utf8, listed
from rabbit_chx.errors import InvalidValue, Unquoted

Path: TypeAlias = tuple[str | int, ...]
"""The path from the top of a file to a value: keys of mappings and indices of lists."""

MAX_DEPTH: Final = 50
MOST_PROBLEMS: Final = 100
"""The problems of a file that are described; the others are only counted."""


@dataclass
class Positions:
    """Where the keys and values of a file are, as offsets in its text."""

    keys: dict[Path, int] = field(default_factory=dict)
    values: dict[Path, int] = field(default_factory=dict)
    """Scalars, items of lists and the whole; mappings and lists under a key have the position of their key."""

    def of(self, path: Path, *, at_key: bool = False) -> int | None:
        """The position of a value or of its key; if it is missing, that of the nearest parent."""
        if not at_key and path in self.values:
            return self.values[path]
        parents = (path[:end] for end in range(len(path), -1, -1))
        found = (self.keys.get(each, self.values.get(each)) for each in parents)
        return next((each for each in found if each is not None), None)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a file, with its position."""

    file: str
    line: int | None
    """Counted from 1; None if the problem concerns the whole file."""
    column: int | None
    message: str

    def __str__(self) -> str:
        position = "" if self.line is None else f":{self.line}:{self.column}"
        return f"{self.file}{position}: {self.message}"


class InvalidTopology(InvalidValue):
    """The problems of a topology, one per line; of very many, the first hundred and the number of the others."""

    def __init__(self, problems: Iterable[Problem], others: int = 0) -> None:
        self.problems: tuple[Problem, ...] = tuple(
            sorted(dict.fromkeys(problems), key=lambda each: (each.line or 0, each.column or 0))
        )
        """In the order of the file."""
        self.others: int = others
        """The number of further problems."""
        super().__init__("topology", f"{len(self.problems) + others} problems", "none")

    def _text(self) -> str:
        more = [f"and {self.others} more problems"] if self.others else []
        return "\n".join([*map(str, self.problems), *more])

    def __reduce__(self) -> tuple[object, ...]:
        return (InvalidTopology, (self.problems, self.others))


@dataclass
class Document:
    """The parsed values of a file, and the problems found so far.

    A problem is ``at`` a path, an offset in the text, or the whole file (None).
    """

    name: str
    text: str = ""
    value: Any = None
    reported: set[int] = field(default_factory=set)
    """Positions of ambiguous scalars: further problems there would only be consequences."""
    find_positions: Callable[[Container[Path]], Positions] = lambda _: Positions()
    """Find the positions of some paths and of their parents; all positions of a large file would fill the memory."""
    found: list[tuple[Path | int | None, bool, str]] = field(default_factory=list)
    """The first problems: where, whether at the key, and the message."""
    others: int = 0
    """The number of further problems."""

    @cached_property
    def _lines(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def line_and_column(self, position: int) -> tuple[int, int]:
        """The line and the column of an offset in the text, both counted from 1."""
        line = bisect_right(self._lines, position)
        return line, position - self._lines[line - 1] + 1

    def report(self, path: Path, got: object, expected: str, hint: str = "", *, at_key: bool = False) -> None:
        """Add a problem with the value, or the key, at a path."""
        self.add(path, InvalidValue(dotted(path), got, expected, hint), at_key=at_key)

    def report_key(self, path: Path, got: str, expected: str, hint: str = "") -> None:
        """Add a problem with the key at a path; ``got`` is not quoted."""
        self.report(path, Unquoted(got), expected, hint, at_key=True)

    def report_duplicate(self, key: str, first: int, again: int) -> None:
        """Add the problem of a key that its mapping has already."""
        if len(self.found) >= MOST_PROBLEMS:
            self.others += 1
            return
        hint = f"The first is in line {self.line_and_column(first)[0]}"
        self.add(again, InvalidValue(f"key {key!r}", Unquoted("a duplicate"), "unique keys", hint))

    def add(self, at: Path | int | None, error: InvalidValue, *, at_key: bool = False) -> None:
        """Add a problem."""
        if at in self.reported:
            return
        if len(self.found) < MOST_PROBLEMS:
            self.found.append((at, at_key, str(error)))
        else:
            self.others += 1

    def fail(self, at: Path | int | None, what: str, got: object, expected: str, hint: str = "") -> NoReturn:
        """Raise all problems including this one, which makes the rest of the file unreadable."""
        self.add(at, InvalidValue(what, got, expected, hint))
        raise InvalidTopology(self._problems(), self.others)

    def raise_problems(self) -> None:
        """Raise all problems, if there are any."""
        if self.found:
            raise InvalidTopology(self._problems(), self.others)

    def _problems(self) -> Iterator[Problem]:
        paths = [at for at, _, _ in self.found if isinstance(at, tuple)]
        wanted = {path[:end] for path in paths for end in range(len(path) + 1)}
        positions = self.find_positions(wanted) if wanted else Positions()  # the text may be invalid
        for at, at_key, message in self.found:
            position = positions.of(at, at_key=at_key) if isinstance(at, tuple) else at
            if position is None:
                yield Problem(self.name, None, None, message)
            elif not isinstance(at, tuple) or position not in self.reported:
                yield Problem(self.name, *self.line_and_column(position), message)


_SIMPLE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def dotted(path: Path) -> str:
    """A path as text: ``exchanges.orders.queues."orders.00"``."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            is_simple = _SIMPLE_KEY.fullmatch(part)
            shown += "." + (part if is_simple else json.dumps(part, ensure_ascii=not part.isprintable()))
    return shown.removeprefix(".") or "file"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the most similar known word, or nothing if none is similar."""
    near = get_close_matches(word, list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def known_exchanges(word: str, known: Iterable[str]) -> str:
    """A hint for an unknown exchange: the most similar one that is known, or else the first ones."""
    names = sorted(known)
    return did_you_mean(word, names) or f"It has {listed(names, 'exchange') if names else 'none'}"


def check_values(document: Document) -> None:
    """Report values that AMQP cannot carry, and nesting that is too deep."""
    try:
        _check((), document.value, document)
    except RecursionError:
        document.fail(None, "nesting", Unquoted("more"), f"at most {MAX_DEPTH} levels")


def _check(path: Path, value: object, document: Document) -> None:
    if len(path) > MAX_DEPTH:
        raise RecursionError
    match value:
        case dict():
            for key, item in value.items():
                if not is_utf8(key):
                    document.report((*path, key), key, "text without lone surrogates")
                _check((*path, key), item, document)
        case list():
            for index, item in enumerate(value):
                _check((*path, index), item, document)
        case str() if not is_utf8(value):
            document.report(path, value, "text without lone surrogates", "Write the character itself")
        case int() if not -(2**63) <= value < 2**63:
            document.report(path, value, "a 64-bit integer", "AMQP has no larger integers")
        case float() if not math.isfinite(value):
            document.report(path, value, "a finite number", "Erlang has no infinity or NaN")
        case str() | int() | float() | None:
            pass
        case _:
            document.report(path, str(value), "text, a number, true or false")
