"""Where the keys and values of a TOML or JSON text stand, which the parsers of the standard library do not say.

The text has been parsed before, so it is known to be valid: what remains is to walk over strings, brackets and
separators, which are the same in both formats. Nothing is judged here and no value is read, only names and places.
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from typing import Final, NamedTuple, TypeAlias

__all__ = ["Loc", "Place", "Places", "line_starts", "places_in_json", "places_in_toml"]

Loc: TypeAlias = tuple[str | int, ...]
"""The way to a value from the top: names of mappings, indices of lists."""

_SKIP: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_STRING: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' + r"|'''.*?'''(?:'{0,2})" + r"""|"(?:\\.|[^"\\])*"|'[^']*'""",
    re.DOTALL,
)
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE: Final = re.compile(r"[^,\]}\n#]+")


class Place(NamedTuple):
    """A line and a column, both counted from 1."""

    line: int
    column: int


class Places:
    """The places of all keys and values of one text."""

    def __init__(self) -> None:
        self.values: dict[Loc, Place] = {}
        self.keys: dict[Loc, Place] = {}
        self.doubles: list[tuple[Loc, Place]] = []
        """Keys that stand in a JSON object already."""


def line_starts(text: str) -> list[int]:
    """The index of the first character of every line."""
    return [0, *(found.end() for found in re.finditer("\n", text))]


def places_in_json(text: str) -> Places:
    """The places in a valid JSON text."""
    walk = _Walk(text, ":")
    walk.skip()
    walk.value(())
    return walk.places


def places_in_toml(text: str) -> Places:
    """The places in a valid TOML text."""
    walk = _Walk(text, "=")
    walk.places.values[()] = Place(1, 1)
    table: Loc = ()
    lengths: dict[Loc, int] = {}  # of arrays of tables
    while walk.skip():
        if text.startswith("[", walk.at):
            table = walk.header(lengths)
        else:
            walk.pair(table)
    return walk.places


class _Walk:
    """A walk over a text, at one index at a time."""

    def __init__(self, text: str, separator: str) -> None:
        self.text = text
        self.separator = separator
        self.at = 0
        self.places = Places()
        self._starts = line_starts(text)

    def skip(self) -> bool:
        """Go on to what is neither space nor comment; whether there is something."""
        found = _SKIP.match(self.text, self.at)
        assert found
        self.at = found.end()
        return self.at < len(self.text)

    def _here(self) -> Place:
        line = bisect_right(self._starts, self.at)
        return Place(line, self.at - self._starts[line - 1] + 1)

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        assert found, f"no {pattern.pattern} at {self._here()}"
        self.at = found.end()
        return found[0]

    def value(self, loc: Loc) -> None:
        """Walk over a value."""
        self.places.values[loc] = self._here()
        match self.text[self.at]:
            case "{":
                self._items(loc, "}")
            case "[":
                self._items(loc, "]")
            case '"' | "'":
                self._take(_STRING)
            case _:
                self._take(_BARE_VALUE)

    def _items(self, loc: Loc, end: str) -> None:
        self.at += 1
        index = 0
        names: set[Loc] = set()
        while self.skip() and self.text[self.at] != end:
            if self.text[self.at] == ",":
                self.at += 1
            elif end == "}":
                place = self._here()
                name = self.pair(loc)
                if name in names:
                    self.places.doubles.append((name, place))
                names.add(name)
            else:
                self.value((*loc, index))
                index += 1
        self.at += 1

    def pair(self, loc: Loc) -> Loc:
        """Walk over a key, which in TOML may have dots, and its value; where both are found from the top."""
        place = self._here()
        for part in self._key():
            loc = (*loc, part)
            self.places.keys.setdefault(loc, place)
            self.places.values.setdefault(loc, place)
        self.value(loc)
        return loc

    def _key(self) -> Loc:
        """The parts of a key up to and with the separator or bracket that follows."""
        parts = []
        while True:
            self.skip()
            if self.text[self.at] in "\"'":
                token = self._take(_STRING)
                is_json = self.separator == ":"
                parts.append(json.loads(token) if is_json else tomllib.loads(f"key = {token}")["key"])
            else:
                parts.append(self._take(_BARE_KEY))
            self.skip()
            self.at += 1
            if self.text[self.at - 1] != ".":
                self.skip()
                return tuple(parts)

    def header(self, lengths: dict[Loc, int]) -> Loc:
        """Walk over ``[table]`` or ``[[table]]``, and where its pairs belong."""
        is_array = self.text.startswith("[[", self.at)
        place = self._here()
        self.at += 2 if is_array else 1
        parts = self._key()
        self.at += 1 if is_array else 0
        loc: Loc = ()
        for depth, part in enumerate(parts, 1):
            loc = (*loc, part)
            self.places.keys.setdefault(loc, place)
            self.places.values.setdefault(loc, place)
            if is_array and depth == len(parts):
                lengths[loc] = lengths.get(loc, 0) + 1
            if loc in lengths:
                loc = (*loc, lengths[loc] - 1)
                self.places.values.setdefault(loc, place)
        return loc
