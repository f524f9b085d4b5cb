"""Tables for people. Everything that draws imports rich here, and only when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.bar import Bar
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rabbit_chx.ring import Destination

__all__ = ["console", "print_shares", "table"]


def console() -> Console:
    """Standard output; where it is no terminal, lines are as long as they need to be."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=160)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table in the one style of this command line."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def bar(share: float, largest: float) -> Any:
    """A bar for a share, as long as its column where it is the largest."""
    return Bar(size=largest or 1.0, begin=0.0, end=share, width=16, color="cyan")


def print_shares(counts: Mapping[Destination, int], *, title: str) -> None:
    """How many keys each destination got."""
    total = sum(counts.values())
    largest = max(counts.values(), default=0)
    shown = table("queue", "keys", "share", "", right=("keys", "share"))
    for destination, keys in counts.items():
        share = keys / total if total else 0.0
        shown.add_row(str(destination), f"{keys:,}", f"{share:.2%}", bar(keys, largest))
    out = console()
    out.print(title, style="bold")
    out.print(shown)
