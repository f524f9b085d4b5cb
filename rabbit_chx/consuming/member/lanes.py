"""The state of each queue that a member consumes, its *lane*: the deliveries in order, and how far they are handled.

A lane outlives the connection, so that one message is never handled twice at the same time: redeliveries after a
reconnect wait until the handler has finished its current message. This module does no IO; its caller holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import monotonic
from typing import Any

from rabbit_chx.consuming.messages import Delivery
from rabbit_chx.consuming.seats import priority

_WINDOW = 10.0
"""Seconds over which a rate is measured."""
_QUIET = 1.0
"""Seconds after the last delivery, when no other can still be in transit."""


class Lane:
    """One queue of a member."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.channel: Any = None
        """The channel on which the queue is consumed now, if any."""
        self.priority = 0
        self.waiting: deque[Delivery] = deque()
        """Messages that were delivered and are not yet handled."""
        self.busy = False
        """Whether a worker has the lane or is about to take it; only one may."""
        self.paused = False
        """Whether a busy lane waits for a release or for the next attempt at a message."""
        self.current: Delivery | None = None
        """The message that is being handled."""
        self.failures = 0
        """How often the first waiting message has failed."""
        self.done = 0
        """The delivery tag up to which everything is handled."""
        self.acked = 0
        """The delivery tag up to which everything is acknowledged."""
        self._delivered = 0
        self._heard = 0.0
        self.careful = False
        """Whether the broker may keep the consumer after its channel is closed (`Release.keeps_dead_consumers`)."""
        self.hold: str | None = None
        """The name of the queue whose deletion releases the lane, if it is held."""
        self.leaving = False
        """Whether no further message may be started, because the channel is about to be closed."""
        self.handled = 0
        self._since: float | None = None
        self._tag = 0
        self._counts: deque[tuple[float, int]] = deque([(monotonic(), 0)])

    def attach(self, channel: Any, priority: int, *, careful: bool = False) -> None:
        """Begin to consume on a new channel."""
        self.channel, self.priority = channel, priority
        self.done = self.acked = self._delivered = 0
        self.careful, self._heard = careful, monotonic()
        self.leaving = False

    def detach(self) -> Any:
        """Forget the channel and its deliveries, which the broker redelivers; return the channel."""
        channel, self.channel = self.channel, None
        self.waiting.clear()
        self.hold = None
        self.failures = 0
        if self.paused:
            self.paused = self.busy = False
        return channel

    @property
    def is_idle(self) -> bool:
        """Whether no worker has the lane or is about to take it."""
        return self.paused or not self.busy

    @property
    def to_displace(self) -> str:
        """The queue, if its consumer may have messages and must be displaced before the channel is closed; otherwise empty."""
        recent = monotonic() - self._heard < _QUIET
        return self.queue if self.careful and (recent or self._delivered > self.acked) else ""

    def add(self, message: Delivery) -> bool:
        """Add a delivery; return whether the lane must be submitted to a worker."""
        self.waiting.append(message)
        self._delivered, self._heard = message.tag, monotonic()
        if self.busy or self.leaving:
            return False
        self.busy = True
        return True

    def take(self) -> Delivery | None:
        """Take the next message; without one, the lane is no longer busy."""
        if self.leaving or not self.waiting:
            self.busy = False
            return None
        self.current = self.waiting.popleft()
        return self.current

    def finish(self, message: Delivery, channel: Any, *, counted: bool = True) -> bool:
        """Mark the current message as handled; return whether it can be acknowledged on the channel that delivered it."""
        self.current = None
        self.failures = 0
        self.handled += counted
        if self.channel is not channel:
            return False
        self.done = message.tag
        return True

    def put_back(self, message: Delivery, channel: Any) -> bool:
        """Put the current message back to the front; return False if its channel is no longer the lane's."""
        self.current = None
        if self.channel is not channel:
            return False
        self.waiting.appendleft(message)
        return True

    def sample(self, now: float) -> None:
        """Take the sample for `rate`, about once a second."""
        self._counts.append((now, self.handled))
        while len(self._counts) > 1 and now - self._counts[0][0] > _WINDOW:
            self._counts.popleft()
        first = self.current or (self.waiting[0] if self.waiting else None)
        if first is None:
            self._since = None
        elif self._since is None or self._tag != first.tag:
            self._since, self._tag = now, first.tag

    def status(self, now: float) -> dict[str, Any]:
        """The numbers that `rabbit-chx group` shows for the lane."""
        then, count = self._counts[0]
        return {
            "handled": self.handled,
            "rate": round((self.handled - count) / max(now - then, 1.0), 2),
            "waiting": len(self.waiting) + (self.current is not None),
            "oldest": None if self._since is None else round(now - self._since, 1),
            "failures": self.failures,
            "hold": self.hold,
            "priority": self.priority,
        }


def assign(lanes: dict[str, Lane], names: Iterable[str], seat: int) -> list[tuple[Lane, int]]:
    """Add lanes for these queues; return the lanes that are not consumed yet, each with its priority.

    Lanes that are consumed with another priority are marked as leaving.
    """
    ordered = sorted({*lanes, *names})
    found = []
    for index, name in enumerate(ordered):
        lane = lanes.setdefault(name, Lane(name))
        wanted = priority(seat, index, len(ordered))
        if lane.channel is None:
            found.append((lane, wanted))
        elif lane.priority != wanted:
            lane.priority, lane.leaving = wanted, True
    return found
