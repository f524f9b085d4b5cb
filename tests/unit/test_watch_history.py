"""Shares over the last minutes, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rabbit_chx.broker.management_rows import QueueState
from rabbit_chx.topology.planning.what_if import assume_applied
from rabbit_chx.watch import Interval
from rabbit_chx.watch.interval import Row
from rabbit_chx.watch.loop import History, watch
from rabbit_chx.watch.observer import Snapshot
from rabbit_chx.watch.ring_check import RingState
from tests.unit.topology.broker_model import hashed


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


class _Polls:
    """An observer that finds these counters of queue q0, and 10 more messages in q1 at each poll."""

    _least_seconds = 0.0

    def __init__(self, *counters: int | None) -> None:
        self._found = iter(enumerate(counters))
        self._there = assume_applied(hashed("orders", ["q0", "q1"]))

    def _poll(self) -> Snapshot:
        number, counter = next(self._found)
        q0, q1 = (
            QueueState(name, received=n, handled=n) for name, n in (("q0", counter), ("q1", 10 * number))
        )
        return Snapshot(10.0 * number, "orders", "/", self._there, self._there, {"q0": q0, "q1": q1})


def intervals(*counters: int | None) -> Iterator[Interval]:
    watching = watch(_Polls(*counters), seconds=0.0)  # type: ignore[arg-type]
    return (next(watching) for _ in counters)


@pytest.mark.parametrize("missing", [None, 400_000], ids=["all statistics", "those of one node"])
def test_statistics_that_return_are_no_messages_of_one_interval(missing: int | None) -> None:
    found = list(intervals(1_000_000, missing, missing, 1_000_020, 1_000_030))
    counts = [None, None, missing and 0, None, 10]
    assert [each.rows[0].received for each in found] == [each.rows[0].handled for each in found] == counts
    assert not any(each.problems for each in found)
    assert found[-1].rows[0].minutes == (0.2,) * 3


def test_a_counter_that_begins_again_counts_from_zero() -> None:
    found = [each.rows[0].received for each in intervals(1000, None, 20, 50)]
    assert found == [None, None, 20, 30]
