"""Poll an exchange at intervals until the watch is stopped, with the shares of the last 1, 5 and 15 minutes."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from threading import Event
from typing import Final

from rabbit_chx.topology import Topology
from rabbit_chx.topology.model import hashing_exchange
from rabbit_chx.watch.interval import MINUTES, Interval, compare
from rabbit_chx.watch.observer import Observer, Snapshot
from rabbit_chx.watch.ring_check import RingCheck, check_ring

_SLOT: Final = 10.0
"""Seconds; shorter intervals are merged."""


def watch(
    observer: Observer,
    wanted: Topology | None = None,
    *,
    seconds: float = 10.0,
    stop: Event | None = None,
) -> Iterator[Interval]:
    """Poll an exchange, and yield what happened since the previous poll.

    The first interval has no rates. A poll begins only when the previous poll is done. A virtual host with
    thousands of queues is polled less often than every ``seconds``.

    Args:
        observer: polls the broker.
        wanted: the topology file, if any.
        seconds: the time from the start of a poll to the start of the next.
        stop: ends the watch, at once if it is waiting for the next poll.

    Raises:
        InvalidValue: the file (without a file, the broker) has no such exchange, or it does not hash.
        BrokerUnavailable: the broker refused the first poll, so a retry would also fail.
    """
    stop = stop or Event()
    history = History()
    previous: Snapshot | None = None
    ring_check: RingCheck | None = None
    highest: Mapping[str, tuple[int, int]] = {}
    while not stop.is_set():
        began = time.monotonic()
        current = replace(observer._poll(), highest=highest)
        topology = wanted if current.first is None else wanted or current.first.topology
        if topology is not None and (previous is None or previous.first is None):
            hashing_exchange(topology, current.exchange)
        if (
            previous is None
            or previous.observed is not current.observed
            or previous.restarted != current.restarted
        ):  # the bindings may have changed; computing the shares of a ring takes a second
            ring_check = check_ring(current, wanted)
        yield history.add(compare(previous, current, wanted, ring_check=ring_check))
        previous, highest = current, current.highest_now
        length = max(seconds, observer._least_seconds)
        stop.wait(max(0.0, began + length - time.monotonic()))


class History:
    """Adds up the messages of each queue over the last minutes, in bounded memory."""

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
