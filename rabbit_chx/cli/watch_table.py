"""What ``rabbit-chx watch`` shows of an interval: a screen that fits the terminal, or lines for a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rabbit_chx.cli.changes import counted
from rabbit_chx.cli.tables import Table
from rabbit_chx.text import printable
from rabbit_chx.watch import Interval, Problem, RingState, Row

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_RED: Final = "red"
_MOST_PROBLEMS: Final = 8
"""Problems listed below the table; the others are counted."""
_AROUND: Final = 8
"""Lines of a screen that are neither rows nor problems."""


class _Column(NamedTuple):
    title: str
    rank: int
    """Columns of a lower rank are shown first where there is no room for all."""
    text: Callable[[Row], str]


def _share(share: float | None) -> str:
    return "?" if share is None else f"{share:.2%}"


def _number(value: float | None, form: str = ",.0f") -> str:
    return "?" if value is None else format(value, form)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} s"


def _marks(row: Row) -> str:
    more = f" +{len(row.marks) - 1}" if len(row.marks) > 1 else ""
    return f"{row.marks[0]}{more}" if row.marks else ""


_COLUMNS: Final = (
    _Column("exact", 3, lambda row: _share(row.exact)),
    _Column("now", 1, lambda row: _share(row.observed)),
    _Column("1 min", 7, lambda row: _share(row.minutes[0])),
    _Column("5 min", 8, lambda row: _share(row.minutes[1])),
    _Column("15 min", 9, lambda row: _share(row.minutes[2])),
    _Column("in/s", 4, lambda row: _number(row.rate_in, ",.1f")),
    _Column("out/s", 5, lambda row: _number(row.rate_out, ",.1f")),
    _Column("depth", 2, lambda row: _number(row.depth)),
    _Column("oldest", 11, lambda row: _seconds(row.oldest)),
    _Column("consumers", 6, lambda row: _number(row.consumers)),
    _Column("active", 10, lambda row: row.active_consumer or ""),
    _Column("", 0, _marks),
)
_LEFT: Final = ("active", "")
_LEAST_NAME: Final = 12
_BETWEEN: Final = 3
"""Blanks between two columns."""


def ring_words(ring: RingState) -> str:
    """The state of a ring in words."""
    known = "as in the file" if ring.against == "file" else "as at the start"
    moved = "" if ring.misrouted is None else f", {ring.misrouted:.1%} of the keys go elsewhere"
    return {"same": known, "drifted": f"drifted{moved}", "unknown": "order unknown"}[ring.status]


class Screen:
    """The newest interval, laid out for the size of the terminal whenever rich asks."""

    def __init__(self) -> None:
        self.interval: Interval | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        if self.interval is None:
            yield Text("Reading the broker ...")
            return
        interval, width, height = self.interval, options.max_width, options.max_height
        problems = interval.problems[:_MOST_PROBLEMS]
        for line, style in _head(interval):
            yield Text(printable(line), style, overflow="ellipsis", no_wrap=True)
        room = max(1, height - _AROUND - len(problems))
        yield _table(interval, width, room).drawn(narrow=False)
        for problem in problems:
            line = f"{problem.name}: {problem.where}: {problem.message}"
            yield Text(printable(line), _RED, overflow="ellipsis", no_wrap=True)
        if len(interval.problems) > len(problems):
            yield Text(f"and {len(interval.problems) - len(problems):,} more problems", _RED)


def _head(interval: Interval) -> Iterator[tuple[str, str]]:
    release = f", RabbitMQ {interval.release}" if interval.release else ""
    yield f"{interval.exchange} in {interval.vhost}{release}", "bold"
    since = f" over {interval.seconds:.0f} s" if interval.seconds else ""
    totals = interval.totals
    yield f"{_clock(interval.time)}{since}: {totals.rate_in:,.1f}/s in, {totals.rate_out:,.1f}/s out", ""
    yield f"Ring: {ring_words(interval.ring)}", _RED if interval.ring.status == "drifted" else ""


def _table(interval: Interval, width: int, room: int) -> Table:
    """The rows that fit, those with problems first if not all do."""
    rows = interval.rows
    if len(rows) > room:
        rows = tuple(sorted(rows, key=lambda row: not row.marks))[: max(1, room - 1)]
    columns, room_for_name = _fitting(rows, width)
    table = Table(
        "queue",
        *(column.title for column in columns),
        right=tuple(column.title for column in columns if column.title not in _LEFT),
        wrapped=(),
    )
    for row in rows:
        cells = [column.text(row) for column in columns]
        marks = ((cells.pop(), _RED),) if "" in (column.title for column in columns) else ()
        table.add_row(_cut(row.queue, room_for_name), *cells, *([marks] if marks else []))
    if len(rows) < len(interval.rows):
        table.add_row(f"and {len(interval.rows) - len(rows):,} more")
    return table


def _fitting(rows: Sequence[Row], width: int) -> tuple[list[_Column], int]:
    """The columns that a screen has room for, and what they leave to the names of the queues."""
    from rich.cells import cell_len

    def needed(title: str, texts: Iterable[str]) -> int:
        return max(map(cell_len, (title, *map(printable, texts)))) + _BETWEEN

    names = needed("queue", (row.queue for row in rows))
    reserved = min(names, _LEAST_NAME + _BETWEEN + max(0, width - 60) // 3)
    left = width - reserved
    shown = set()
    for column in sorted(_COLUMNS, key=lambda column: column.rank):
        wide = needed(column.title, map(column.text, rows))
        if wide <= left:
            shown.add(column.title)
            left -= wide
    return [column for column in _COLUMNS if column.title in shown], min(names, reserved + left) - _BETWEEN


def _cut(name: str, width: int) -> str:
    """The name, cut so that the numbers have room."""
    from rich.text import Text

    shown = Text(printable(name))
    shown.truncate(width, overflow="ellipsis")
    return shown.plain


class Changes:
    """Turns intervals into lines: one for each interval, and one for each problem that appears or is resolved."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Problem] = {}

    def lines(self, interval: Interval) -> Iterator[str]:
        """The lines of the next interval."""
        at, totals = _clock(interval.time), interval.totals
        found = {(problem.name, problem.where): problem for problem in interval.problems}
        yield (
            f"{at} {interval.exchange}: ring {ring_words(interval.ring)}; {totals.rate_in:,.1f}/s in, "
            f"{totals.rate_out:,.1f}/s out, {counted(totals.depth, 'message')} in {counted(len(interval.rows), 'queue')}; "
            f"{counted(len(found), 'problem')}"
        )
        for key, problem in found.items():
            if key not in self._known:
                yield f"{at} new: {problem}"
        for key, problem in self._known.items():
            if key not in found:
                yield f"{at} resolved: {problem.where} [{problem.name}]"
        self._known = found


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
