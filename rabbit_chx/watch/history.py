"""The shares of the last 1, 5 and 15 minutes, in bounded memory. No IO."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import Final

from rabbit_chx.watch.interval import MINUTES, Interval

_SLOT: Final = 10.0
"""Seconds; shorter intervals are merged."""


class History:
    """Adds up the messages of each queue over the last minutes."""

    def __init__(self) -> None:
        self._slots: deque[tuple[float, Counter[str]]] = deque()
        """The end of each slot, and the messages in it."""

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, interval: Interval) -> Interval:
        """Add an interval, and return it with the shares of the last minutes, which include it."""
        received = Counter({row.queue: row.received for row in interval.rows if row.received})
        self._append(interval.time, received)
        counts = [self._count(interval.time - 60.0 * minutes) for minutes in MINUTES]
        totals = [each.total() for each in counts]
        rows = (
            replace(
                row,
                minutes=tuple(
                    count[row.queue] / total if total else None
                    for count, total in zip(counts, totals, strict=True)
                ),
            )
            for row in interval.rows
        )
        return replace(interval, rows=tuple(rows))

    def _append(self, at: float, received: Counter[str]) -> None:
        if self._slots and at < self._slots[-1][0]:  # the clock was set back
            self._slots.clear()
        while self._slots and self._slots[0][0] <= at - 60.0 * MINUTES[-1]:
            self._slots.popleft()
        if len(self._slots) > 1 and at - self._slots[-2][0] <= _SLOT:
            received += self._slots.pop()[1]
        self._slots.append((at, received))

    def _count(self, since: float) -> Counter[str]:
        counted: Counter[str] = Counter()
        for at, received in self._slots:
            if at > since:
                counted.update(received)
        return counted
