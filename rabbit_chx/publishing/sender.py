"""The thread that keeps a connection, sends what waits in the outbox, and handles faults.

Everything here runs on that thread, except `start`, `wake` and `stop`. The caller sees only the outbox.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from pika.exceptions import ChannelClosedByBroker

from rabbit_chx.base.outages import CALLER_WAITS, Backoff, Outage, pause_after
from rabbit_chx.base.plugins import why_refused_type
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.broker.amqp import without_pikas_log
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.properties import decoded
from rabbit_chx.broker.reasons import why_down, why_reset
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.publishing.attempts import Address, Attempts
from rabbit_chx.publishing.connection import PublisherConnection
from rabbit_chx.publishing.messages import Outcome, OutgoingMessage
from rabbit_chx.publishing.outbox import Outbox, log
from rabbit_chx.publishing.window import Confirm, Window, find_returned, refused_messages

CLOSED: Final = "the publisher is closed"
_WRITE_AHEAD: Final = 1 << 20
"""Bytes that may wait for the socket; pika has no limit. With 256 KiB, bodies of 64 KiB were sent at half the rate:
the socket had taken everything long before the next look."""
_LOOK_AGAIN: Final = 0.005
"""Seconds after which the socket may have taken them; pika does not report it."""
_MAX_AT_ONCE: Final = 512
_STEADY: Final = 5.0
"""Seconds after which an idle connection counts as one that works."""
_WATCH: Final = 0.5
_INVALID: Final = 406
_LONGEST_DELAY: Final = 2**32 - 1
"""Milliseconds. An x-delayed-message exchange takes text and floats as well, and negates the header of what it delivers."""
_KEPT: Final = "; not sent again: an x-delayed-message exchange keeps delayed messages that it returns"


class Sender:
    """Sends the messages of an outbox through one connection after another."""

    def __init__(
        self,
        addresses: Sequence[Address],
        outbox: Outbox,
        timeouts: Timeouts,
        *,
        needs: Needs,
        on_limits: Callable[[str, int], object],
    ) -> None:
        self._addresses = addresses
        self._outbox = outbox
        self._timeouts = timeouts
        self._needs = needs
        self._on_limits = on_limits
        self._thread = threading.Thread(target=self._run, name="rabbit-chx publisher", daemon=True)
        self.thread_id: int = 0
        """Of the sender's thread, which also runs the hooks; 0 while it does not run."""
        self._stopping = threading.Event()
        self._guard = threading.Lock()  # protects _connection and _woken, which wake() and stop() read
        self._connection: PublisherConnection | None = None
        self._woken = False
        self._wanted = threading.Event()  # messages came after the sender gave up, or it stops
        self._window = Window()
        self._backoff: Backoff
        self._outage = Outage(log.warning, "publisher")
        # After a refusal that could be about any of them: they are sent one by one, before all others.
        self._suspects: deque[OutgoingMessage] = deque()
        # Messages that were returned or rejected, and are sent again after a delay; a dict, for their order.
        self._retries: dict[OutgoingMessage, None] = {}
        self._where = self._broker = ""
        self._begin_connection()

    def _begin_connection(self) -> None:
        self._began = self._moved = time.monotonic()  # when the socket or the broker last made progress
        self._unsent = 0
        self._down: Exception | None = None
        self._was_up = self._works = self._blocked = self._looks_again = False

    # -- from any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def wake(self) -> None:
        """Look into the outbox: there is something to send."""
        if not self._wanted.is_set():
            self._wanted.set()
        if self._woken:  # it has not looked yet
            return
        with self._guard:
            if self._connection is not None and not self._woken:
                self._woken = True
                self._connection.ioloop.add_callback_threadsafe(self._pump)

    def stop(self, timeout: float) -> None:
        """Close the connection and wait for the end of the thread."""
        self._stopping.set()
        self._wanted.set()
        with self._guard:
            if self._connection is not None:
                self._connection.ioloop.add_callback_threadsafe(self._connection.end)
        self._thread.join(timeout)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        self.thread_id = threading.get_ident()
        try:
            with without_pikas_log():
                self._keep_connected()
                while (
                    not self._stopping.is_set()
                ):  # after `_keep_connected` has cleared the wish, which `stop` sets again
                    self._wanted.wait()
                    self._keep_connected()
        except Exception as error:  # noqa: BLE001 - any error must reach a waiting caller
            log.exception("the publisher's thread failed")
            self._outbox.error = BrokerUnavailable(f"the publisher failed: {type(error).__name__}: {error}")
        finally:
            self._outbox.give_up(self._outbox.error or BrokerUnavailable(CLOSED), closed=True)
            self.thread_id = 0  # another thread may get the same number

    def _keep_connected(self) -> None:
        attempts = Attempts(self._addresses, self._timeouts, time.monotonic())
        self._backoff = Backoff(CALLER_WAITS)
        while not self._stopping.is_set():
            address, timeout = attempts.next(time.monotonic())
            down = self._one_connection(address, timeout)
            if self._stopping.is_set():
                return
            now = time.monotonic()
            if self._works:
                attempts.succeeded(now)
            reason = why_down(down, address.where, needs=self._needs)
            final_error = attempts.failed(address, reason, was_up=self._was_up, now=now)
            if final_error is not None:
                self._wanted.clear()
                if self._outbox.totals().connections:  # otherwise `open` raises it
                    log.warning("%s; the next call tries again", final_error)
                self._outbox.give_up(BrokerUnavailable(final_error, permanent=attempts.refused))
                return
            self._outbox.trouble = f"without a connection: {reason}"
            self._outage.failed(reason)
            self._stopping.wait(self._backoff.failed())

    def _one_connection(self, address: Address, timeout: float) -> Exception:
        """Open a connection, serve it until it ends, and return why it ended."""
        self._begin_connection()
        self._where, self._broker = address.where, f"the broker at {address.where}"
        self._outbox.trouble = self._outbox.trouble or f"while connecting to {address.where}"
        try:
            connection = PublisherConnection(address.parameters(timeout=timeout), self)
        except BrokerUnavailable as no_credentials:
            return no_credentials
        with self._guard:
            self._connection = connection
            if self._stopping.is_set():  # stop() ran before there was a connection
                connection.ioloop.add_callback_threadsafe(connection.end)
        connection.ioloop.call_later(_WATCH, lambda: self._watch(connection, timeout))
        try:
            connection.ioloop.start()
        except ValueError as error:
            self._down = why_reset(error, self._broker)
        finally:
            with self._guard:
                self._connection = None
            connection.ioloop.close()
            self._after_loss()
        return self._down or ConnectionError("the connection ended without a reason")

    def _after_loss(self) -> None:
        """Queue unconfirmed messages to be sent again, before all others and in their order."""
        if self._blocked:
            self._outbox.blocked(now=False)
        lost = [*self._window.abandon(), *self._suspects]
        self._suspects.clear()
        for message in lost:
            message.doubtful = True
            message.returned = False
        self._outbox.put_back(self._retries, first=False)
        self._retries = {}
        self._outbox.put_back(lost, first=True)

    def _watch(self, connection: PublisherConnection, timeout: float) -> None:
        """End a connection that makes no progress although the broker is alive: heartbeats do not notice that."""
        now = time.monotonic()
        unsent, self._unsent = self._unsent, connection.unsent_bytes
        if self._was_up and not self._window and not self._suspects and now - self._began > _STEADY:
            self._note_that_it_works()
        if self._blocked or not self._window or self._unsent < unsent:
            self._moved = now
        if not connection.ready and now - self._began > timeout + _WATCH:
            text = f"{self._broker} accepts the connection but opens no channel"
            self._fail(connection, BrokerUnavailable(text))
        elif connection.ready and now - self._moved > self._timeouts.confirm:
            text = f"{self._broker} has confirmed nothing for {self._timeouts.confirm:.0f} seconds"
            self._fail(connection, BrokerUnavailable(text, permanent=True))
        if self._down is None:
            connection.ioloop.call_later(_WATCH, lambda: self._watch(connection, timeout))

    def _note_that_it_works(self) -> None:
        if not self._works:
            self._works = True
            self._outage.ended()

    def _fail(self, connection: PublisherConnection, reason: BrokerUnavailable) -> None:
        self.on_down(reason)
        connection.end()

    def _pump(self) -> None:
        """Send while there is something to send and the socket keeps up."""
        with self._guard:
            self._woken = False
            connection = self._connection
        while connection is not None and connection.ready and not self._blocked:
            if connection.unsent_bytes >= _WRITE_AHEAD:
                self._look_again(connection)
                return
            if self._suspects and self._window:
                return
            suspects = [self._suspects.popleft()] if self._suspects else None
            messages = suspects or self._outbox.take(_MAX_AT_ONCE, _WRITE_AHEAD)
            if not messages:
                return
            self._send(connection, messages)

    def _look_again(self, connection: PublisherConnection) -> None:
        def pump() -> None:
            self._looks_again = False
            self._pump()

        if not self._looks_again:
            self._looks_again = True
            connection.ioloop.call_later(_LOOK_AGAIN, pump)

    def _send(self, connection: PublisherConnection, messages: list[OutgoingMessage]) -> None:
        resent = 0
        for message in messages:
            if message.attempts:
                resent += 1
                message.verdict = None
                message.owner.sent_again(1)
            message.attempts += 1
        if not self._window:
            self._moved = time.monotonic()
        self._window.sent(messages)
        self._outbox.note_sent(connection.publish(messages), resent)

    # -- what the connection reports ---------------------------------------------------------------

    @property
    def largest_body(self) -> int:
        """Bytes of the largest body that may be returned."""
        return self._window.largest_body

    def on_ready(self) -> None:
        """Start sending: from here on the channel numbers messages for confirms."""
        assert self._connection is not None
        self._moved = time.monotonic()
        if not self._blocked:
            self._outbox.trouble = ""
        if not self._was_up:
            self._was_up = True
            self._backoff.works()
            version = str((self._connection.server_properties or {}).get("version", ""))
            self._on_limits(version, self._connection.frame_max)
            self._outbox.connected()
            log.info("connected to RabbitMQ %s", version)
        self._pump()

    def on_channel_closed(self, error: ChannelClosedByBroker) -> bool:
        """Fail the messages that the broker refused, send the others again, and return whether another channel helps."""
        reason = why_down(error, self._where, needs=self._needs)
        if self._down is not None or not reason.permanent or not self._window:
            return False
        if why_refused_type(error.reply_text):  # a plugin is missing, which is about every message
            return False
        lost = self._window.abandon()
        refused = refused_messages(error.reply_text, lost) or (lost if len(lost) == 1 else [])
        for message in refused:
            message.reply = str(reason)
            # The exchange may have been there, and the permission, for all but the last message. 406 is about a message alone.
            message.refused = error.reply_code == _INVALID or (
                message is refused[-1] and not message.doubtful
            )
        gone = set(refused)
        others = [message for message in lost if message not in gone]
        for message in others:
            message.doubtful, message.returned = True, False
        if refused:
            self._outbox.put_back(others, first=True)
        else:
            self._suspects.extend(others)
        self._began = self._moved = time.monotonic()
        self._note_that_it_works()
        self._outbox.settle([message for message in refused if message.refused], Outcome.REJECTED)
        self._outbox.settle([message for message in refused if not message.refused], Outcome.UNKNOWN)
        return True

    def on_confirms(self, confirms: Sequence[Confirm]) -> None:
        """Record confirmed messages, retry returned and rejected ones, and go on sending."""
        if self._down is not None:  # ignore a connection that failed
            return
        acked, rejected = self._window.settle(confirms)
        now = time.monotonic()
        if acked or rejected:
            self._note_that_it_works()
            self._moved = now
        returned = [message for message in acked if message.returned]
        if returned:
            acked = [message for message in acked if not message.returned]
        self._outbox.settle(acked, Outcome.CONFIRMED)
        if returned or rejected:
            self._retry_or_settle([*returned, *rejected], now)
        self._pump()

    def _retry_or_settle(self, came_back: list[OutgoingMessage], now: float) -> None:
        """Send a returned or rejected message again until its retry timeout."""
        again: list[OutgoingMessage] = []
        for message in came_back:
            message.verdict = Outcome.RETURNED if message.returned else Outcome.REJECTED
            message.nacked = message.nacked or not message.returned
            message.reply = message.reply if message.returned else "the broker rejected it (basic.nack)"
            message.returned = False
            message.retry_until = message.retry_until or now + self._timeouts.retry
            if message.verdict is Outcome.RETURNED and _has_delay(message):
                message.reply += _KEPT
                message.doubtful = True
            elif now < message.retry_until:
                again.append(message)
                continue
            self._outbox.settle([message], Outcome.UNKNOWN if message.doubtful else message.verdict)
        if again:
            self._retries.update(dict.fromkeys(again))
            assert self._connection is not None
            longest = max(message.attempts for message in again)
            self._connection.ioloop.call_later(
                pause_after(longest, CALLER_WAITS), lambda: self._send_again(again)
            )

    def _send_again(self, messages: list[OutgoingMessage]) -> None:
        for message in messages:
            del self._retries[message]
        self._outbox.put_back(messages, first=False)
        self._pump()

    def on_return(self, method: Any, properties: bytes, body: bytes) -> None:
        """Mark the message that was returned, for the confirm that follows."""
        message = find_returned(self._window, method, properties, body)
        if message is not None:
            message.returned = True
            message.reply = f"{method.reply_code} {method.reply_text}"
        elif self._connection is not None:
            # It is one of those in flight, and its ack would make it confirmed.
            text = f"{self._broker} returned a message that was not sent"
            self._fail(self._connection, BrokerUnavailable(text))

    def on_blocked(self, reason: str) -> None:
        """Stop sending, as the broker asks; pika ends the connection if the block lasts too long."""
        log.warning("the broker blocks publishing: %s", reason)
        self._blocked = True
        self._outbox.trouble = f"while the broker blocks publishing: {reason}"
        self._outbox.blocked(now=True)

    def on_unblocked(self) -> None:
        """Go on sending."""
        log.warning("the broker accepts messages again")
        self._blocked = False
        self._outbox.trouble = ""
        self._outbox.blocked(now=False)
        self._pump()

    def on_violation(self, text: str) -> None:
        """Remember what the server did wrong; the connection ends by itself."""
        self.on_down(BrokerUnavailable(f"{self._broker} {text}"))

    def on_down(self, error: Exception) -> None:
        """Remember why the connection ended, which is the first reason; the loop ends by itself."""
        if self._down is None:
            self._down = error


def _has_delay(message: OutgoingMessage) -> bool:
    """Whether an x-delayed-message exchange would keep a message for some time."""
    delay = (decoded(message.properties).headers or {}).get("x-delay")
    try:
        return delay is not None and not isinstance(delay, bool) and 0 < int(delay) <= _LONGEST_DELAY
    except (TypeError, ValueError, OverflowError):
        return False
