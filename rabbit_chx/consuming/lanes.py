"""The queues of one member, each a lane: its messages in order, and how far they are handled.

A lane outlives the connection, so that a message is never handled twice at once: what the broker delivers again after a
reconnect waits until the handler has finished with what it has. This module does no IO; its user holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import monotonic
from typing import Any

from rabbit_chx.consuming.messages import Message
from rabbit_chx.consuming.priorities import priority

_WINDOW = 10.0
"""Seconds over which a rate is measured."""
_QUIET = 1.0
"""Seconds after which a delivery that was on its way has come."""


class Lane:
    """One queue of a member."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.channel: Any = None
        """The channel on which the queue is consumed now, if any."""
        self.priority = 0
        self.waiting: deque[Message] = deque()
        """What was delivered and is not yet handled."""
        self.busy = False
        """Whether somebody works on the lane or is going to; only one at a time does."""
        self.paused = False
        """Whether a busy lane only waits: for a release, or to try a message again."""
        self.current: Message | None = None
        """What the handler works on."""
        self.failures = 0
        """How often the first waiting message has failed."""
        self.done = 0
        """The delivery tag up to which everything is handled."""
        self.acked = 0
        """The delivery tag up to which everything is acknowledged."""
        self._delivered = 0
        self._heard = 0.0
        self.careful = False
        """Whether the broker may keep a consumer after its channel was closed (`keeps_dead_consumers`)."""
        self.hold: str | None = None
        """The name of the queue whose deletion releases the lane, if it is held."""
        self.leaving = False
        """Whether no other message may be started, because the channel is going to be closed."""
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
        """Forget the channel and what it delivered, which the broker delivers again; return the channel."""
        channel, self.channel = self.channel, None
        self.waiting.clear()
        self.hold = None
        self.failures = 0
        if self.paused:
            self.paused = self.busy = False
        return channel

    @property
    def is_idle(self) -> bool:
        """Whether no handler works on it, nor is about to."""
        return self.paused or not self.busy

    @property
    def to_displace(self) -> str:
        """The queue, if its consumer may have messages and must be displaced before the channel is closed."""
        recent = monotonic() - self._heard < _QUIET
        return self.queue if self.careful and (recent or self._delivered > self.acked) else ""

    def add(self, message: Message) -> bool:
        """Take a delivery; return whether somebody must begin to work on the lane."""
        self.waiting.append(message)
        self._delivered, self._heard = message.tag, monotonic()
        if self.busy or self.leaving:
            return False
        self.busy = True
        return True

    def take(self) -> Message | None:
        """The next message to work on; without one the lane is no longer busy."""
        if self.leaving or not self.waiting:
            self.busy = False
            return None
        self.current = self.waiting.popleft()
        return self.current

    def finish(self, message: Message, channel: Any) -> bool:
        """The current message is handled; return whether it can be acknowledged, on the channel that delivered it."""
        self.current = None
        self.failures = 0
        self.handled += 1
        if self.channel is not channel:
            return False
        self.done = message.tag
        return True

    def put_back(self, message: Message, channel: Any) -> bool:
        """The current message is to be handled again; return whether its channel is still there."""
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
        """What `rabbit-chx group` shows of the lane."""
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
    """Add lanes for these queues; return those that are to be consumed, each with its priority.

    Lanes that are consumed with another priority are told to leave.
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
