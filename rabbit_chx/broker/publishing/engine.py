"""The thread that keeps a connection, sends what is queued, and decides what happens after a fault.

Everything here runs on that thread, except `start`, `wake` and `stop`. What the caller sees of it are the
books (`account`) alone.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.broker.connect import why_down
from rabbit_chx.broker.publishing.account import Outcome
from rabbit_chx.broker.publishing.link import Link
from rabbit_chx.broker.publishing.window import Window
from rabbit_chx.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import pika

    from rabbit_chx.broker.publishing.account import Account
    from rabbit_chx.broker.publishing.frames import Message

__all__ = ["Engine", "Patience"]

log = logging.getLogger("rabbit_chx.publisher")

_WRITE_AHEAD: Final = 1 << 18
"""Bytes that may wait for the socket: pika itself has no limit."""
_MOST_AT_ONCE: Final = 512
_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 2.0


@dataclass(frozen=True)
class Patience:
    """How long to go on, in seconds."""

    connect: float
    """Until the first connection stands."""
    reconnect: float
    """Until a lost connection stands again."""
    retry: float
    """With a message that the broker returns or refuses."""


class Engine:
    """Sends the outbox of an account through one connection after another."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, Callable[[], pika.ConnectionParameters]]],
        account: Account,
        patience: Patience,
        *,
        fence: str | None,
        on_version: Callable[[str], object],
        around_batch: Callable[[int], AbstractContextManager[object]],
    ) -> None:
        self._addresses = addresses
        self._account = account
        self._patience = patience
        self._fence = fence
        self._on_version = on_version
        self._around_batch = around_batch
        self._thread = threading.Thread(target=self._run, name="rabbit-chx publisher", daemon=True)
        self._stopping = threading.Event()
        self._guard = threading.Lock()  # over _link and _woken, which wake() and stop() look at
        self._link: Link | None = None
        self._woken = False
        self._window = Window()
        self._waiting: list[Message] = []  # came back, and leave once more after a delay
        self._unconfirmed: list[Message] = []
        self._acked: list[Message] = []
        self._blocked = False
        self._was_up = False
        self._down: Exception | None = None

    # -- from any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def wake(self) -> None:
        """There is something to send."""
        with self._guard:
            if self._link is not None and not self._woken:
                self._woken = True
                self._link.loop.add_callback_threadsafe(self._pump)

    def stop(self, timeout: float) -> bool:
        """Close the connection; whether the thread has ended within the timeout."""
        self._stopping.set()
        with self._guard:
            if self._link is not None:
                self._link.loop.add_callback_threadsafe(self._link.close)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._keep_connected()
        except Exception as error:  # a caller that waits must hear of it, whatever it is
            log.exception("the publisher's thread failed")
            self._give_up(BrokerUnavailable(f"the publisher failed: {type(error).__name__}: {error}"))
        finally:
            if self._account.fatal is None:
                self._give_up(BrokerUnavailable("the publisher is closed"))

    def _keep_connected(self) -> None:
        down_since, attempts, ever_up = time.monotonic(), 0, False
        while not self._stopping.is_set():
            where, parameters = self._addresses[attempts % len(self._addresses)]
            was_up, error = self._one_connection(parameters)
            if self._stopping.is_set():
                return
            if was_up:
                down_since, attempts, ever_up = time.monotonic(), 0, True
            attempts += 1
            reason = why_down(error, where)
            # One line for one event: the attempts that follow are of interest to few.
            log.log(logging.WARNING if attempts == 1 else logging.INFO, "%s", reason)
            patience = self._patience.reconnect if ever_up else self._patience.connect
            if reason.permanent or time.monotonic() - down_since > patience:
                tried = f" ({attempts} attempts)" if attempts > 1 else ""
                self._give_up(BrokerUnavailable(f"{reason}{tried}"))
                return
            self._stopping.wait(_delay(attempts))

    def _one_connection(self, parameters: Callable[[], pika.ConnectionParameters]) -> tuple[bool, Exception]:
        """Open a connection, serve it until it ends, and return whether it stood, and why it ended."""
        self._down, self._was_up, self._blocked = None, False, False
        link = Link(parameters(), self, fence=self._fence)
        with self._guard:
            self._link = link
            if self._stopping.is_set():  # stop() came first and found no link
                link.loop.add_callback_threadsafe(link.close)
        link.run()
        with self._guard:
            self._link = None
        link.dispose()
        self._after_loss()
        return self._was_up, self._down or ConnectionError("the connection ended without a word")

    def _after_loss(self) -> None:
        """What was not confirmed leaves again, before everything else and in its old order."""
        if self._blocked:
            self._account.blocked(now=False)
        lost = self._window.abandon()
        for message in lost:
            message.doubtful = True
            message.returned = False
        self._account.put_back(self._waiting, first=False)
        self._waiting = []
        self._account.put_back(lost, first=True)

    def _give_up(self, error: BrokerUnavailable) -> None:
        self._account.give_up(error, [*self._window.abandon(), *self._waiting])
        self._waiting = []

    def _pump(self) -> None:
        """Send while there is something to send, and the socket keeps up."""
        with self._guard:
            self._woken = False
            link = self._link
        while link is not None and link.ready and not self._blocked and link.unsent_bytes < _WRITE_AHEAD:
            messages = self._account.to_send(_MOST_AT_ONCE, _WRITE_AHEAD)
            if not messages:
                return
            resent = sum(message.attempts > 0 for message in messages)
            for message in messages:
                message.attempts += 1
            self._window.sent(messages)
            with self._around_batch(len(messages)):
                size = link.send(messages)
            self._account.left(size, resent)

    # -- what the link reports ---------------------------------------------------------------------

    def on_ready(self) -> None:
        """The channel counts confirms from here on."""
        assert self._link is not None
        self._was_up = True
        self._on_version(self._link.server_version)
        self._account.connected()
        log.info("connected to RabbitMQ %s", self._link.server_version)
        self._pump()

    def on_confirm(self, number: int, *, multiple: bool, acked: bool) -> None:
        """Collect what was confirmed and what came back or was refused."""
        for message in self._window.settle(number, multiple=multiple):
            if acked and not message.returned:
                self._acked.append(message)
            else:
                message.reply = message.reply if message.returned else "the broker refused it (basic.nack)"
                self._unconfirmed.append(message)

    def on_confirms_read(self) -> None:
        """Book what was collected, and go on sending."""
        acked, self._acked = self._acked, []
        self._account.settle(acked, Outcome.CONFIRMED)
        if self._unconfirmed:
            self._retry_or_settle()
        self._pump()

    def _retry_or_settle(self) -> None:
        """A message that came back leaves once more until its time is over."""
        came_back, self._unconfirmed = self._unconfirmed, []
        now = time.monotonic()
        again: list[Message] = []
        for message in came_back:
            message.retry_until = message.retry_until or now + self._patience.retry
            if now < message.retry_until:
                again.append(message)
                continue
            outcome = Outcome.RETURNED if message.returned else Outcome.REJECTED
            self._account.settle([message], Outcome.UNKNOWN if message.doubtful else outcome)
        for message in again:
            message.returned = False
        if again:
            self._waiting += again
            assert self._link is not None
            self._link.loop.call_later(
                _delay(max(m.attempts for m in again)), lambda: self._send_again(again)
            )

    def _send_again(self, messages: list[Message]) -> None:
        chosen = {id(message) for message in messages}
        self._waiting = [message for message in self._waiting if id(message) not in chosen]
        self._account.put_back(messages, first=False)
        self._pump()

    def on_return(self, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        """Mark the message that came back; its confirm follows and finds it marked."""
        exchange, key = method.exchange.encode(), method.routing_key.encode()

        def matches(message: Message) -> bool:
            return (
                message.routing_key == key
                and message.exchange == exchange
                and len(message.body) == len(body)
                and message.body == body
                and _same_properties(message.properties, properties)
            )

        message = self._window.find_returned(matches)
        if message is None:
            log.error("the broker returned a message that is not in flight (exchange %r)", method.exchange)
            return
        message.returned = True
        message.reply = f"{method.reply_code} {method.reply_text}"

    def on_blocked(self, reason: str) -> None:
        """Stop sending, as the broker asks; pika ends the connection if it takes too long."""
        log.warning("the broker blocks publishing: %s", reason)
        self._blocked = True
        self._account.blocked(now=True)

    def on_unblocked(self) -> None:
        """Go on."""
        log.warning("the broker takes messages again")
        self._blocked = False
        self._account.blocked(now=False)
        self._pump()

    def on_down(self, error: Exception) -> None:
        """Remember why; the loop ends by itself."""
        self._down = error


def _delay(attempts: int) -> float:
    """Doubling, with jitter, so that many publishers do not come back at one moment."""
    longest = min(_FIRST_DELAY * 2.0 ** min(attempts, 16), _LONGEST_DELAY)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


def _same_properties(encoded: bytes, properties: pika.BasicProperties) -> bool:
    """Whether what was sent is what came back, both as pika decodes them."""
    import pika

    sent = pika.BasicProperties()
    sent.decode(encoded)
    return bool(sent == properties)
