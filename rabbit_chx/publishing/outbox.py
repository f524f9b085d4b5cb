"""The messages that wait to be sent, and the counters: what the callers' threads and the sender's thread share.

Every accepted message is, at any time, either pending or has exactly one outcome, so the totals always add up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.publishing.messages import Outcome, OutgoingMessage, Owner, Totals

log = logging.getLogger("rabbit_chx.publisher")

_LOOK_AGAIN: Final = 0.5


class Outbox:
    """Shared by all threads; every method may be called from any of them."""

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self._changed = threading.Condition()  # re-entrant, so `stop_accepting` may run in a signal handler
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._unsent: deque[OutgoingMessage] = deque()
        self._outcomes: Counter[Outcome] = Counter()
        self._published = self._pending_bytes = self._resent = self._bytes = self._connections = 0
        self._accepting = True
        self._blocked_since: float | None = None
        self._blocked_seconds = 0.0
        self._closed = False
        self.given_up: int = 0
        """How often the sender has given up."""
        self.why_given_up: RabbitChxError | None = None
        """Why it did last."""
        self.error: RabbitChxError | None = None
        """Why the sender has given up; None as soon as it is connected again."""

    # -- the caller's side -------------------------------------------------------------------------

    def add(
        self,
        messages: Sequence[OutgoingMessage],
        wake: Callable[[], object],
        deadline: float | None = None,
        given_up: int | None = None,
    ) -> int:
        """Accept messages of one owner, waiting while too many are pending, and return how many were accepted before the deadline.

        Raise if nothing more can be published, or if the sender has given up more often than ``given_up`` times.
        """
        done = 0
        while done < len(messages):
            with self._changed:
                if not self._wait_for_space(deadline, given_up):
                    break
                part = self._fitting(messages, done)
                part[0].owner.accepted(part)
                self._unsent.extend(part)
                self._published += len(part)
                self._pending_bytes += sum(len(message.body) for message in part)
            done += len(part)
            wake()
        return done

    def _wait_for_space(self, deadline: float | None, given_up: int | None) -> bool:
        # A signal handler may stop it after this thread has looked and before it waits, hence the timeout.
        while not self._closed and self._accepting and not self._has_space():
            left = _LOOK_AGAIN if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(min(left, _LOOK_AGAIN))
        if self.why_given_up is not None and (self._closed or given_up not in {None, self.given_up}):
            raise self.why_given_up
        if not self._accepting:
            raise BrokerUnavailable("the publisher accepts no more messages")
        return True

    def withdraw(self, owners: Container[Owner], why: str) -> None:
        """Give up the messages of these owners that were never handed to a connection."""
        with self._changed:
            found = [message for message in self._unsent if message.owner in owners and not message.attempts]
            if found:
                gone = set(found)
                self._unsent = deque(message for message in self._unsent if message not in gone)
        for message in found:
            message.reply = why
        self.settle(found, Outcome.UNSENT)

    def stop_accepting(self) -> None:
        """Make `add` raise, even while it waits."""
        with self._changed:
            self._accepting = False
            self._changed.notify_all()

    def _has_space(self) -> bool:
        # Wait until a quarter is free, so that the threads do not switch for every message.
        full = self._pending() > self._max_messages * 3 // 4
        return not full and self._pending_bytes <= self._max_bytes * 3 // 4

    def _fitting(self, messages: Sequence[OutgoingMessage], start: int) -> Sequence[OutgoingMessage]:
        """Return the next messages that fit: at least one, or a body above the limit would wait forever."""
        count = self._max_messages - self._pending()
        space = self._max_bytes - self._pending_bytes
        end = start
        while end < len(messages) and end - start < count:
            space -= len(messages[end].body)
            if space < 0 and end > start:
                break
            end += 1
        return messages[start:end]

    def wait_until_settled(self, timeout: float) -> bool:
        """Wait until nothing is pending; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending(), min(timeout, threading.TIMEOUT_MAX))

    def totals(self) -> Totals:
        """Return all counters as of one moment."""
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

    # -- the sender's side -------------------------------------------------------------------------

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

    def note_sent(self, size: int, resent: int) -> None:
        """Count frames that were handed to the connection."""
        with self._changed:
            self._bytes += size
            self._resent += resent

    def settle(self, messages: Sequence[OutgoingMessage], outcome: Outcome) -> None:
        """Record the outcome of messages, and tell their owners."""
        if not messages:
            return
        with self._changed:
            self._outcomes[outcome] += len(messages)
            self._pending_bytes -= sum(len(message.body) for message in messages)
            if self._has_space():
                self._changed.notify_all()
        owned: defaultdict[Owner, list[OutgoingMessage]] = defaultdict(list)
        for message in messages:
            owned[message.owner].append(message)
        for owner, own in owned.items():
            owner.settled(own, outcome)

    def give_up(self, error: RabbitChxError, *, closed: bool = False) -> None:
        """Give each message its outcome; none is in flight. Unless closed, later messages make the sender try again."""
        with self._changed:
            self.error = self.why_given_up = error
            self._closed = closed
            self.given_up += 1
            unsent = list(self._unsent)
            self._unsent.clear()
        ends: defaultdict[Outcome, list[OutgoingMessage]] = defaultdict(list)
        for message in unsent:
            outcome = Outcome.UNKNOWN if message.doubtful else message.verdict or Outcome.UNSENT
            if outcome in {Outcome.UNKNOWN, Outcome.UNSENT}:
                message.reply = str(error)
            ends[outcome].append(message)
        for outcome, messages in ends.items():
            self.settle(messages, outcome)
        with self._changed:
            self._changed.notify_all()

    def connected(self) -> None:
        """Count a connection that was opened."""
        with self._changed:
            self._connections += 1
            self.error = None
            self._changed.notify_all()

    def blocked(self, *, now: bool) -> None:
        """Note that the broker started or stopped blocking publishing."""
        with self._changed:
            if self._blocked_since is not None:
                self._blocked_seconds += time.monotonic() - self._blocked_since
            self._blocked_since = time.monotonic() if now else None

    def wait_until_connected(self, timeout: float) -> bool:
        """Wait until a connection was opened; return whether one was, or raise the final error."""
        with self._changed:
            self._changed.wait_for(lambda: self._connections or self.error is not None, timeout)
            if self.error is not None:
                raise self.error
            return self._connections > 0


@contextmanager
def log_errors(hook: str) -> Iterator[None]:
    """Run a hook of the caller: its exceptions are logged and do not affect the messages, not even ``sys.exit``."""
    try:
        yield
    except (Exception, SystemExit):
        log.exception("the publisher's hook %s failed", hook)
