"""Read JSON, and find the positions of its keys and values if there is a problem to report.

PyYAML reads JSON too and knows all positions, but takes 16 times as long as :func:`json.loads`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from typing import Any, Final

from rabbit_chx.base.text import syntax_error
from rabbit_chx.errors import Unquoted
from rabbit_chx.topology.file.problems import MAX_DEPTH, Document, Path, Positions

# In valid JSON commas and colons can be skipped: the order of the other tokens is enough.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]|[^][{}",:\s]+')


def read_json(text: str, name: str) -> Document:
    """The document in a JSON text; duplicate keys are reported, and syntax errors raised."""
    has_duplicates = False

    def mapping(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal has_duplicates
        values = dict(items)
        has_duplicates |= len(values) < len(items)
        return values

    document = Document(name, text, find_positions=lambda wanted: _Scan(text, wanted).positions)
    try:
        # 25 digits of an integer are enough to see that it is out of range.
        document.value = json.loads(
            text, object_pairs_hook=mapping, parse_int=lambda digits: int(digits[:25])
        )
        if has_duplicates:
            _Scan(text, (), document.report_duplicate)
    except json.JSONDecodeError as error:
        hint = "" if text.strip() else 'The smallest file is {"schema": 1}'
        document.fail(error.pos, "JSON", Unquoted(syntax_error(error)), "a JSON object", hint)
    except RecursionError:
        document.fail(None, "nesting", Unquoted("more"), f"at most {MAX_DEPTH} levels")
    return document


class _Scan:
    """One pass over the tokens of a valid JSON text."""

    def __init__(
        self,
        text: str,
        wanted: Container[Path],
        on_duplicate: Callable[[str, int, int], None] = lambda _key, _first, _again: None,
    ) -> None:
        """Scan; ``on_duplicate`` is called for each key that a mapping has twice, with both positions."""
        self.positions = Positions()
        self._on_duplicate = on_duplicate
        self._wanted = wanted
        self._tokens = _TOKEN.finditer(text)
        start = next(self._tokens)
        self.positions.values[()] = start.start()
        self._inside(start, ())

    def _inside(self, opening: re.Match[str], path: Path) -> None:
        if opening[0] == "{":
            self._mapping(path)
        elif opening[0] == "[":
            index = 0
            while (token := next(self._tokens))[0] != "]":
                at = (*path, index)
                if at in self._wanted:
                    self.positions.values[at] = token.start()
                self._inside(token, at)
                index += 1

    def _mapping(self, path: Path) -> None:
        keys: dict[str, int] = {}
        while (token := next(self._tokens))[0] != "}":
            key = json.loads(token[0])
            if key in keys:
                self._on_duplicate(key, keys[key], token.start())
            keys.setdefault(key, token.start())
            at = (*path, key)
            value = next(self._tokens)
            if at in self._wanted:
                self.positions.keys.setdefault(at, token.start())
                if value[0] not in ("{", "["):
                    self.positions.values[at] = value.start()
            self._inside(value, at)
