"""Send the canaries of a watch, and receive the reports of the consumers.

It does not use `Publisher`: direct reply-to delivers answers only on the channel that published, and needs no permission. A canary is also transient, and one that
comes back is a finding and is not sent again.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, Self, TypeAlias

from pika import BasicProperties, BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, NackError, UnroutableError

from rabbit_chx.broker.amqp import connect, expecting_refusals
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.reasons import why_refused
from rabbit_chx.canaries import CANARY, reported
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.replies import REPLY_TO
from rabbit_chx.urls import BrokerUrl
from rabbit_chx.watch.canary import Canary, News

_TICK: Final = 0.2
_CLOSE_SECONDS: Final = 5.0
_TRANSIENT: Final = 1
_Batch: TypeAlias = tuple[Sequence[Canary], str]
"""Canaries, and the milliseconds after which they expire."""


class CanarySender:
    """Sends canaries in a thread of its own, and reconnects at the next batch if the connection is lost.

    Args:
        url: an AMQP URL.
        exchange: the exchange to publish to.
        timeout: seconds for each attempt to connect, and for the broker to confirm a canary.
        credentials: user and password that are not in the URL.
        tls: the context for amqps; by default the certificate and the host name are verified.
    """

    def __init__(
        self,
        url: str | BrokerUrl,
        exchange: str,
        *,
        timeout: float = 10.0,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._connect: Callable[[], BlockingConnection] = partial(
            connect, url, name="rabbit-chx watch canaries", timeout=timeout, credentials=credentials, tls=tls
        )
        self._exchange = exchange
        self._timeout = timeout
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._sent: dict[str, float] = {}
        """When each canary of the last two batches was sent."""
        self._before: dict[str, float] = {}
        self._news = News()
        self._failure = ""
        """Why the last batch failed."""
        self._thread = threading.Thread(target=self._run, name="rabbit-chx canaries", daemon=True)

    # ---- in the caller's thread

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._batches.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def send(self, canaries: Sequence[Canary], *, expire_after: float) -> None:
        """Send canaries as soon as possible; returns at once. Those that no consumer gets in time expire."""
        if canaries and self._batches.empty():  # otherwise the broker is slower than the watch
            self._batches.put((canaries, str(round(1000 * expire_after))))

    def news(self) -> News:
        """What has happened since the last call."""
        with self._lock:
            news, self._news = self._news, News()
            return replace(news, failure=self._failure)

    # ---- in the thread

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                with self._connect() as connection:
                    connection.patience = self._timeout
                    self._use(connection, batch)
                    return
            except (AMQPError, OSError, BrokerUnavailable) as error:
                needs = Needs(write={("exchange", self._exchange)})
                with self._lock:
                    self._failure = why_refused(error, needs, what="a canary")

    def _use(self, connection: BlockingConnection, batch: _Batch | None) -> None:
        """Send batches until the sender is closed."""
        channel: BlockingChannel = connection.channel()
        channel.confirm_delivery()
        channel.basic_consume(REPLY_TO, self._on_report, auto_ack=True)
        with expecting_refusals(channel):
            while batch is not None:
                self._before, self._sent = self._sent, {}
                canaries, expiration = batch
                for canary in canaries:
                    self._publish(channel, canary, expiration)
                    connection.process_data_events(0)  # so that reports are not late
                with self._lock:
                    self._failure = ""
                batch = self._wait(connection)

    def _wait(self, connection: BlockingConnection) -> _Batch | None:
        """Receive reports until the next batch."""
        while True:
            with suppress(Empty):
                return self._batches.get_nowait()
            connection.process_data_events(_TICK)

    def _publish(self, channel: BlockingChannel, canary: Canary, expiration: str) -> None:
        parts = canary.key.parts
        properties = BasicProperties(
            headers={**parts["headers"], CANARY: canary.id},
            reply_to=REPLY_TO,
            delivery_mode=_TRANSIENT,
            expiration=expiration,
            **parts["properties"],
        )
        with self._lock:
            self._news.sent.append(canary.id)
        self._sent[canary.id] = monotonic()
        try:
            channel.basic_publish(self._exchange, parts["routing_key"], b"", properties, mandatory=True)
        except UnroutableError:
            with self._lock:
                self._news.returned.append(canary.id)
        except NackError:  # its queue is full: no consumer will report it
            pass

    def _on_report(self, _: Any, __: Any, properties: BasicProperties, ___: bytes) -> None:
        report = reported(properties.headers)
        if report is None:
            return
        canary, queue = report
        # Only the first report counts, so that a consumer that repeats it cannot fill the memory.
        sent = self._sent.pop(canary, None) or self._before.pop(canary, None)
        if sent is not None:
            with self._lock:
                self._news.reports.append((canary, queue, monotonic() - sent))
