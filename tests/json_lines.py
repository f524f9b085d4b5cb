"""The JSON lines of the command line, compared with docs/output.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "output.md"
EVERYWHERE = {"schema", "type"}


@cache
def documented(verb: str) -> dict[str, set[str]]:
    """The types of a verb's lines, each with the keys that the page gives them."""
    if verb in {"apply", "rebalance", "scale"}:
        return documented("plan") | _types(verb)
    return _types(verb)


def _types(verb: str) -> dict[str, set[str]]:
    (section,) = re.findall(rf"^## {verb}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found = {}
    for heads, table in re.findall(r"^([^|\n]*\*\*`.*):\n\n((?:\|.*\n)+)", section, re.MULTILINE):
        types = re.findall(r"\*\*`(\w+)`\*\*", heads)
        keys = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
        # two types may share a table where each has the one key of its own name
        found |= {types[0]: keys} if len(types) == 1 else {each: {each} & keys for each in types}
    return found


def printed(verb: str, rows: list[dict[str, object]]) -> dict[str, set[str]]:
    """The types of lines that were printed, each with all its keys; each line is one that the page allows."""
    found: dict[str, set[str]] = {}
    for row in rows:
        assert list(row)[:2] == ["schema", "type"], row
        assert row["schema"] == 1
        keys = set(row) - EVERYWHERE
        assert keys <= documented(verb)[str(row["type"])], row
        found.setdefault(str(row["type"]), set()).update(keys)
    return found
