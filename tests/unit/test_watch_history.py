"""Shares over the last minutes, in bounded memory."""

from __future__ import annotations

import pytest

from rabbit_chx.watch import Interval
from rabbit_chx.watch.interval import Row
from rabbit_chx.watch.loop import History
from rabbit_chx.watch.ring_check import RingState


def interval(at: float, **received: int) -> Interval:
    rows = tuple(Row(name, received=count) for name, count in received.items())
    return Interval(at, 10.0, "orders", "/", "4.3.6", RingState(), rows)


def minutes(found: Interval) -> dict[str, list[float | None]]:
    return {
        row.queue: [None if share is None else round(share, 3) for share in row.minutes] for row in found.rows
    }


def test_each_period_counts_its_own_intervals() -> None:
    history = History()
    history.add(interval(0.0, a=100, b=0))
    history.add(interval(300.0, a=0, b=50))
    assert minutes(history.add(interval(590.0, a=0, b=50))) == {"a": [0.0, 0.0, 0.5], "b": [1.0, 1.0, 0.5]}


def test_without_messages_there_are_no_shares() -> None:
    assert minutes(History().add(interval(0.0, a=0))) == {"a": [None, None, None]}


def test_a_clock_that_is_set_back_restarts_the_history() -> None:
    history = History()
    history.add(interval(1000.0, a=100, b=0))
    assert minutes(history.add(interval(10.0, a=0, b=1))) == {"a": [0.0] * 3, "b": [1.0] * 3}


@pytest.mark.parametrize(("seconds", "hours"), [(1.0, 1), (5.0, 1), (30.0, 2)])
def test_memory_is_bounded_over_hours_and_shares_stay_correct(seconds: float, hours: int) -> None:
    history = History()
    sizes = set()
    for number in range(int(hours * 3600 / seconds)):
        found = history.add(interval(number * seconds, a=1, b=3))
        sizes.add(len(history))
        assert minutes(found) == {"a": [0.25] * 3, "b": [0.75] * 3}
    assert max(sizes) <= 182
