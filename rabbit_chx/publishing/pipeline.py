"""What lies between the calls of a publisher and its connections, from ``open`` to ``close``."""

from __future__ import annotations

import atexit
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import fields
from itertools import repeat
from typing import Any, Final, Generic, Literal, TypeVar

from rabbit_chx.base.limits import check_seconds
from rabbit_chx.base.text import seconds as spoken
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.broker.guards import Guard
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.publishing.attempts import Address
from rabbit_chx.publishing.encoder import Columns, Encoded, Encoder
from rabbit_chx.publishing.messages import OutgoingMessage, Owner, Totals
from rabbit_chx.publishing.outbox import BaseOutbox, Outbox, log
from rabbit_chx.publishing.receipts import Callbacks
from rabbit_chx.publishing.rows import Part
from rabbit_chx.publishing.sender import Sender

MAX_BYTES_IN_FLIGHT: Final = 32 << 20
_STOP_SECONDS: Final = 4.0
GRACE_SECONDS: Final = 5.0
"""By how much an attempt to connect may exceed its share of the time: the thread that sends gives up before `open` does."""

One = TypeVar("One")
"""A message as its encoder returns it."""
Many = TypeVar("Many", bound=Sequence[Any])
"""The same for a batch: columns, each with a value for each row."""


class Pipeline(ABC, Generic[One, Many]):
    """Outboxes with messages that wait, the threads that send them, and who may use both."""

    step: int
    """How many rows of a batch are made and accepted at once."""
    part: type[Part] = Part
    """What keeps the pending messages of a bulk."""
    outboxes: Sequence[BaseOutbox[Any]]
    """What waits to be sent; each outbox has a thread that sends it."""

    def __init__(self, client: str, timeouts: Timeouts) -> None:
        self.timeouts: Timeouts = timeouts
        self.state: Literal["new", "open", "closed"] = "new"
        self.callbacks: Callbacks = Callbacks()
        self._guard = Guard(client)

    # -- what depends on the protocol

    @abstractmethod
    def _start(self) -> None:
        """Begin to connect."""

    @abstractmethod
    def _wait_until_connected(self) -> None:
        """Return when each connection is open; raise if one does not open."""

    @abstractmethod
    def _stop(self, timeout: float) -> None:
        """End the connections and the threads."""

    @abstractmethod
    def _sends_here(self) -> bool:
        """Whether this is a thread that sends."""

    @abstractmethod
    def one(self, encoded: One, row: int, owner: Owner) -> Sequence[OutgoingMessage]:
        """Make a message."""

    @abstractmethod
    def some(self, columns: Many, start: int, row: int, owner: Owner) -> Sequence[OutgoingMessage]:
        """Make the next messages of a batch: up to `step`, from this place on, and numbered from this row on."""

    @abstractmethod
    def accept(
        self,
        messages: Sequence[OutgoingMessage],
        deadline: float | None,
        since: float | None = None,
        *,
        fits: bool = False,
    ) -> int:
        """Accept messages of one owner, waiting while too many are pending, and return how many were accepted before the deadline.

        Raise if nothing more can be published, or if the publisher has given up since a time of the monotonic clock.
        ``fits``: the messages are in memory already, so they need not wait where that would delay messages for others.
        """

    def waited_for(self, timeout: float | None) -> str:
        """Say what `accept` has waited for until its deadline; the caller knows it as a timeout."""
        return f"too many messages were in flight for {spoken(timeout or 0.0)}"

    # -- opening and closing

    @property
    def usable(self) -> bool:
        """Whether it is new or open in this process."""
        return self.state != "closed" and not self._guard.inherited

    def open(self) -> None:
        """Connect, unless it is open."""
        if self.state == "open":
            return
        self._start()
        self._guard.opened()
        self.state = "open"  # other threads may publish from now on: their messages wait for the connection
        atexit.register(self._at_exit)
        try:
            self._wait_until_connected()
        except BaseException:
            self.close(0)
            raise

    def close(self, timeout: float | None) -> None:
        """Wait for callbacks and for the outcome of each message, then end the connection; do nothing in a forked process."""
        if self._guard.inherited:
            return
        self.check()
        if self.state != "open":
            return
        seconds = self.timeouts.close if timeout is None else check_seconds("timeout", timeout)
        deadline = time.monotonic() + seconds
        try:
            self.callbacks.wait(seconds)  # first: they may publish
            self._wait_until_settled(deadline)
        finally:
            self._guard.closed()
            self.state = "closed"
            atexit.unregister(self._at_exit)
            self._stop(_STOP_SECONDS)
            self.callbacks.end()

    def _at_exit(self) -> None:
        """Give an open publisher of a program that ends its time, and say what had none."""
        if self._guard.inherited:
            return
        self.stop_accepting()  # daemon threads may go on publishing
        if not self._wait_until_settled(time.monotonic() + self.timeouts.close):
            pending = self.totals().pending
            log.error("the program ends while %s messages of an open publisher have no outcome", pending)
        self.close(0)

    def _wait_until_settled(self, deadline: float) -> bool:
        """Wait until nothing is pending; return whether that is so at the deadline."""
        return all(each.wait_until_settled(deadline - time.monotonic()) for each in self.outboxes)

    # -- for the calls of a publisher

    def check(self) -> None:
        """Raise in a forked process, and on a thread that sends, for which the call would wait forever."""
        self._guard.check()
        if self._sends_here():
            raise RabbitChxError(
                "a hook of the publisher must not publish with it, flush or close it, and neither must a callback while the "
                "program ends: these wait for the thread that runs the hook"
            )

    def check_process(self) -> None:
        """Raise in a forked process, where a thread that it lacks may hold a lock for ever."""
        self._guard.check()

    def check_open(self) -> None:
        """Raise if it is not open."""
        if self.state != "open":
            self._guard.check_open()

    def withdraw(self, owners: Container[Owner], why: str) -> None:
        """Give up the messages of these owners that were never handed to a connection."""
        self._guard.check()
        for each in self.outboxes:
            each.withdraw(owners, why)

    def stop_accepting(self) -> None:
        """Make `accept` raise, even while it waits; in a forked process, where another thread may hold the lock for ever, raise."""
        self._guard.check()
        for each in self.outboxes:
            each.stop_accepting()

    def abandon(self, error: RabbitChxError) -> None:
        """Give up everything that waits, for good."""
        for each in self.outboxes:
            each.give_up(error, closed=True)

    def totals(self) -> Totals:
        """Return the counters of all messages."""
        self._guard.check()
        return total([each.totals() for each in self.outboxes])

    @property
    def _current(self) -> Sequence[BaseOutbox[Any]]:
        """The outboxes that take messages."""
        return self.outboxes

    @property
    def error(self) -> RabbitChxError | None:
        """Why the publisher has given up; None as soon as it is connected again."""
        return next((each.error for each in self._current if each.error is not None), None)

    def why_given_up(self, since: float) -> RabbitChxError | None:
        """Why the publisher has given up since a time of the monotonic clock, or None."""
        return next((each.why_given_up for each in self._current if each.given_up_at > since), None)


AnyPipeline = TypeVar("AnyPipeline", bound=Pipeline[Any, Any])


class AmqpPipeline(Pipeline[Encoded, Columns]):
    """An encoder, an outbox, and the thread of a sender for AMQP 0-9-1."""

    step = 512

    def __init__(
        self,
        addresses: Sequence[Address],
        timeouts: Timeouts,
        encoder: Encoder,
        *,
        max_in_flight: int,
        needs: Needs,
    ) -> None:
        super().__init__("Publisher", timeouts)
        self._addresses = addresses
        self.encoder = encoder
        self.outbox: Outbox = Outbox(max_messages=max_in_flight, max_bytes=MAX_BYTES_IN_FLIGHT)
        self.outboxes = [self.outbox]
        self._sender = Sender(
            addresses, self.outbox, timeouts, needs=needs, on_limits=self.encoder.learn_limits
        )

    def _start(self) -> None:
        self._sender.start()

    def _wait_until_connected(self) -> None:
        seconds = self.timeouts.connect + GRACE_SECONDS * len(self._addresses)
        if not self.outbox.wait_until_connected(seconds):
            raise BrokerUnavailable(
                f"no broker answers at {', '.join(each.where for each in self._addresses)}"
            )

    def _stop(self, timeout: float) -> None:
        self._sender.stop(timeout)

    def _sends_here(self) -> bool:
        return threading.get_ident() == self._sender.thread_id

    def one(self, encoded: Encoded, row: int, owner: Owner) -> list[OutgoingMessage]:
        """Make a message."""
        return [OutgoingMessage(row, *encoded, owner)]

    def some(self, columns: Columns, start: int, row: int, owner: Owner) -> list[OutgoingMessage]:
        """Make the next messages of a batch."""
        own = [column[start : start + self.step] for column in columns]
        return list(map(OutgoingMessage, range(row, row + len(own[0])), *own, repeat(owner)))

    def accept(
        self,
        messages: Sequence[OutgoingMessage],
        deadline: float | None,
        since: float | None = None,
        *,
        fits: bool = False,  # noqa: ARG002 - all messages wait in one outbox
    ) -> int:
        """Accept messages of one owner."""
        self.check_open()
        return self.outbox.add(messages, self._sender.wake, deadline, since)


def total(some: Sequence[Totals]) -> Totals:
    """Return the sum of counters."""
    if len(some) == 1:  # those of most publishers
        return some[0]
    return Totals(**{field.name: sum(getattr(one, field.name) for one in some) for field in fields(Totals)})
