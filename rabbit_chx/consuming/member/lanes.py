"""The state of each queue that a member consumes, its *lane*: the deliveries in order, how far they are handled, and the status.

A lane outlives the connection, so that one message is never handled twice at the same time: redeliveries after a
reconnect wait until the handler has finished its current message. This module does no IO; its caller holds the lock.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from rabbit_chx.consuming.seats import priority
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.workers import OneByOne, Work

_WINDOW = 10.0
"""Seconds over which a rate is measured."""
_QUIET = 1.0
"""Seconds after the last delivery, when no other can still be in transit."""


class Lane(Work):
    """One queue of a member."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.priority = 0
        self.acked = 0
        """How many deliveries of the channel are acknowledged or rejected."""
        self._delivered = 0
        self._heard = 0.0
        self.hold: str | None = None
        """The name of the queue whose deletion releases the lane, if it is held."""
        self.absent_since = math.inf
        """Since when that queue has been absent, as far as the member knows."""
        self.leaving = False
        """Whether no further message may be started, because the channel is about to be closed."""
        self.handled = 0
        self.last_delivery: float | None = None
        """The time of `monotonic` at the last delivery."""
        self._earlier: list[Delivery] = []
        """What handlers still have from earlier channels, the oldest first."""
        self._since: float | None = None
        self._tag = 0
        self._counts: deque[tuple[float, int]] = deque([(monotonic(), 0)])

    def attach(self, channel: Any, priority: int) -> None:
        """Begin to consume on a new channel."""
        self.channel, self.priority = channel, priority
        self.acked = self._delivered = 0
        self._heard = monotonic()
        self.leaving = False
        self._begin_again()

    def detach(self) -> Any:
        """Forget the channel and its deliveries, which the broker redelivers; return the channel."""
        channel, self.channel = self.channel, None
        self.hold = None
        self._forget()
        self._earlier += sorted({*self.unfinished} - {*self._earlier}, key=lambda each: each.tag)
        return channel

    @property
    def unsettled(self) -> str:
        """The queue, if its consumer may have messages when the channel is closed; otherwise empty."""
        recent = monotonic() - self._heard < _QUIET
        return self.queue if recent or self._delivered > self.acked else ""

    def read(self, messages: Sequence[Delivery]) -> None:
        """Learn what the lane needs of deliveries before it adds them. Its caller does not hold the lock, because the program may do this."""

    def add(self, messages: Sequence[Delivery]) -> int:
        """Add deliveries in their order; return how many more workers the lane needs."""
        self._delivered = messages[-1].tag
        self._heard = self.last_delivery = monotonic()
        return self._put(messages)

    @abstractmethod
    def _begin_again(self) -> None:
        """Expect the first delivery of a channel."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget the deliveries that no worker has."""

    @abstractmethod
    def _put(self, messages: Sequence[Delivery]) -> int:
        """Add deliveries behind the earlier ones."""

    @abstractmethod
    def finish(self, message: Delivery, channel: Any, *, settled: bool = False) -> int:
        """Mark a message as handled; it is not acknowledged again if it is settled: acknowledged or rejected already."""

    # ---- what the member does

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether no message is being handled or is about to be."""

    @abstractmethod
    def to_acknowledge(self, *, lazily: bool = False) -> list[tuple[int, bool]]:
        """The tags to acknowledge, each with whether this acknowledges all earlier ones too.

        Lazily, not those that one acknowledgement may soon cover together.
        """

    @abstractmethod
    def release(self) -> Delivery | None:
        """Take the marker that holds the lane."""

    # ---- what others see

    @property
    @abstractmethod
    def unfinished(self) -> Iterable[Delivery]:
        """The messages that are next: those that are being handled, and the first ones of those that wait."""

    @property
    @abstractmethod
    def in_hand(self) -> int:
        """How many messages were delivered and are not handled."""

    def sample(self, now: float) -> None:
        """Take the sample for `rate`, about once a second."""
        self._counts.append((now, self.handled))
        while len(self._counts) > 1 and now - self._counts[0][0] > _WINDOW:
            self._counts.popleft()
        self._oldest(now)

    def _oldest(self, now: float) -> float | None:
        """Seconds since the oldest message was first seen as the next one."""
        unfinished = [*self.unfinished]
        self._earlier = [each for each in self._earlier if each in unfinished]
        # Each channel begins with tag 1.
        oldest = min((each.tag for each in self._earlier[:1] or unfinished), default=None)
        if oldest is None:
            self._since = None
            return None
        if self._since is None or self._tag != oldest:
            self._since, self._tag = now, oldest
        return round(now - self._since, 1)

    def status(self, now: float) -> dict[str, Any]:
        """The numbers that `rabbit-chx group` shows for the lane."""
        then, count = self._counts[0]
        return {
            "handled": self.handled,
            "rate": round((self.handled - count) / max(now - then, 1.0), 2),
            "waiting": self.in_hand,
            "oldest": self._oldest(now),  # also while the member waits for the broker, and takes no samples
            "failures": max([0, *(each.attempt - 1 for each in self.unfinished)]),
            "hold": self.hold,
            "priority": self.priority,
        }


class QueueLane(OneByOne, Lane):
    """With ``order="queue"``: one message after the other."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.waiting: deque[Delivery] = deque()
        """Messages that were delivered and are not yet handled."""
        self.current: Delivery | None = None
        """The message that is being handled."""
        self.done = 0
        """The delivery tag up to which everything is handled."""

    def _begin_again(self) -> None:
        self.done = 0

    def _forget(self) -> None:
        self.waiting.clear()
        self.end_pause()

    def _put(self, messages: Sequence[Delivery]) -> int:
        self.waiting.extend(messages)
        if self.busy or self.leaving:
            return 0
        self.busy = True
        return 1

    def take(self) -> Delivery | None:
        """Take the next message; without one, the worker has left the lane."""
        if self.leaving or not self.waiting:
            self.busy = False
            return None
        self.current = self.waiting.popleft()
        return self.current

    def finish(self, message: Delivery, channel: Any, *, settled: bool = False) -> int:
        """Mark the current message as handled; the worker goes on with the next one."""
        self.current = None
        self.handled += 1
        if self.channel is channel:
            self.done = message.tag
            if settled:
                self.acked = self.done
        return 0

    def put_back(self, message: Delivery, channel: Any) -> bool:
        """Put the current message back to the front."""
        self.current = None
        if self.channel is not channel:
            return False
        self.waiting.appendleft(message)
        return True

    def to_acknowledge(self, *, lazily: bool = False) -> list[tuple[int, bool]]:  # noqa: ARG002 - only of keys
        """The last tag."""
        if self.done <= self.acked:
            return []
        self.acked = self.done
        return [(self.done, True)]

    def release(self) -> Delivery | None:
        """Take the marker; the lane stays paused."""
        self.hold = None
        return self.take()

    @property
    def unfinished(self) -> Iterable[Delivery]:
        """The current message, or the first that waits."""
        first = self.current or (self.waiting[0] if self.waiting else None)
        return () if first is None else (first,)

    @property
    def in_hand(self) -> int:
        """How many messages were delivered and are not handled."""
        return len(self.waiting) + (self.current is not None)


def assign(
    lanes: dict[str, Lane], names: Iterable[str], seat: int, new: Callable[[str], Lane]
) -> list[tuple[Lane, int]]:
    """Add lanes for these queues; return the lanes that are not consumed yet, each with its priority.

    Lanes that are consumed with another priority are marked as leaving.
    """
    ordered = sorted({*lanes, *names})
    found = []
    for index, name in enumerate(ordered):
        if name not in lanes:
            lanes[name] = new(name)
        lane = lanes[name]
        wanted = priority(seat, index, len(ordered))
        if lane.channel is None:
            found.append((lane, wanted))
        elif lane.priority != wanted:
            lane.priority, lane.leaving = wanted, True
    return found


# ---- the status of the member


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How a member of a group is."""

    connected: bool
    """Whether it consumes."""
    reason: str
    """Why it does not consume; empty if it does."""
    queues: tuple[str, ...]
    """The queues that it consumes; the broker delivers those to it that no other member has."""
    in_hand: int
    """Messages that were delivered and are not handled."""
    oldest: float | None
    """Seconds since the oldest of them became the next to be handled, as seen each second and by each look at the status; None
    without any."""
    handled: int
    """Messages handled or given up since the start of the run, also those of queues that were deleted."""
    failed: int
    """Failed attempts since the start of the run."""
    last_delivery: datetime | None
    """When the last message was delivered."""


def status_of(lanes: Sequence[Lane], why_not: str) -> GroupStatus:
    """The status of a member with these lanes; the caller holds their lock."""
    now, at = monotonic(), datetime.now(UTC)
    deliveries = [each.last_delivery for each in lanes if each.last_delivery is not None]
    oldest = [seconds for each in lanes if (seconds := each.status(now)["oldest"]) is not None]
    return GroupStatus(
        connected=not why_not,
        reason=why_not,
        queues=tuple(sorted(each.queue for each in lanes if each.channel is not None)),
        in_hand=sum(each.in_hand for each in lanes),
        oldest=max(oldest, default=None),
        handled=sum(each.handled for each in lanes),
        failed=sum(each.failed for each in lanes),
        last_delivery=at - timedelta(seconds=now - max(deliveries)) if deliveries else None,
    )
