"""Show an interval of ``rabbit-chx watch``: a screen that fits the terminal, or lines for a pipe."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rabbit_chx.base.text import counted, printable
from rabbit_chx.cli.show.tables import Table
from rabbit_chx.watch import Interval
from rabbit_chx.watch.interval import Row
from rabbit_chx.watch.observer import Problem

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_RED: Final = "red"
_MOST_PROBLEMS: Final = 8
"""Problems to list below the table; the others are only counted."""
_OTHER_LINES: Final = 9
"""Lines of a screen that are neither rows nor problems."""


class _Column(NamedTuple):
    title: str
    rank: int
    """If not all columns fit, those with the lowest ranks are shown."""
    text: Callable[[Row], str]


def _share(share: float | None) -> str:
    return "?" if share is None else f"{share:.2%}"


def _number(value: float | None, form: str = ",.0f") -> str:
    return "?" if value is None else format(value, form)


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
    _Column("oldest", 11, lambda row: "" if row.oldest is None else f"{row.oldest:,.0f} s"),
    _Column("consumers", 6, lambda row: _number(row.consumers)),
    _Column("active", 10, lambda row: row.active_consumer or ""),
    _Column("", 0, _marks),
)
_LEFT_ALIGNED: Final = ("active", "")
_MIN_NAME_WIDTH: Final = 12
_GAP: Final = 3
"""Spaces between two columns."""


class Screen:
    """The newest interval as a rich renderable that fits the terminal."""

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
        max_rows = max(1, height - _OTHER_LINES - len(problems))
        yield _table(interval, width, max_rows).drawn(narrow=False)
        for problem in problems:
            line = f"{problem.name}: {problem.where}: {problem.message}"
            yield Text(printable(line), _RED, overflow="ellipsis", no_wrap=True)
        if len(interval.problems) > len(problems):
            yield Text(f"and {len(interval.problems) - len(problems):,} more problems", _RED)


def _head(interval: Interval) -> Iterator[tuple[str, str]]:
    release = f", RabbitMQ {interval.release}" if interval.release else ""
    yield f"{interval.exchange} in {interval.vhost}{release}", "bold"
    since = f" over {interval.seconds:.0f} s" if interval.seconds else ""
    yield f"{_clock(interval.time)}{since}: {_rates(interval)}", ""
    yield f"Ring: {interval.ring.text}", _RED if interval.ring.status == "drifted" else ""


def _rates(interval: Interval) -> str:
    if all(row.rate_in is None for row in interval.rows):
        return "rates unknown"  # at the first poll, and at the first after a failed one
    return f"{interval.totals.rate_in:,.1f}/s in, {interval.totals.rate_out:,.1f}/s out"


def _depth(interval: Interval) -> str:
    queues = counted(len(interval.rows), "queue")
    if interval.rows and all(row.depth is None for row in interval.rows):
        return f"messages in {queues} unknown"  # at the first poll of new queues, and without statistics
    return f"{counted(interval.totals.depth, 'message')} in {queues}"


def _table(interval: Interval, width: int, max_rows: int) -> Table:
    """The rows that fit; if not all rows fit, those with problems come first."""
    rows = interval.rows
    if len(rows) > max_rows:
        rows = tuple(sorted(rows, key=lambda row: not row.marks))[: max(1, max_rows - 1)]
    columns, name_width = _fitting(rows, width)
    table = Table(
        "queue",
        *(column.title for column in columns),
        right=tuple(column.title for column in columns if column.title not in _LEFT_ALIGNED),
        wrapped=(),
    )
    for row in rows:
        cells = [column.text(row) for column in columns]
        marks = ((cells.pop(), _RED),) if "" in (column.title for column in columns) else ()
        table.add_row(_truncated(row.queue, name_width), *cells, *([marks] if marks else []))
    if len(rows) < len(interval.rows):
        table.add_row(f"and {len(interval.rows) - len(rows):,} more")
    return table


def _fitting(rows: Sequence[Row], width: int) -> tuple[list[_Column], int]:
    """The columns that fit the width, and the width that remains for the names of the queues."""
    from rich.cells import cell_len

    def width_of(title: str, texts: Iterable[str]) -> int:
        return max(map(cell_len, (title, *map(printable, texts)))) + _GAP

    names = width_of("queue", (row.queue for row in rows))
    reserved = min(names, _MIN_NAME_WIDTH + _GAP + max(0, width - 60) // 3)
    available = width - reserved
    shown = set()
    for column in sorted(_COLUMNS, key=lambda column: column.rank):
        texts = [column.text(row) for row in rows]
        needed_width = width_of(column.title, texts)
        if any(texts) and needed_width <= available:
            shown.add(column.title)
            available -= needed_width
    return [column for column in _COLUMNS if column.title in shown], min(names, reserved + available) - _GAP


def _truncated(name: str, width: int) -> str:
    from rich.text import Text

    shown = Text(printable(name))
    shown.truncate(width, overflow="ellipsis")
    return shown.plain


class Changes:
    """Turns intervals into lines: one for each interval, and one for each problem that appears or is resolved."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], Problem] = {}

    def lines(self, interval: Interval) -> Iterator[str]:
        """The lines of the next interval."""
        at, found = _clock(interval.time), _numbered(interval.problems)
        state = (
            f"ring {interval.ring.text}; {_rates(interval)}, {_depth(interval)}"
            if interval.reachable
            else "state unknown"
        )
        yield f"{at} {interval.exchange}: {state}; {counted(len(found), 'problem')}"
        for key, problem in found.items():
            if key not in self._known:
                yield f"{at} new: {problem}"
        if not interval.reachable:  # whether the other problems are resolved is unknown
            self._known |= found
            return
        for key, problem in self._known.items():
            if key not in found:
                yield f"{at} resolved: {problem.where} [{problem.name}]"
        self._known = found


def _numbered(problems: Iterable[Problem]) -> dict[tuple[str, str, int], Problem]:
    """The problems by name, subject and number: a queue can have several of a name. Messages change at each interval."""
    found: dict[tuple[str, str, int], Problem] = {}
    counts = Counter[tuple[str, str]]()
    for problem in problems:
        key = problem.name, problem.where
        counts[key] += 1
        found[*key, counts[key]] = problem
    return found


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
