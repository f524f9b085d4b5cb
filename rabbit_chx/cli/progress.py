"""Progress bars on standard error, shown on a terminal only."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rabbit_chx.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.progress import Progress

__all__ = ["bytes_progress", "items_progress", "waiting"]


@contextmanager
def bytes_progress(title: str, total: int | None) -> Iterator[Callable[[int], object]]:
    """Show the bytes of a file that were read; yield the function that adds to them."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn
    from rich.table import Column

    whole = Column(no_wrap=True)
    with _progress(DownloadColumn(table_column=whole), TransferSpeedColumn(table_column=whole)) as progress:
        task = progress.add_task(printable(title), total=total)
        yield lambda size: progress.advance(task, size)


@contextmanager
def items_progress(title: str, total: int) -> Iterator[Callable[[int], object]]:
    """Show how many items are done; yield the function that adds to them."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import MofNCompleteColumn
    from rich.table import Column

    with _progress(MofNCompleteColumn(table_column=Column(no_wrap=True))) as progress:
        task = progress.add_task(printable(title), total=total)
        yield lambda count: progress.advance(task, count)


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show that work of unknown duration is in progress."""
    if not sys.stderr.isatty():
        yield
        return
    with _console().status(printable(title)):
        yield


def _console() -> Console:
    """Return a console on standard error that leaves file names unchanged."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False)


def _progress(*columns: object) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,  # type: ignore[arg-type]
        TimeRemainingColumn(),
        console=_console(),
        transient=True,
    )
