"""Insert generated tables into Markdown pages.

A table goes between the marks `<!-- NAME: begin -->` and `<!-- NAME: end -->`; the rest of the page is written by hand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NUMBER: Final = re.compile(r"[\d,]+(\.\d+)?")  # 10,400 and 17.5, but not a release such as 4.3.6


def filled(page: str, tables: Mapping[str, str]) -> str:
    """Return the page with each table between its marks and the rest unchanged."""
    for name, table in tables.items():
        begin, end = (f"<!-- {name}: {what} -->" for what in ("begin", "end"))
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            message = f"the page has no marks {begin} and {end}"
            raise LookupError(message)
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table, in which columns of numbers are aligned to the right."""
    rows = [(*titles,), *map(tuple, rows)]
    line = "|".join(
        "---:" if numbers and all(map(_NUMBER.fullmatch, numbers)) else "---"
        for _, *numbers in zip(*rows, strict=True)
    )
    head, *body = (
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |".replace("|  |", "| |")
        for row in rows
    )
    return "\n".join([head, f"|{line}|", *body])
