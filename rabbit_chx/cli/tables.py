"""Tables for people. Only this file imports rich's tables, and only when a verb prints one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
from rich import box
from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rabbit_chx.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

_WIDE: Final = 160
_NARROW: Final = 64
"""Narrower terminals get no bars, and one word per line in headings."""


class _Table(Table):
    """A table that shows unprintable characters of its cells as escapes."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*map(_safe, cells), **options)


def _safe(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, str):
        return printable(cell)
    if isinstance(cell, Text) and (shown := printable(cell.plain, keep="\n")) != cell.plain:
        return Text(shown, cell.style)  # its parts lose their colours, since their positions no longer hold
    return cell


class _Console(Console):
    """A console that shows unprintable characters of texts as escapes."""

    def print(self, *objects: Any, **options: Any) -> None:
        texts = (printable(each, keep="\n\t") if isinstance(each, str) else each for each in objects)
        super().print(*texts, **options)


def console() -> Console:
    """Standard output without markup; a pipe gets tables as wide as they need to be."""
    found = _Console(highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = _WIDE
    return found


def table(*columns: str, right: tuple[str, ...] = (), folds: tuple[str, ...] = ("queue",)) -> Table:
    """An empty table; columns in ``folds`` wrap where there is no room, others are cut."""
    made = _Table(box=box.SIMPLE_HEAD, pad_edge=False)
    narrow = console().width < _NARROW
    for column in columns:
        made.add_column(
            column.replace(" ", "\n") if narrow else column,
            justify="right" if column in right else "left",
            overflow="fold" if column in folds else "ellipsis",
            no_wrap=column not in folds,
        )
    return made


def bar(share: float, largest: float) -> list[Bar]:
    """A cell with a bar in proportion to the largest share; no cell on a narrow terminal."""
    if console().width < _NARROW:
        return []
    return [Bar(size=largest or 1.0, begin=0.0, end=share, width=16, color="cyan")]


def show(*parts: Table | str, title: str = "") -> None:
    """Print tables and sentences; without trailing blanks in a pipe."""
    out = console()
    with out.capture() as captured:
        if title:
            out.print(Text(printable(title), "bold"), soft_wrap=not out.is_terminal)
        for part in parts:
            out.print(
                Text(printable(part, keep="\n\t")) if isinstance(part, str) else part,
                soft_wrap=not out.is_terminal,
            )
    text = captured.get()
    lines = text.splitlines() if out.is_terminal else map(str.rstrip, text.splitlines())
    click.echo("\n".join(lines), color=out.is_terminal or None)


def print_shares(counts: Mapping[Any, int], *, title: str) -> None:
    """Print the number of keys of each destination."""
    total = sum(counts.values())
    largest = max(counts.values(), default=0)
    shown = table("queue", "keys", "share", right=("keys", "share"))
    for destination, keys in counts.items():
        share = keys / total if total else 0.0
        shown.add_row(str(destination), f"{keys:,}", f"{share:.2%}", *bar(keys, largest))
    show(shown, title=title)
