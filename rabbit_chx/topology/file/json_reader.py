"""Read JSON, and find the positions of its keys and values if there is a problem to report.

PyYAML reads JSON too and knows all positions, but takes 16 times as long as :func:`json.loads`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import Unquoted
from rabbit_chx.topology.file.problems import MAX_DEPTH, Document, Position, Positions, duplicate_key

if TYPE_CHECKING:
    from rabbit_chx.errors import InvalidValue
    from rabbit_chx.topology.file.problems import Path

__all__ = ["read_json"]

# In valid JSON commas and colons can be skipped: the order of the other tokens says it all.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]|[^][{}",:\s]+')


def read_json(text: str, name: str) -> Document:
    """The document in a JSON text; duplicate keys are reported, and syntax errors raised."""
    has_duplicates = False

    def mapping(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal has_duplicates
        values = dict(items)
        has_duplicates |= len(values) < len(items)
        return values

    document = Document(name, find_positions=lambda: _Scan(text).positions)
    try:
        # 25 digits of an integer are enough to see that it is out of range.
        document.value = json.loads(
            text, object_pairs_hook=mapping, parse_int=lambda digits: int(digits[:25])
        )
    except json.JSONDecodeError as error:
        hint = "" if text.strip() else 'The smallest file is {"schema": 1}'
        document.fail(Position(error.lineno, error.colno), "JSON", Unquoted(error.msg), "a JSON object", hint)
    except RecursionError:
        document.fail(None, "nesting", Unquoted("more"), f"at most {MAX_DEPTH} levels")
    if has_duplicates:
        for position, duplicate in _Scan(text).duplicates:
            document.add(position, duplicate)
    return document


class _Scan:
    """One pass over the tokens of a valid JSON text."""

    def __init__(self, text: str) -> None:
        self.positions = Positions()
        self.duplicates: list[tuple[Position, InvalidValue]] = []
        self._tokens = _TOKEN.finditer(text)
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        start = next(self._tokens)
        self._value(start, (), self._position(start))

    def _position(self, token: re.Match[str]) -> Position:
        line = bisect_right(self._lines, token.start())
        return Position(line, token.start() - self._lines[line - 1] + 1)

    def _value(self, token: re.Match[str], path: Path, position: Position) -> None:
        self.positions.values[path] = position
        if token[0] == "{":
            self._mapping(path)
        elif token[0] == "[":
            index = 0
            while (token := next(self._tokens))[0] != "]":
                self._value(token, (*path, index), self._position(token))
                index += 1

    def _mapping(self, path: Path) -> None:
        keys: dict[str, Position] = {}
        while (token := next(self._tokens))[0] != "}":
            key, position = json.loads(token[0]), self._position(token)
            if key in keys:
                self.duplicates.append((position, duplicate_key(key, keys[key])))
            keys.setdefault(key, position)
            self.positions.keys.setdefault((*path, key), position)
            value = next(self._tokens)
            is_scalar = value[0] not in ("{", "[")
            self._value(value, (*path, key), self._position(value) if is_scalar else position)
