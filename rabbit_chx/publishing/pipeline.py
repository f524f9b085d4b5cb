"""What lies between the calls of a publisher and its connection, from ``open`` to ``close``."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Sequence
from typing import Final, Literal

from rabbit_chx.base.limits import check_seconds
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.broker.guards import Guard
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.publishing.attempts import Address
from rabbit_chx.publishing.encoder import Encoder
from rabbit_chx.publishing.messages import OutgoingMessage, Totals
from rabbit_chx.publishing.outbox import Outbox, log
from rabbit_chx.publishing.receipts import Callbacks
from rabbit_chx.publishing.sender import Sender

_MAX_BYTES_IN_FLIGHT: Final = 32 << 20
_STOP_SECONDS: Final = 4.0
_GRACE_SECONDS: Final = 5.0
"""By how much an attempt to connect may exceed its share of the time: the sender gives up before `open` does."""


class Pipeline:
    """Encodes messages, holds those that wait, and sends them on a thread of its own."""

    def __init__(
        self,
        addresses: Sequence[Address],
        timeouts: Timeouts,
        encoder: Encoder,
        *,
        max_in_flight: int,
        needs: Needs,
    ) -> None:
        self._addresses = addresses
        self._timeouts = timeouts
        self._guard = Guard("Publisher")
        self.state: Literal["new", "open", "closed"] = "new"
        self.encoder = encoder
        self.outbox: Outbox = Outbox(max_messages=max_in_flight, max_bytes=_MAX_BYTES_IN_FLIGHT)
        self.callbacks: Callbacks = Callbacks()
        self._sender = Sender(
            addresses, self.outbox, timeouts, needs=needs, on_limits=self.encoder.learn_limits
        )

    @property
    def usable(self) -> bool:
        """Whether it is new or open in this process."""
        return self.state != "closed" and not self._guard.inherited

    def open(self) -> None:
        """Connect, unless it is open."""
        if self.state == "open":
            return
        self._guard.opened()
        self.state = "open"
        self._sender.start()
        atexit.register(self._at_exit)
        seconds = self._timeouts.connect + _GRACE_SECONDS * len(self._addresses)
        try:
            connected = self.outbox.wait_until_connected(seconds)
        except BaseException:
            self.close(0)
            raise
        if not connected:
            self.close(0)
            raise BrokerUnavailable(
                f"no broker answers at {', '.join(each.where for each in self._addresses)}"
            )

    def close(self, timeout: float | None) -> None:
        """Wait for callbacks and for the outcome of each message, then end the connection; do nothing in a forked process."""
        if self._guard.inherited:
            return
        self.check()
        if self.state != "open":
            return
        seconds = self._timeouts.close if timeout is None else check_seconds("timeout", timeout)
        deadline = time.monotonic() + seconds
        try:
            self.callbacks.wait(seconds)  # first: they may publish
            self.outbox.wait_until_settled(deadline - time.monotonic())
        finally:
            self._guard.closed()
            self.state = "closed"
            atexit.unregister(self._at_exit)
            self._sender.stop(timeout=_STOP_SECONDS)
            self.callbacks.end()

    def _at_exit(self) -> None:
        """Give an open publisher of a program that ends its time, and say what had none."""
        if self._guard.inherited:
            return
        self.outbox.stop_accepting()  # daemon threads may go on publishing
        if not self.outbox.wait_until_settled(self._timeouts.close):
            pending = self.outbox.totals().pending
            log.error("the program ends while %s messages of an open publisher have no outcome", pending)
        self.close(0)

    def check(self) -> None:
        """Raise in a forked process, and on the thread of the sender, for which the call would wait forever."""
        self._guard.check()
        if threading.get_ident() == self._sender.thread_id:
            raise RabbitChxError(
                "a hook of the publisher must not publish with it, flush or close it, and neither must a callback while the "
                "program ends: these wait for the thread that runs the hook"
            )

    def accept(
        self, messages: Sequence[OutgoingMessage], deadline: float | None, given_up: int | None = None
    ) -> int:
        """Put messages into the outbox: see `Outbox.add`."""
        if self.state != "open":
            self._guard.check_open()
        return self.outbox.add(messages, self._sender.wake, deadline, given_up)

    def stop_accepting(self) -> None:
        """Make `accept` raise, even while it waits; in a forked process, where another thread may hold the lock for ever, raise."""
        self._guard.check()
        self.outbox.stop_accepting()

    def totals(self) -> Totals:
        """Return the counters of all messages."""
        self._guard.check()
        return self.outbox.totals()
