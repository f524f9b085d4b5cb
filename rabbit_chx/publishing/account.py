"""The books of a publisher: what it took in, what became of it, and how much may be under way.

The caller's thread and the connection's thread meet here and nowhere else. Every message that was taken in
is, at any time, either pending or has exactly one outcome, so that the totals always sum up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rabbit_chx.errors import RabbitChxError
    from rabbit_chx.publishing.frames import Message

__all__ = ["Account", "Failure", "Outcome", "Totals", "harmless"]

log = logging.getLogger("rabbit_chx.publisher")

_FAILURES_KEPT: Final = 100


class Outcome(Enum):
    """What became of a message in the end."""

    CONFIRMED = "confirmed"
    """The broker has routed it and answers for it."""
    RETURNED = "returned"
    """No queue would take it until the deadline: the broker sent it back."""
    REJECTED = "rejected"
    """The broker refused to answer for it until the deadline (a full queue, for one). If the exchange routes to
    several queues, others may have it."""
    UNKNOWN = "unknown"
    """It left, and the connection died before its confirm: it may be enqueued, or may yet be."""
    UNSENT = "unsent"
    """The publisher gave up before the message left."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that was not confirmed."""

    row: int
    outcome: Outcome
    exchange: str
    routing_key: str
    reply: str
    """The broker's words, or why the publisher gave up."""

    def __str__(self) -> str:
        target = f"exchange {self.exchange!r} with key {self.routing_key!r}"
        return f"row {self.row} {self.outcome.value} ({target}): {self.reply}"


@dataclass(frozen=True, slots=True)
class Totals:
    """A publisher's counters; published is the sum of the five outcomes and of what is pending."""

    published: int
    confirmed: int
    returned: int
    rejected: int
    unknown: int
    unsent: int
    pending: int
    resent: int
    """Messages that left once more, after a nack, a return or a lost connection; not an outcome."""
    bytes: int
    """Bytes of all frames that left."""
    connections: int
    """Connections opened; all but the first are reconnects."""
    blocked_seconds: float

    @property
    def failed(self) -> int:
        """Messages that were not confirmed."""
        return self.returned + self.rejected + self.unknown + self.unsent


class Account:
    """Shared by both threads; every method may be called from either."""

    def __init__(self, *, most: int, most_bytes: int, on_failure: Callable[[Failure], object] | None) -> None:
        self._changed = threading.Condition()
        self._most = most
        self._most_bytes = most_bytes
        self._on_failure = on_failure
        self._outbox: deque[Message] = deque()
        self._outcomes: Counter[Outcome] = Counter()
        self._published = self._pending_bytes = self._resent = self._bytes = self._connections = 0
        self._blocked_since: float | None = None
        self._blocked_seconds = 0.0
        self.failures: list[Failure] = []
        """Those of the hundred lowest rows."""
        self.fatal: RabbitChxError | None = None
        """Why nothing more can be published."""

    # -- the caller's side -------------------------------------------------------------------------

    def next_row(self) -> int:
        """The number of the next message."""
        return self._published

    def take_in(self, messages: Sequence[Message], wake: Callable[[], object]) -> None:
        """Queue messages as room permits, waiting for it; a fatal error is raised."""
        done = 0
        while done < len(messages):
            with self._changed:
                self._changed.wait_for(lambda: self.fatal is not None or self._has_room())
                if self.fatal is not None:
                    raise self.fatal
                part = self._fitting(messages, done)
                self._outbox.extend(part)
                self._published += len(part)
                self._pending_bytes += sum(len(message.body) for message in part)
            done += len(part)
            wake()

    def _has_room(self) -> bool:
        # A quarter at least, so that the two threads do not change places for every message.
        return self._pending() <= self._most * 3 // 4 and self._pending_bytes <= self._most_bytes * 3 // 4

    def _fitting(self, messages: Sequence[Message], start: int) -> Sequence[Message]:
        """The next messages that there is room for: at least one, or a body above the limit never left."""
        count = self._most - self._pending()
        room = self._most_bytes - self._pending_bytes
        end = start
        while end < len(messages) and end - start < count:
            room -= len(messages[end].body)
            if room < 0 and end > start:
                break
            end += 1
        return messages[start:end]

    def wait_until_settled(self, timeout: float | None) -> bool:
        """Whether nothing is pending any more, after waiting for that."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending(), timeout)

    def totals(self) -> Totals:
        """All counters at one moment."""
        with self._changed:
            blocked = 0.0 if self._blocked_since is None else time.monotonic() - self._blocked_since
            return Totals(
                published=self._published,
                **{outcome.value: self._outcomes[outcome] for outcome in Outcome},
                pending=self._pending(),
                resent=self._resent,
                bytes=self._bytes,
                connections=self._connections,
                blocked_seconds=self._blocked_seconds + blocked,
            )

    def _pending(self) -> int:
        return self._published - self._outcomes.total()

    # -- the connection's side ---------------------------------------------------------------------

    def to_send(self, most: int, most_bytes: int) -> list[Message]:
        """The next messages to leave, taken off the queue."""
        with self._changed:
            outbox, size = self._outbox, 0
            taken: list[Message] = []
            while outbox and len(taken) < most and size < most_bytes:
                message = outbox.popleft()
                size += len(message.body)
                taken.append(message)
            return taken

    def put_back(self, messages: Iterable[Message], *, first: bool) -> None:
        """Messages that are to leave once more, before all others or behind them."""
        with self._changed:
            if first:
                self._outbox.extendleft(reversed(list(messages)))
            else:
                self._outbox.extend(messages)

    def left(self, size: int, resent: int) -> None:
        """Frames were handed to the connection."""
        with self._changed:
            self._bytes += size
            self._resent += resent

    def settle(self, messages: Sequence[Message], outcome: Outcome) -> None:
        """These have their outcome."""
        if not messages:
            return
        failures = (
            [] if outcome is Outcome.CONFIRMED else [_failure(message, outcome) for message in messages]
        )
        with self._changed:
            self._outcomes[outcome] += len(messages)
            self._pending_bytes -= sum(len(message.body) for message in messages)
            if failures:
                # By row and not by time: whoever resumes must know the first one that is missing.
                self.failures = nsmallest(
                    _FAILURES_KEPT, [*self.failures, *failures], key=lambda one: one.row
                )
            if self._has_room():
                self._changed.notify_all()
        if self._on_failure is not None:
            for failure in failures:
                with harmless("on_failure"):
                    self._on_failure(failure)

    def give_up(self, error: RabbitChxError, in_flight: Iterable[Message]) -> None:
        """Nothing more will leave: each message gets the outcome that is true of it now."""
        with self._changed:
            self.fatal = error
            waiting = list(self._outbox)
            self._outbox.clear()
        ends: dict[Outcome, list[Message]] = {Outcome.UNKNOWN: list(in_flight)}
        for message in waiting:
            outcome = Outcome.UNKNOWN if message.doubtful else message.verdict or Outcome.UNSENT
            ends.setdefault(outcome, []).append(message)
        for outcome, messages in ends.items():
            if outcome in {Outcome.UNKNOWN, Outcome.UNSENT}:
                for message in messages:
                    message.reply = str(error)
            self.settle(messages, outcome)
        with self._changed:
            self._changed.notify_all()

    def connected(self) -> None:
        """A connection was opened."""
        with self._changed:
            self._connections += 1
            self._changed.notify_all()

    def blocked(self, *, now: bool) -> None:
        """The broker stopped reading, or reads again."""
        with self._changed:
            if self._blocked_since is not None:
                self._blocked_seconds += time.monotonic() - self._blocked_since
            self._blocked_since = time.monotonic() if now else None

    def wait_until_connected(self, timeout: float) -> bool:
        """Whether a connection was ever opened, after waiting for that or for a fatal error."""
        with self._changed:
            self._changed.wait_for(lambda: self._connections or self.fatal is not None, timeout)
            if self.fatal is not None:
                raise self.fatal
            return self._connections > 0


@contextmanager
def harmless(hook: str) -> Iterator[None]:
    """A hook of the caller's runs here: what it raises is logged and changes nothing for the messages."""
    try:
        yield
    except Exception:
        log.exception("the publisher's hook %s failed", hook)


def _failure(message: Message, outcome: Outcome) -> Failure:
    return Failure(
        message.row,
        outcome,
        message.exchange.decode("utf-8", "replace"),
        message.routing_key.decode("utf-8", "replace"),
        message.reply,
    )
