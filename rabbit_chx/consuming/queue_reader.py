"""Read one queue in batches, each acknowledged when its reader has finished with it."""

from __future__ import annotations

import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from pika import BasicProperties, BlockingConnection, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from rabbit_chx.broker.amqp import connect, expecting_refusals, server_version
from rabbit_chx.broker.applying.pika_driver import PikaDriver
from rabbit_chx.broker.applying.protocol import Lost, Refused
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.consuming.channels import close_in_one_step
from rabbit_chx.consuming.logs import log
from rabbit_chx.consuming.messages import Message
from rabbit_chx.consuming.queue_kind import check_readable, is_a_stream, no_such_queue
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.names import check_name
from rabbit_chx.urls import BrokerUrl

_TICK: Final = 0.5
_PAUSE: Final = 1.0
_QUIET: Final = 0.05
_ANSWER: Final = 10.0
_NOT_FOUND: Final = 404
_STREAM_OFFSET: Final = "x-stream-offset"
_MOST_PREFETCH: Final = 65_535


class Batch(NamedTuple):
    """Messages in the order of their queue, and the connection on which they can be acknowledged."""

    messages: tuple[Message, ...]
    connection: int


class _TakenBack(Exception):
    """The broker took back what it had delivered, on a connection that is in order."""


class QueueReader:
    """Receives the messages of a classic or quorum queue, and keeps them until they are acknowledged.

    A thread keeps the connection alive, however long its user computes, and opens a lost one again. The broker then
    delivers again what was not acknowledged: so messages of the lost connection that were not taken are forgotten, and an
    acknowledgement of those that were does nothing.

    Args:
        urls: AMQP URLs, tried in turn.
        queue: its name.
        prefetch: how many messages the broker sends before it waits for an acknowledgement, 1 to 65535.
        name: of the connection, in the broker's list.
        heartbeat: seconds between signs of life.
        timeout: seconds for each attempt to connect.
        reconnect: seconds in which a lost connection must be open again.
        credentials: user and password that are not in the URL.
        tls: the context for amqps; by default the certificate and the host name are verified.
    """

    def __init__(
        self,
        urls: str | BrokerUrl | Sequence[str | BrokerUrl],
        queue: str,
        *,
        prefetch: int = 1_000,
        name: str = "rabbit-chx queue reader",
        heartbeat: int = 60,
        timeout: float = 10.0,
        reconnect: float = 120.0,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not 1 <= prefetch <= _MOST_PREFETCH:
            raise InvalidValue("prefetch", prefetch, f"an integer from 1 to {_MOST_PREFETCH}")
        given = [urls] if isinstance(urls, (str, BrokerUrl)) else urls
        self._openings = [
            partial(
                connect,
                url,
                name=name,
                timeout=timeout,
                heartbeat=heartbeat,
                credentials=credentials,
                tls=tls,
            )
            for url in given
        ]
        self._queue = check_name("queue", queue)
        self._prefetch = prefetch
        self._reconnect = reconnect
        self._changed = threading.Condition()
        self._messages: deque[Message] = deque()
        self._number = 0
        self._heard = 0.0
        self._wanted = 1
        self._calls: deque[Callable[[], None]] = deque()
        self._connection: BlockingConnection | None = None
        self._channel: BlockingChannel | None = None
        self._error: RabbitChxError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rabbit-chx queue reader", daemon=True)
        self._warned = False
        self._acknowledged = True

    # ---- from the thread of the user

    def open(self) -> Self:
        """Begin to receive; errors are raised by the next `take`."""
        self._thread.start()
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def take(
        self, most: int, *, most_bytes: int = 1 << 62, wait: float = 1.0, quiet: float = _QUIET
    ) -> Batch:
        """Return the next messages, in the order of the queue; none if none came.

        Args:
            most: how many at most; more than `prefetch` would never come.
            most_bytes: of their bodies together, unless the first one alone is larger.
            wait: seconds for the first connection, and for more messages while some keep coming.
            quiet: seconds without another message after which it waits no longer.

        Raises:
            InvalidValue: the queue is missing, is a stream, or the user may not read it.
            BrokerUnavailable: the connection was lost and could not be opened again in time.
        """
        end = monotonic() + wait
        with self._changed:
            self._wanted = most
            while len(self._messages) < most and self._error is None and monotonic() < end:
                if self._channel is not None and monotonic() >= self._heard + quiet:
                    break
                self._changed.wait(quiet)
            if self._error is not None:
                raise self._error
            return Batch(self._next(most, most_bytes), self._number)

    def _next(self, most: int, most_bytes: int) -> tuple[Message, ...]:
        taken: list[Message] = []
        size = 0
        while self._messages and len(taken) < most:
            size += len(self._messages[0].body)
            if taken and size > most_bytes:
                break
            taken.append(self._messages.popleft())
        return tuple(taken)

    def acknowledge(self, batch: Batch) -> None:
        """Acknowledge a batch and all that were taken before; nothing happens if its connection was lost."""
        if batch.messages:
            self._ask(partial(self._acknowledge, batch.messages[-1].tag, batch.connection))

    def waiting(self) -> int | None:
        """How many messages the broker has for this reader and others; None while there is no connection."""
        answer: list[int] = []
        answered = threading.Event()
        self._ask(partial(self._count, answer, answered))
        answered.wait(_ANSWER)
        return answer[0] if answer else None

    def close(self) -> None:
        """Close the connection: the broker takes back in order what was not acknowledged."""
        self._stop.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()

    def _ask(self, call: Callable[[], None]) -> None:
        """Have the thread of the connection call a function."""
        self._calls.append(call)
        self._wake()

    def _wake(self) -> None:
        connection = self._connection
        if connection is not None:
            with suppress(AMQPError):  # it is closed, and its thread awake
                connection.add_callback_threadsafe(_nothing)

    # ---- in the thread of the connection

    def _run(self) -> None:
        lost_at = monotonic()
        while not self._stop.is_set():
            try:
                with self._opened() as self._connection:
                    self._consume(self._connection)
            except (AMQPError, OSError, Lost, Refused, RabbitChxError, _TakenBack) as error:
                if self._was_open():
                    lost_at = monotonic()
                ended = self._why(error)
                permanent = not isinstance(ended, BrokerUnavailable) or ended.permanent
                if permanent or monotonic() - lost_at > self._reconnect:
                    self._fail(ended)
                    return
                log.warning("queue %r: %s; trying again", self._queue, ended)
            except Exception as error:  # noqa: BLE001 - pika cannot decode some headers, and a thread has no other reporter
                self._fail(BrokerUnavailable(f"reading queue {self._queue!r} failed: {error!r}"))
                return
            finally:
                self._forget()
            self._stop.wait(_PAUSE)

    def _opened(self) -> BlockingConnection:
        *others, last = self._openings
        for opening in others:
            with suppress(BrokerUnavailable):
                return opening()
        return last()

    def _consume(self, connection: BlockingConnection) -> None:
        with expecting_refusals():
            warning = PikaDriver(connection).run(check_readable(self._queue, server_version(connection)))
        if warning and not self._warned:
            self._warned = True
            log.warning("%s", warning)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=self._prefetch)
        channel.add_on_cancel_callback(lambda _: self._calls.append(self._cancelled))
        with expecting_refusals():
            channel.basic_consume(self._queue, self._on_message)
        with self._changed:
            self._channel, self._heard = channel, monotonic()
        try:
            while not self._stop.is_set():
                connection.process_data_events(time_limit=_TICK)
                self._turn(connection)
            self._turn(connection)
        finally:
            with suppress(AMQPError):
                close_in_one_step({channel: ""}, self._prefetch)

    def _turn(self, connection: BlockingConnection) -> None:
        while self._calls:
            self._calls.popleft()()
        if self._channel is not None and self._channel.is_closed and connection.is_open:
            raise _TakenBack

    def _on_message(
        self, _: BlockingChannel, method: spec.Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        if _STREAM_OFFSET in (properties.headers or {}):
            raise is_a_stream(self._queue)
        message = Message(
            body,
            method.routing_key,
            queue=self._queue,
            exchange=method.exchange,
            redelivered=method.redelivered,
            properties=properties,
            tag=method.delivery_tag,
        )
        with self._changed:
            self._messages.append(message)
            self._heard = monotonic()
            if len(self._messages) >= self._wanted:
                self._changed.notify()

    def _acknowledge(self, tag: int, connection: int) -> None:
        if connection == self._number and self._channel is not None and self._channel.is_open:
            self._channel.basic_ack(tag, multiple=True)
            self._acknowledged = True

    def _count(self, answer: list[int], answered: threading.Event) -> None:
        try:
            if self._connection is not None:
                other = self._connection.channel()
                answer.append(other.queue_declare(self._queue, passive=True).method.message_count)
                other.close()
        finally:
            answered.set()

    def _cancelled(self) -> None:
        """The broker has cancelled the consumer: it took too long, or the queue was deleted or moved."""
        raise _TakenBack

    def _was_open(self) -> bool:
        return self._channel is not None

    def _forget(self) -> None:
        """Forget what belongs to a connection that is gone."""
        with self._changed:
            self._number += 1
            self._messages.clear()
            self._connection = self._channel = None
        self._calls.clear()

    def _fail(self, error: RabbitChxError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify()

    def _why(self, error: Exception) -> RabbitChxError:
        """Why a connection is of no more use."""
        if isinstance(error, RabbitChxError):
            return error
        if isinstance(error, _TakenBack):
            return self._why_taken_back()
        if isinstance(error, (Refused, ChannelClosedByBroker)):
            code, text = error.args[:2]
            if code == _NOT_FOUND and "no queue" in text:
                return no_such_queue(self._queue)
            error = ChannelClosedByBroker(code, text)
        if isinstance(error, Lost):
            return BrokerUnavailable(str(error))
        reason = why_down(error, "the broker", needs=Needs(read={("queue", self._queue)}))
        unavailable = BrokerUnavailable(str(reason))
        unavailable.permanent = reason.permanent
        return unavailable

    def _why_taken_back(self) -> BrokerUnavailable:
        """The first time, the same messages are read again; a second time in a row would repeat for ever."""
        unavailable = BrokerUnavailable(
            f"the broker took back the messages of queue {self._queue!r} that were not acknowledged: consumer_timeout limits how "
            "long they may be held. Read fewer at a time (in Spark with maxRowsPerTrigger), or increase consumer_timeout"
        )
        unavailable.permanent = not self._acknowledged
        self._acknowledged = False
        return unavailable


def _nothing() -> Any:
    """Wakes the thread."""
