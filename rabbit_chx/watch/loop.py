"""Poll an exchange at intervals until the watch is stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Event

from rabbit_chx.topology import Topology
from rabbit_chx.topology.model import hashing_exchange
from rabbit_chx.watch.history import History
from rabbit_chx.watch.interval import Interval, compare
from rabbit_chx.watch.observer import Observer
from rabbit_chx.watch.ring_check import RingCheck, check_ring
from rabbit_chx.watch.snapshot import Snapshot


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
        BrokerUnavailable: the broker refused the first poll, so a retry would fail, too.
    """
    stop = stop or Event()
    history = History()
    previous: Snapshot | None = None
    ring_check: RingCheck | None = None
    while not stop.is_set():
        began = time.monotonic()
        current = observer.poll()
        topology = wanted if current.first is None else wanted or current.first.topology
        if topology is not None and (previous is None or previous.first is None):
            hashing_exchange(topology, current.exchange)
        if previous is None or not _same(previous, current):
            ring_check = check_ring(current, wanted)  # computing the shares of a ring takes a second
        yield history.add(compare(previous, current, wanted, ring_check=ring_check))
        previous = current
        length = max(seconds, observer.least_seconds)
        stop.wait(max(0.0, began + length - time.monotonic()))


def _same(previous: Snapshot, current: Snapshot) -> bool:
    """Whether both polls found the same bindings, so that the comparison of the ring holds for both."""
    return previous.observed is current.observed and previous.restarted == current.restarted
