"""The thread that keeps a connection, sends what is queued, and decides what happens after a fault.

Everything here runs on that thread, except `start`, `wake` and `stop`. What the caller sees of it are the
books (`account`) alone.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.broker.reasons import Reason, why_down
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.publishing.account import Outcome, harmless
from rabbit_chx.publishing.attempts import Address, Attempts, Patience
from rabbit_chx.publishing.link import Link
from rabbit_chx.publishing.returns import find_returned
from rabbit_chx.publishing.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import pika

    from rabbit_chx.broker.permissions import Needs
    from rabbit_chx.publishing.account import Account
    from rabbit_chx.publishing.frames import Message
    from rabbit_chx.publishing.window import Confirm

__all__ = ["Engine"]

log = logging.getLogger("rabbit_chx.publisher")
log.addHandler(logging.NullHandler())

_WRITE_AHEAD: Final = 1 << 20
"""Bytes that may wait for the socket: pika itself has no limit. Bodies of 64 KiB went out at half the rate with 256 KiB,
since the socket had taken all of them long before anybody looked again."""
_LOOK_AGAIN: Final = 0.005
"""Seconds after which the socket may have taken them; pika does not tell."""
_MOST_AT_ONCE: Final = 512
_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 2.0
_STEADY: Final = 5.0
"""Seconds that a connection without work has to stand to count as one that works."""
_WATCH: Final = 0.5


class Engine:
    """Sends the outbox of an account through one connection after another."""

    def __init__(
        self,
        addresses: Sequence[Address],
        account: Account,
        patience: Patience,
        *,
        fence: str | None,
        needs: Needs,
        on_limits: Callable[[str, int], object],
        around_batch: Callable[[int], AbstractContextManager[object]],
    ) -> None:
        self._addresses = addresses
        self._account = account
        self._patience = patience
        self._fence = fence
        self._needs = needs
        self._on_limits = on_limits
        self._around_batch = around_batch
        self._thread = threading.Thread(target=self._run, name="rabbit-chx publisher", daemon=True)
        self._stopping = threading.Event()
        self._guard = threading.Lock()  # over _link and _woken, which wake() and stop() look at
        self._link: Link | None = None
        self._woken = False
        self._window = Window()
        self._waiting: dict[int, Message] = {}  # by row: came back, and leave once more after a delay
        self._broker = ""
        self._begin_connection()

    def _begin_connection(self) -> None:
        self._began = self._moved = time.monotonic()  # when the socket or the broker last took something
        self._unsent = 0
        self._down: Exception | Reason | None = None
        self._was_up = self._works = self._blocked = self._looks_again = False

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
            self._give_up(f"the publisher failed: {type(error).__name__}: {error}")
        finally:
            if self._account.fatal is None:
                self._give_up("the publisher is closed")

    def _keep_connected(self) -> None:
        attempts = Attempts(self._addresses, self._patience, time.monotonic())
        while not self._stopping.is_set():
            address, timeout = attempts.next(time.monotonic())
            down = self._one_connection(address, timeout)
            if self._stopping.is_set():
                return
            now = time.monotonic()
            if self._works:
                attempts.went_well(now)
            reason = down if isinstance(down, Reason) else why_down(down, address.where, needs=self._needs)
            last_words = attempts.failed(address, reason, was_up=self._was_up, now=now)
            if last_words is not None:
                self._give_up(last_words, permanent=attempts.refused)
                return
            # One line for one event: the attempts that follow are of interest to few.
            log.log(logging.WARNING if attempts.count == 1 else logging.INFO, "%s; trying again", reason)
            self._stopping.wait(_delay(attempts.count))

    def _one_connection(self, address: Address, timeout: float) -> Exception | Reason:
        """Open a connection, serve it until it ends, and return why it ended."""
        self._begin_connection()
        self._broker = f"the broker at {address.where}"
        try:
            link = Link(address.parameters(timeout=timeout), self, fence=self._fence)
        except BrokerUnavailable as no_credentials:
            return no_credentials
        with self._guard:
            self._link = link
            if self._stopping.is_set():  # stop() came first and found no link
                link.loop.add_callback_threadsafe(link.close)
        link.loop.call_later(_WATCH, lambda: self._watch(link, timeout))
        try:
            link.run()
        finally:
            with self._guard:
                self._link = None
            link.dispose()
            self._after_loss()
        return self._down or ConnectionError("the connection ended without a word")

    def _after_loss(self) -> None:
        """What was not confirmed leaves again, before everything else and in its old order."""
        if self._blocked:
            self._account.blocked(now=False)
        lost = self._window.abandon()
        if self._was_up and not lost and time.monotonic() - self._began > _STEADY:
            self._works = True
        for message in lost:
            message.doubtful = True
            message.returned = False
        self._put_back_waiting()
        self._account.put_back(lost, first=True)

    def _put_back_waiting(self) -> None:
        self._account.put_back(self._waiting.values(), first=False)
        self._waiting = {}

    def _give_up(self, last_words: str, *, permanent: bool = False) -> None:
        self._put_back_waiting()
        error = BrokerUnavailable(last_words)
        error.permanent = permanent
        self._account.give_up(error, self._window.abandon())

    def _watch(self, link: Link, timeout: float) -> None:
        """End a connection on which nothing moves although the broker is there: heartbeats do not see that."""
        now = time.monotonic()
        unsent, self._unsent = self._unsent, link.unsent_bytes
        if self._blocked or not self._window or self._unsent < unsent:
            self._moved = now
        if not link.ready and now - self._began > timeout + _WATCH:
            self._fail(link, Reason(f"{self._broker} takes the connection, but opens no channel"))
        elif link.ready and now - self._moved > self._patience.confirm:
            text = f"{self._broker} has confirmed nothing for {self._patience.confirm:.0f} seconds"
            self._fail(link, Reason(text, permanent=True))
        if self._down is None:
            link.loop.call_later(_WATCH, lambda: self._watch(link, timeout))

    def _fail(self, link: Link, reason: Reason) -> None:
        if self._down is None:
            self._down = reason
        link.close()

    def _pump(self) -> None:
        """Send while there is something to send, and the socket keeps up."""
        with self._guard:
            self._woken = False
            link = self._link
        while link is not None and link.ready and not self._blocked:
            if link.unsent_bytes >= _WRITE_AHEAD:
                self._look_again(link)
                return
            messages = self._account.to_send(_MOST_AT_ONCE, _WRITE_AHEAD)
            if not messages:
                return
            self._send(link, messages)

    def _look_again(self, link: Link) -> None:
        def pump() -> None:
            self._looks_again = False
            self._pump()

        if not self._looks_again:
            self._looks_again = True
            link.loop.call_later(_LOOK_AGAIN, pump)

    def _send(self, link: Link, messages: list[Message]) -> None:
        resent = 0
        for message in messages:
            if message.attempts:
                resent += 1
                message.verdict = None
            message.attempts += 1
        self._window.sent(messages)
        self._moved = time.monotonic()
        hook = ExitStack()
        with harmless("around_batch"):
            hook.enter_context(self._around_batch(len(messages)))
        self._account.left(link.send(messages), resent)
        with harmless("around_batch"):
            hook.close()

    # -- what the link reports ---------------------------------------------------------------------

    def on_ready(self) -> None:
        """The channel counts confirms from here on."""
        assert self._link is not None
        self._was_up, self._moved = True, time.monotonic()
        self._on_limits(self._link.server_version, self._link.frame_max)
        self._account.connected()
        log.info("connected to RabbitMQ %s", self._link.server_version)
        self._pump()

    def on_confirms(self, confirms: Sequence[Confirm]) -> None:
        """Book what was confirmed, see to what came back or was refused, and go on sending."""
        if self._down is not None:  # nothing it says is of any use
            return
        self._works, self._moved = True, time.monotonic()
        acked, refused = self._window.settle(confirms)
        returned = [message for message in acked if message.returned]
        if returned:
            acked = [message for message in acked if not message.returned]
        self._account.settle(acked, Outcome.CONFIRMED)
        if returned or refused:
            self._retry_or_settle([*returned, *refused])
        self._pump()

    def _retry_or_settle(self, came_back: list[Message]) -> None:
        """A message that came back leaves once more until its time is over."""
        now = time.monotonic()
        again: list[Message] = []
        for message in came_back:
            message.verdict = Outcome.RETURNED if message.returned else Outcome.REJECTED
            message.reply = message.reply if message.returned else "the broker refused it (basic.nack)"
            message.returned = False
            message.retry_until = message.retry_until or now + self._patience.retry
            if now < message.retry_until:
                again.append(message)
            else:
                self._account.settle([message], _outcome(message))
        if again:
            self._waiting.update((message.row, message) for message in again)
            assert self._link is not None
            longest = max(message.attempts for message in again)
            self._link.loop.call_later(_delay(longest), lambda: self._send_again(again))

    def _send_again(self, messages: list[Message]) -> None:
        for message in messages:
            del self._waiting[message.row]
        self._account.put_back(messages, first=False)
        self._pump()

    def on_return(self, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        """Mark the message that came back; its confirm follows and finds it marked."""
        message = find_returned(self._window, method, properties, body)
        if message is not None:
            message.returned = True
            message.reply = f"{method.reply_code} {method.reply_text}"
        elif self._link is not None:
            # One of those in flight is this one, and its ack would make it confirmed.
            self._fail(self._link, Reason(f"{self._broker} returned a message that nobody sent"))

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
        if self._down is None:
            self._down = error


def _outcome(message: Message) -> Outcome:
    """Of a message that came back for the last time."""
    return message.verdict if message.verdict and not message.doubtful else Outcome.UNKNOWN


def _delay(attempts: int) -> float:
    """Doubling, with jitter, so that many publishers do not come back at one moment."""
    longest = min(_FIRST_DELAY * 2.0 ** min(attempts, 16), _LONGEST_DELAY)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
