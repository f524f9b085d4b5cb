"""Tables for people. Only this file imports rich's tables, and only when one is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rabbit_chx.base.advice import in_options
from rabbit_chx.base.text import printable
from rabbit_chx.cli.show.output import write

if TYPE_CHECKING:
    import rich.table
    from rich.console import Console, RenderableType

_WIDE: Final = 160
_NARROW: Final = 64
"""Narrower terminals get no bars, one word per line in headings, and columns that all wrap."""


Cell: TypeAlias = "str | float | tuple[tuple[str, str], ...]"
"""Text, a bar as long in proportion to the longest of its table as this number, or parts of a text, each with its style."""


class Table:
    """Rows of cells; columns in ``wrapped`` wrap if they are too wide, others are cut."""

    def __init__(
        self, *columns: str, right: tuple[str, ...] = (), wrapped: tuple[str, ...] = ("queue",)
    ) -> None:
        self._columns, self._right, self._wrapped = columns, right, wrapped
        self._rows: list[tuple[Cell, ...]] = []

    def add_row(self, *cells: Cell) -> None:
        """Add a row; unprintable characters are shown as escapes."""
        self._rows.append(cells)

    def drawn(self, *, narrow: bool) -> rich.table.Table:
        """The table as rich prints it."""
        from rich import box, table

        made = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=narrow)
        for column in self._columns:
            # If all columns wrap, the widest one gives way first, and none vanishes.
            wraps = narrow or column in self._wrapped
            made.add_column(
                column.replace(" ", "\n") if narrow else column,
                justify="right" if column in self._right else "left",
                overflow="fold" if wraps else "ellipsis",
                no_wrap=not wraps,
            )
        longest = max(
            (cell for row in self._rows for cell in row if isinstance(cell, (int, float))), default=0
        )
        for row in self._rows:
            cells = (cell for cell in row if not (narrow and isinstance(cell, (int, float))))
            made.add_row(*(_drawn(cell, longest) for cell in cells))
        return made


def _drawn(cell: Cell, longest: float) -> RenderableType:
    from rich import bar, text

    if isinstance(cell, (int, float)):
        return bar.Bar(size=longest or 1.0, begin=0.0, end=cell, width=16, color="cyan")
    if isinstance(cell, str):
        return text.Text(printable(in_options(cell)))
    return text.Text.assemble(*((printable(in_options(part), keep="\n"), style) for part, style in cell))


def console() -> Console:
    """Standard output without markup; a pipe gets tables as wide as they need to be."""
    from rich.console import Console

    found = Console(highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = _WIDE
    return found


def show(*parts: Table | str, title: str = "") -> None:
    """Print tables and sentences; without trailing blanks in a pipe."""
    from rich.text import Text

    out = console()
    shown: list[RenderableType] = [Text(printable(title), "bold")] if title else []
    for part in parts:
        if isinstance(part, str):
            shown.append(Text(printable(in_options(part), keep="\n\t")))
        else:
            shown.append(part.drawn(narrow=out.width < _NARROW))
    with out.capture() as captured:
        for each in shown:
            out.print(each, soft_wrap=not out.is_terminal)
    text = captured.get()
    lines = text.splitlines() if out.is_terminal else map(str.rstrip, text.splitlines())
    write("\n".join(lines), color=out.is_terminal or None)


def print_shares(counts: Mapping[Any, int], *, title: str) -> None:
    """Print the number of keys of each destination."""
    total = sum(counts.values())
    shown = Table("queue", "keys", "share", right=("keys", "share"))
    for destination, keys in counts.items():
        share = keys / total if total else 0.0
        shown.add_row(str(destination), f"{keys:,}", f"{share:.2%}", keys)
    show(shown, title=title)
