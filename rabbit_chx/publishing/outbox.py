"""The messages that wait to be sent, and the counters: what the callers' threads and the sender's thread share.

Every accepted message is, at any time, either pending or has exactly one outcome, so the totals always add up.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from rabbit_chx.base.unfair import UnfairCondition
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.publishing.messages import Outcome, OutgoingMessage, Owner, Totals

log = logging.getLogger("rabbit_chx.publisher")

NO_MORE: Final = "the publisher accepts no more messages"
_LOOK_AGAIN: Final = 0.5


class _Item(Protocol):
    """What waits to be sent: one message, or several of one owner."""

    owner: Owner
    attempts: int

    @property
    def end(self) -> Outcome:
        """What becomes of it if it is given up while it waits."""
        ...


Item = TypeVar("Item", bound=_Item)


class BaseOutbox(Generic[Item]):
    """What the outboxes of both protocols have in common. Shared by all threads; every method may be called from any of them."""

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self._changed = UnfairCondition()  # re-entrant, so `stop_accepting` may run in a signal handler
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._unsent: deque[Item] = deque()
        self._outcomes: Counter[Outcome] = Counter()
        self._pending = self._pending_bytes = self._resent = self._bytes = self._connections = 0
        self._duplicates = 0
        self._blocked_since: float | None = None
        self._blocked_seconds = 0.0
        self._accepting = True
        self._closed = False
        self.given_up_at: float = -math.inf
        """When the sender has given up last, on the monotonic clock."""
        self.why_given_up: RabbitChxError | None = None
        """Why it did, or that it is closed."""
        self.error: RabbitChxError | None = None
        """Why the sender has given up; None as soon as it is connected again, and unchanged by `close`."""
        self.trouble: str = ""
        """What keeps messages from being sent at the moment."""

    # -- the caller's side -------------------------------------------------------------------------

    def _wait_for_space(self, deadline: float | None, since: float | None, *, fits: bool = False) -> bool:
        # A signal handler may stop it after this thread has looked and before it waits, hence the timeout.
        while not (fits or self._closed or not self._accepting or self._has_space()):
            left = _LOOK_AGAIN if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(min(left, _LOOK_AGAIN))
        if self.why_given_up is not None and (
            self._closed or (since is not None and self.given_up_at > since)
        ):
            raise self.why_given_up
        if not self._accepting:
            raise BrokerUnavailable(NO_MORE)
        return True

    def withdraw(self, owners: Container[Owner], why: str) -> None:
        """Give up the messages of these owners that were never handed to a connection."""
        if self.trouble:
            why += f" {self.trouble}"
        with self._changed:
            found = [item for item in self._unsent if item.owner in owners and not item.attempts]
            if found:
                gone = set(map(id, found))
                self._unsent = deque(item for item in self._unsent if id(item) not in gone)
        self.settle(found, Outcome.UNSENT, why)

    def stop_accepting(self) -> None:
        """Make `Pipeline.accept` raise, even while it waits."""
        with self._changed:
            self._accepting = False
            self._changed.notify_all()

    def _has_space(self) -> bool:
        # Wait until a quarter is free, so that the threads do not switch for every message.
        full = self._pending > self._max_messages * 3 // 4
        return not full and self._pending_bytes <= self._max_bytes * 3 // 4

    def wait_until_settled(self, timeout: float) -> bool:
        """Wait until nothing is pending; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout)

    def totals(self) -> Totals:
        """Return all counters as of one moment."""
        with self._changed:
            blocked = 0.0 if self._blocked_since is None else time.monotonic() - self._blocked_since
            return Totals(
                published=self._pending + self._outcomes.total(),
                **{outcome.value: self._outcomes[outcome] for outcome in Outcome},
                pending=self._pending,
                duplicates=self._duplicates,
                resent=self._resent,
                bytes=self._bytes,
                connections=self._connections,
                blocked_seconds=self._blocked_seconds + blocked,
            )

    # -- the sender's side -------------------------------------------------------------------------

    def settle(self, items: Sequence[Item], outcome: Outcome, reply: str = "") -> None:
        """Record the outcome of messages, and tell their owners; ``reply`` says why if that is not the last reply of each."""
        raise NotImplementedError

    def _settled(self, count: int, size: int, outcome: Outcome, duplicates: int = 0) -> None:
        with self._changed:
            self._outcomes[outcome] += count
            self._duplicates += duplicates
            self._pending -= count
            self._pending_bytes -= size
            if self._has_space():
                self._changed.notify_all()

    def note_sent(self, size: int, resent: int) -> None:
        """Count frames that were handed to the connection."""
        with self._changed:
            self._bytes += size
            self._resent += resent

    def give_up(self, error: RabbitChxError, *, closed: bool = False) -> None:
        """Give each message that waits its outcome. Unless closed, later messages make the sender try again."""
        with self._changed:
            self.why_given_up = error
            if not closed:
                self.error = error
            self._closed = closed
            self.given_up_at = time.monotonic()
            unsent = list(self._unsent)
            self._unsent.clear()
        ends: defaultdict[Outcome, list[Item]] = defaultdict(list)
        for item in unsent:
            ends[item.end].append(item)
        for outcome, items in ends.items():
            self.settle(items, outcome, str(error) if outcome in {Outcome.UNKNOWN, Outcome.UNSENT} else "")
        with self._changed:
            self._changed.notify_all()

    def connected(self) -> None:
        """Count a connection that was opened."""
        with self._changed:
            self._connections += 1
            self.error = None
            self._changed.notify_all()

    def wait_until_connected(self, timeout: float) -> bool:
        """Wait until a connection was opened; return whether one was, or raise the final error."""
        with self._changed:
            self._changed.wait_for(lambda: self._connections or self.why_given_up is not None, timeout)
            if self.why_given_up is not None and (self._closed or self.error is not None):
                raise self.why_given_up
            return self._connections > 0


class Outbox(BaseOutbox[OutgoingMessage]):
    """The messages that wait for the sender of AMQP 0-9-1."""

    def add(
        self,
        messages: Sequence[OutgoingMessage],
        wake: Callable[[], object],
        deadline: float | None = None,
        since: float | None = None,
    ) -> int:
        """Accept messages of one owner: see `Pipeline.accept`."""
        done = 0
        while done < len(messages):
            with self._changed:
                if not self._wait_for_space(deadline, since):
                    break
                part, size = self._fitting(messages, done)
                part[0].owner.accepted(part)
                self._unsent.extend(part)
                self._pending += len(part)
                self._pending_bytes += size
            done += len(part)
            wake()
        return done

    def _fitting(
        self, messages: Sequence[OutgoingMessage], start: int
    ) -> tuple[Sequence[OutgoingMessage], int]:
        """Return the next messages that fit and their size: at least one, or a body above the limit would wait forever."""
        part = messages[start : start + self._max_messages - self._pending]
        space = self._max_bytes - self._pending_bytes
        size = 0
        for count, message in enumerate(part):
            larger = size + len(message.body)
            if larger > space and count:
                return part[:count], size
            size = larger
        return part, size

    def take(self, max_messages: int, max_bytes: int) -> list[OutgoingMessage]:
        """Remove and return the next messages to send."""
        with self._changed:
            unsent, size = self._unsent, 0
            taken: list[OutgoingMessage] = []
            while unsent and len(taken) < max_messages and size < max_bytes:
                message = unsent.popleft()
                size += len(message.body)
                taken.append(message)
            return taken

    def put_back(self, messages: Iterable[OutgoingMessage], *, first: bool) -> None:
        """Queue messages to be sent again, before all others or after them."""
        with self._changed:
            if first:
                self._unsent.extendleft(reversed(list(messages)))
            else:
                self._unsent.extend(messages)

    def settle(self, items: Sequence[OutgoingMessage], outcome: Outcome, reply: str = "") -> None:
        """Record the outcome of messages, and tell their owners."""
        if not items:
            return
        self._settled(len(items), sum(len(message.body) for message in items), outcome)
        owned: defaultdict[Owner, list[OutgoingMessage]] = defaultdict(list)
        for message in items:
            owned[message.owner].append(message)
        for owner, own in owned.items():
            owner.settled(own, outcome, reply)

    def blocked(self, *, now: bool) -> None:
        """Note that the broker started or stopped blocking publishing."""
        with self._changed:
            if self._blocked_since is not None:
                self._blocked_seconds += time.monotonic() - self._blocked_since
            self._blocked_since = time.monotonic() if now else None
