"""Progress bars on standard error, shown on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal

from rabbit_chx.base.text import printable

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def progress(
    title: str, total: int | None, *, unit: Literal["items", "bytes"] = "items"
) -> Iterator[Callable[[int], object]]:
    """Show how many items or bytes are done; yield the function that adds to them."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress as bars
    from rich.table import Column

    whole = Column(no_wrap=True)
    counts: tuple[bars.ProgressColumn, ...] = (bars.MofNCompleteColumn(table_column=whole),)
    if unit == "bytes":
        counts = (bars.DownloadColumn(table_column=whole), bars.TransferSpeedColumn(table_column=whole))
    name = bars.TextColumn("{task.description}", markup=False)
    columns = (name, bars.BarColumn(), *counts, bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=_console(), transient=True) as shown:
        task = shown.add_task(printable(title), total=total)
        yield lambda count: shown.advance(task, count)


def waiting(title: str) -> AbstractContextManager[object]:
    """Show that work of unknown duration is in progress."""
    return _console().status(printable(title)) if sys.stderr.isatty() else nullcontext()


def _console() -> Console:
    """A console on standard error that leaves file names unchanged."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False)
