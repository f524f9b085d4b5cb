"""The output of `watch`: screens of every size, lines for a pipe, and hostile names."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from rabbit_chx.base.text import UNPRINTABLE
from rabbit_chx.cli.show.watch_table import Changes, Screen
from rabbit_chx.watch import Interval
from rabbit_chx.watch.interval import Row, Totals
from rabbit_chx.watch.observer import Problem
from rabbit_chx.watch.ring_check import RingState

HOSTILE = (
    "[bold red]q[/]",
    "<script>alert(1)</script>",
    "a\x1b[2J\u202eb",
    "'\"`",
    "\n" * 5,
    "\U0001f600" * 90,
)


def interval(*names: str, problems: tuple[Problem, ...] = (), **fields: object) -> Interval:
    marks = {problem.queue: (problem.name,) for problem in problems}
    rows = tuple(
        Row(
            name,
            exact=0.25,
            observed=0.123456,
            rate_in=1234.5,
            rate_out=0.0,
            depth=1234567,
            consumers=2,
            active_consumer="ctag1.0",
            oldest=12.0,
            marks=marks.get(name, ()),
        )
        for name in names
    )
    usual = {"ring": RingState("same", "file"), "totals": Totals(rate_in=1234.5, depth=7), "rows": rows}
    return Interval(0.0, 10.0, "orders", "/", "4.3.6", problems=problems, **{**usual, **fields})


def screen(shown: Interval | None, width: int, height: int = 30) -> list[str]:
    out = Console(file=StringIO(), width=width, height=height, highlight=False, markup=False, emoji=False)
    drawn = Screen()
    drawn.interval = shown
    out.print(drawn)
    return out.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 250])
def test_lines_fit_and_numbers_are_not_truncated(width: int) -> None:
    hot = Problem("hot-queue", "queue 'orders.2'", "gets 99% of the messages", "orders.2")
    lines = screen(interval(*(f"orders.{n}" for n in range(4)), problems=(hot,)), width)
    assert max(map(cell_len, lines)) <= width
    (row,) = [line for line in lines if "orders.2" in line and "hot-queue" in line and "queue '" not in line]
    assert ("12.35%" in row, "1,234,567" in row) == (True, width >= 60)
    assert ("25.00%" in row) == (width >= 60)
    assert ("ctag1.0" in row) == (width >= 120)


@pytest.mark.parametrize("width", [60, 160])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text_and_keep_the_layout(name: str, width: int) -> None:
    problem = Problem("no-consumer", f"queue {name!r}", "has no consumer", name)
    lines = screen(interval(name, "q1", problems=(problem,)), width)
    assert max(map(cell_len, lines)) <= width
    assert not UNPRINTABLE.search("".join(lines))
    assert any(line.lstrip().startswith("q1 ") for line in lines)


def test_rows_with_problems_are_first_if_not_all_rows_fit() -> None:
    names = [f"q{number:04}" for number in range(2000)]
    cold = tuple(
        Problem("no-consumer", f"queue {name!r}", "has no consumer", name) for name in names[1000:1020]
    )
    lines = screen(interval(*names, problems=cold), 80, height=24)
    assert len(lines) <= 24
    assert any("q1000" in line and "no-consumer" in line for line in lines)
    assert "and 12 more problems" in lines
    assert any("and 1,99" in line for line in lines)


def test_the_screen_before_the_first_poll() -> None:
    assert screen(None, 60) == ["Reading the broker ..."]


def lines(*intervals: Interval) -> list[list[str]]:
    """The lines that a pipe gets for each interval, without the time."""
    changes = Changes()
    return [[line.partition(" ")[2] for line in changes.lines(each)] for each in intervals]


def test_a_pipe_gets_a_line_for_each_interval_and_each_change() -> None:
    problem = Problem("hot-queue", "queue 'q0'", "gets 60.0% of the messages", "q0")
    drifted = RingState("drifted", "file", 0.125)
    shown = lines(
        interval("q0"),
        interval("q0", problems=(problem,), ring=drifted),
        interval("q0", problems=(problem,)),
        interval("q0", ring=RingState("unknown", "start")),
    )
    numbers = "1,234.5/s in, 0.0/s out, 7 messages in 1 queue"
    assert shown == [
        [f"orders: ring as in the file; {numbers}; 0 problems"],
        [
            f"orders: ring drifted, 12.50% of the keys go to the wrong queue; {numbers}; 1 problem",
            "new: queue 'q0': gets 60.0% of the messages [hot-queue]",
        ],
        [f"orders: ring as in the file; {numbers}; 1 problem"],
        [f"orders: ring order unknown; {numbers}; 0 problems", "resolved: queue 'q0' [hot-queue]"],
    ]


def test_messages_that_the_broker_does_not_count_are_not_shown_as_none() -> None:
    shown = interval(totals=Totals(), rows=(Row("q0"), Row("q1")))
    ((line,),) = lines(shown)
    assert line.endswith("rates unknown, messages in 2 queues unknown; 0 problems")


def test_a_broker_that_cannot_be_read_resolves_no_problem() -> None:
    hot = Problem("hot-queue", "queue 'q0'", "gets 60.0% of the messages", "q0")
    down = Problem("broker-unreachable", "broker", "connection refused")
    unreadable = interval(problems=(down,))
    shown = lines(interval("q0", problems=(hot,)), unreadable, unreadable, interval("q0"))
    assert shown[1] == ["orders: state unknown; 1 problem", f"new: {down}"]
    assert [each[1:] for each in shown[2:]] == [
        [],
        ["resolved: queue 'q0' [hot-queue]", "resolved: broker [broker-unreachable]"],
    ]


def test_columns_without_any_value_are_not_shown() -> None:
    shown = interval("q0", "q1")
    rows = tuple(replace(row, oldest=None, active_consumer=None) for row in shown.rows)
    for each, expected in ((shown, True), (replace(shown, rows=rows), False)):
        text = "\n".join(screen(each, 200))
        assert ("oldest" in text, "active" in text) == (expected, expected)


def test_two_problems_of_a_name_and_a_queue_are_two_lines() -> None:
    first, second = (
        Problem("settings-drifted", "queue 'q0'", f"argument {name} is 1, expected 2", "q0") for name in "ab"
    )
    shown = lines(*(interval("q0", problems=problems) for problems in ((first, second), (first,))))
    assert [each[1:] for each in shown] == [
        [f"new: {first}", f"new: {second}"],
        ["resolved: queue 'q0' [settings-drifted]"],
    ]
    assert [each[0].rpartition("; ")[2] for each in shown] == ["2 problems", "1 problem"]
