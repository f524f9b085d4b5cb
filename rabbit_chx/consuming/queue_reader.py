"""Read one queue in batches, each acknowledged when the caller has processed it."""

from __future__ import annotations

import math
import ssl
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final, Self

from pika import BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from rabbit_chx.base.limits import check_integer, check_seconds
from rabbit_chx.base.names import check_name
from rabbit_chx.base.outages import CALLER_WAITS, Backoff, Outage
from rabbit_chx.base.timeouts import HEARTBEAT, Timeouts, defaults_of, share_of
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import connect, expecting_refusals, server_version
from rabbit_chx.broker.commands import Lost, Refused, is_missing, why_ended
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.deliveries import RawDelivery
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.broker.guards import Guard, checked_urls
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.receiving import consume
from rabbit_chx.consuming.member.channels import close_in_one_step, is_stream
from rabbit_chx.consuming.queues.queues import check_readable, is_a_stream, no_such_queue
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.messages.message import Message
from rabbit_chx.mirror.releases import Release
from rabbit_chx.working.messages import Delivery, from_raw
from rabbit_chx.working.settings import MOST_PREFETCH, log

_TIMEOUTS: Final = defaults_of("connect", "reconnect")
_TICK: Final = 0.5
_QUIET: Final = 0.05
_OF_STREAM: Final = b"x-stream-offset"
"""The header that the broker adds to messages of a stream."""
_WEIGHT_OF_HEADERS: Final = 4
"""As text, headers can take several times their encoded size."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages in the order of their queue, which `QueueReader.acknowledge` takes back."""

    messages: tuple[Message, ...]
    _connection: int
    """The number of the connection on which they can be acknowledged."""


class _TakenBack(Exception):
    """The broker ended the consumer, and took back its deliveries, although the connection is still open."""


class QueueReader:
    """Receives the messages of a classic or quorum queue and keeps them until they are acknowledged.

    A thread keeps the connection alive, however long the caller computes, and reconnects when it is lost. The broker then
    redelivers every unacknowledged message. The reader therefore discards the messages of the lost connection that were
    not taken, and ignores acknowledgements of those that were.

    Args:
        url: an AMQP URL, or several that are tried in turn, also after a lost connection.
        queue: the name of the queue.
        prefetch: how many messages the broker sends before it waits for an acknowledgement, 1 to 65535. All are in memory.
        timeouts: how long to keep trying; only ``connect`` and ``reconnect`` may differ from their defaults.
        heartbeat: the heartbeat interval in seconds.
        credentials: user and password that are not in the URL.
        tls: the context for amqps; by default the certificate and the host name are verified.
        connection_name: the connection's name in the broker's list.

    Only the thread that opened the reader may use it, since an acknowledgement includes all earlier batches.
    """

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        queue: str,
        *,
        prefetch: int = 10_000,
        timeouts: Timeouts = _TIMEOUTS,
        heartbeat: int = HEARTBEAT,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        connection_name: str = "rabbit-chx queue reader",
    ) -> None:
        check_integer("prefetch", prefetch, 1, MOST_PREFETCH)
        urls = checked_urls(
            *("QueueReader", url, timeouts, heartbeat, credentials, tls, connection_name),
            defaults=_TIMEOUTS,
        )
        self._timeouts = timeouts
        self._addresses = len(urls)
        self._connect = partial(
            connect,
            urls,
            heartbeat=heartbeat,
            credentials=credentials,
            tls=tls,
            connection_name=connection_name,
        )
        self._guard = Guard("QueueReader", one_thread=True)
        self._queue = check_name("queue", queue)
        self._prefetch = prefetch
        self._number = 0
        """Of the connection, also across a call of `open`."""
        self._begin()

    def _begin(self) -> None:
        """Begin afresh, with locks and a thread of this process."""
        self._outage = Outage(log.warning, f"queue {self._queue!r}")
        self._changed = threading.Condition()
        self._messages: deque[Delivery] = deque()
        self._asked = False
        """Whether `waiting` waits for an answer."""
        self._count: int | None = None
        self._number += 1
        self._heard = 0.0
        self._delivered = self._acked = self._acked_there = 0
        """The delivery tags of the last message that came, of the last one that was acknowledged, and of the last one of which
        the broker was told that."""
        self._is_cancelled = False
        """Whether the broker has ended the consumer: it exceeded consumer_timeout, or the queue was deleted or moved."""
        self._wanted = 1
        self._connection: BlockingConnection | None = None
        self._channel: BlockingChannel | None = None
        self._error: RabbitChxError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rabbit-chx queue reader", daemon=True)
        self._warned = False
        self._acknowledged = True
        self._acknowledged_at = -math.inf
        self._is_checked = False
        """Whether the queue is known to be no stream, on this connection."""

    # ---- in the caller's thread

    def open(self) -> None:
        """Begin to receive, also again after `close` or in a forked child; the next `take` raises any error.

        An open reader stays as it is.
        """
        if self._thread.ident is not None:
            if self._thread.is_alive() and not self._guard.inherited:
                self._guard.check()
                return
            self._begin()
        self._guard.opened()
        self._thread.start()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(
        self, most: int, *, most_bytes: int = 1 << 62, timeout: float = 1.0, quiet: float = _QUIET
    ) -> Batch:
        """Return the next messages in the order of the queue, or an empty batch.

        Args:
            most: the maximum number of messages; the broker sends at most `prefetch`.
            most_bytes: the maximum total size of the messages, where headers count four times; a larger first message is returned alone.
            timeout: seconds to wait at most for the first connection and for messages.
            quiet: return earlier if no message arrives for this many seconds of the call, or if the broker waits for an
                acknowledgement.

        Raises:
            InvalidValue: the queue is missing, is exclusive, or is a stream; or an argument is invalid.
            BrokerUnavailable: the user lacks a permission, or the connection was lost and reconnecting failed.
        """
        self._guard.check_open()
        check_integer("most", most, 0, 1 << 62)
        check_integer("most_bytes", most_bytes, 0, 1 << 62)
        check_seconds("quiet", quiet)
        began = monotonic()
        end = began + check_seconds("timeout", timeout)
        with self._changed:
            self._wanted = most
            while len(self._messages) < most and self._error is None and monotonic() < end:
                if self._messages and self._is_full:
                    break
                if self._channel is not None and monotonic() >= max(self._heard, began) + quiet:
                    break
                self._changed.wait(min(quiet or _QUIET, end - monotonic()))
            if self._error is not None:
                raise self._error
            return Batch(self._next(most, most_bytes), self._number)

    @property
    def _is_full(self) -> bool:
        """Whether the broker waits for an acknowledgement."""
        return self._delivered - self._acked >= self._prefetch

    def _next(self, most: int, most_bytes: int) -> tuple[Delivery, ...]:
        taken: list[Delivery] = []
        size = 0
        while self._messages and len(taken) < most:
            first = self._messages[0]
            size += len(first.body) + _WEIGHT_OF_HEADERS * len(first.encoded)
            if taken and size > most_bytes:
                break
            taken.append(self._messages.popleft())
        return tuple(taken)

    def acknowledge(self, batch: Batch) -> None:
        """Acknowledge a batch and all earlier ones; does nothing if that is done, or if the connection was lost since `take`."""
        self._guard.check_open()
        if not batch.messages:
            return
        last = batch.messages[-1]
        assert isinstance(last, Delivery)
        with self._changed:
            if batch._connection != self._number or last.tag <= self._acked:
                return
            self._acked = last.tag
        self._wake()

    def waiting(self, timeout: float = 10.0) -> int | None:
        """How many messages in the queue are not delivered yet; None without a connection, or without an answer in time."""
        self._guard.check_open()
        check_seconds("timeout", timeout)
        with self._changed:
            self._asked, self._count = self._channel is not None, None
        self._wake()
        with self._changed:
            self._changed.wait_for(lambda: not self._asked, timeout)
            return self._count

    def close(self) -> None:
        """Close the connection; the broker requeues unacknowledged messages in order. Does nothing in a forked child.

        If the broker does not answer, this takes up to two heartbeat intervals, or half a minute if only heartbeats arrive.
        """
        if self._guard.inherited:
            return
        self._stop.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        self._guard.closed()

    def _wake(self) -> None:
        connection = self._connection
        if connection is not None:
            with suppress(AMQPError):  # the connection is closed, so its thread is awake
                connection.add_callback_threadsafe(lambda: None)

    # ---- in the thread of the connection

    def _run(self) -> None:
        lost_at, limit = monotonic(), self._timeouts.connect
        backoff, pause = Backoff(CALLER_WAITS), 0.0
        while not self._stop.is_set():
            share = share_of(lost_at + limit - monotonic(), self._addresses, self._timeouts.connect)
            try:
                with self._connect(timeout=share) as self._connection:
                    self._consume(self._connection, backoff)
            except (AMQPError, OSError, Lost, Refused, RabbitChxError, _TakenBack) as error:
                pause = backoff.failed()
                if self._channel is not None:
                    lost_at = max(backoff.failing_since, self._acknowledged_at)
                    limit = self._timeouts.reconnect
                ended = self._why(error)
                permanent = not isinstance(ended, BrokerUnavailable) or ended.permanent
                if permanent or monotonic() - lost_at > limit:
                    self._fail(ended)
                    return
                self._outage.failed(ended)
            except Exception as error:  # noqa: BLE001 - only `take` can report it
                self._fail(BrokerUnavailable(f"reading queue {self._queue!r} failed: {error!r}"))
                return
            finally:
                self._forget()
            self._stop.wait(pause)

    def _consume(self, connection: BlockingConnection, backoff: Backoff) -> None:
        release = Release._of_broker(server_version(connection))
        warning = PikaDriver(connection).run(check_readable(self._queue, release))
        if warning and not self._warned:
            self._warned = True
            log.warning("%s", warning)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=self._prefetch)
        channel.add_on_cancel_callback(self._on_cancelled)
        with expecting_refusals(channel):
            consume(channel, self._queue, self._on_deliveries, consumer_tag="rabbit-chx")
        with self._changed:
            self._channel, self._heard = channel, monotonic()
        backoff.works()
        self._outage.ended()
        try:
            while not self._stop.is_set():
                connection.process_data_events(time_limit=_TICK)
                self._turn(connection)
            self._turn(connection)
        finally:
            with suppress(AMQPError):
                close_in_one_step({channel: ""}, self._prefetch)

    def _turn(self, connection: BlockingConnection) -> None:
        # One for all that wait: a quorum queue keeps back more than 32 at a time, and drops them when the channel is closed.
        if self._acked > self._acked_there and self._channel is not None and self._channel.is_open:
            self._acked_there = self._acked
            self._channel.basic_ack(self._acked_there, multiple=True)
            self._acknowledged, self._acknowledged_at = True, monotonic()
        if self._is_cancelled:
            raise _TakenBack
        if self._asked:
            channel = connection.channel()
            count = channel.queue_declare(self._queue, passive=True).method.message_count
            channel.close()
            with self._changed:
                self._asked, self._count = False, count
                self._changed.notify()
        if self._channel is not None and self._channel.is_closed and connection.is_open:
            raise _TakenBack

    def _on_deliveries(self, deliveries: list[RawDelivery]) -> None:
        assert self._channel is not None
        messages = []
        for each in deliveries:
            message = from_raw(self._queue, each)
            if _OF_STREAM in message.encoded and not self._is_checked:
                self._is_checked = True
                if is_stream(self._channel.connection, self._queue):
                    raise is_a_stream(self._queue)
            messages.append(message)
        with self._changed:
            self._messages.extend(messages)
            self._heard = monotonic()
            self._delivered = deliveries[-1].tag
            if len(self._messages) >= self._wanted or self._is_full:
                self._changed.notify()

    def _on_cancelled(self, _: object) -> None:
        self._is_cancelled = True

    def _forget(self) -> None:
        """Forget everything that belongs to the lost connection."""
        with self._changed:
            self._number += 1
            self._messages.clear()
            self._delivered = self._acked = self._acked_there = 0
            self._connection = self._channel = None
            self._is_checked = self._asked = self._is_cancelled = False
            self._changed.notify()

    def _fail(self, error: RabbitChxError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify()

    def _why(self, error: Exception) -> RabbitChxError:
        if isinstance(error, RabbitChxError):
            return error
        if isinstance(error, _TakenBack):
            # For example, the queue was moved, or was deleted and declared again.
            if self._delivered <= self._acked:
                return BrokerUnavailable(f"the broker ended the consumer of queue {self._queue!r}")
            # The second time in a row is permanent, because it would repeat forever.
            acknowledged, self._acknowledged = self._acknowledged, False
            return BrokerUnavailable(
                f"the broker took back the unacknowledged messages of queue {self._queue!r}, probably because the reader held them "
                "longer than consumer_timeout. Read fewer at a time (in Spark with maxRowsPerTrigger), or increase consumer_timeout",
                permanent=not acknowledged,
            )
        if isinstance(error, (Refused, ChannelClosedByBroker)) and is_missing(error.args[1]):
            return no_such_queue(self._queue)
        return why_ended(error, Needs(read={("queue", self._queue)}))
