"""The publisher for asyncio: the same sender and its thread, and calls that suspend instead of blocking the loop."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self, Unpack

from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.errors import InvalidValue, RabbitChxError
from rabbit_chx.message_fields import Headers, Properties, PropertyColumns
from rabbit_chx.publishing.encoder import HeaderColumn
from rabbit_chx.publishing.messages import Failure, Outcome, OutgoingMessage, Owner, Totals
from rabbit_chx.publishing.publisher import MAX_IN_FLIGHT, Publisher
from rabbit_chx.publishing.receipts import publish_failed, unconfirmed
from rabbit_chx.timeouts import DEFAULTS, HEARTBEAT, Timeouts
from rabbit_chx.urls import BrokerUrl

_PAUSE: Final = 0.002
"""Seconds between two looks for room while too many messages are in flight."""
_CANCELLED: Final = "cancelled by the caller"


class AsyncPublisher:
    """A `Publisher` for asyncio, with the same parameters; use it in one event loop.

    Cancelling a call withdraws what was not written to the connection.
    """

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        exchange: str = "",
        *,
        properties: Mapping[str, Any] | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_message_bytes: int | None = None,
        timeouts: Timeouts = DEFAULTS,
        heartbeat: int = HEARTBEAT,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        connection_name: str = "rabbit-chx publisher",
    ) -> None:
        self._publisher = Publisher(
            url,
            exchange,
            properties=properties,
            max_in_flight=max_in_flight,
            max_message_bytes=max_message_bytes,
            timeouts=timeouts,
            heartbeat=heartbeat,
            credentials=credentials,
            tls=tls,
            connection_name=connection_name,
        )
        self._turn = asyncio.Lock()  # one task at a time looks for room; they keep their order
        self._news = _News()

    def __repr__(self) -> str:
        return f"<Async{repr(self._publisher)[1:]}"

    async def open(self) -> None:
        """Connect; an error that waiting cannot fix is raised after one attempt."""
        self._check_loop()
        self._news.loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._publisher.open)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as in Publisher
        """Wait until every message has its outcome, then close the connection: see `Publisher.close`."""
        await asyncio.to_thread(self._publisher.close, timeout)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def publish(
        self,
        body: bytes | str,
        routing_key: str | bytes = "",
        *,
        exchange: str | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in Publisher
        **properties: Unpack[Properties],
    ) -> None:
        """Publish one message, and return when the broker has confirmed it: see `Publisher.publish`."""
        pipeline = self._publisher.pipeline
        pipeline.check()
        self._check_loop()
        receipt = _Receipt(self._news)
        encoded = pipeline.encoder.one(body, routing_key, exchange, headers, properties)
        message = OutgoingMessage(0, *encoded, receipt)
        deadline = None if timeout is None else time.monotonic() + timeout
        if not await self._accepted(message, deadline):
            message.reply = f"too many messages were in flight for {timeout} seconds"
            raise publish_failed(message.failure(Outcome.UNSENT))
        try:
            if deadline is None:
                await receipt.done
            else:
                await asyncio.wait([receipt.done], timeout=max(deadline - time.monotonic(), 0.0))
        except asyncio.CancelledError:
            pipeline.outbox.withdraw({receipt}, _CANCELLED)
            raise
        if not receipt.settled_already:
            pipeline.outbox.withdraw({receipt}, f"withdrawn after {timeout} seconds")
            if not receipt.settled_already:
                raise publish_failed(unconfirmed(message, timeout))
        if receipt.failure is not None:
            raise publish_failed(receipt.failure)

    def _check_loop(self) -> None:
        if self._publisher.pipeline.state == "open" and self._news.loop is not asyncio.get_running_loop():
            raise InvalidValue(
                "use of AsyncPublisher",
                "a call in a second event loop",
                "calls in the loop that opened it",
                "Open an AsyncPublisher in each loop",
            )

    async def _accepted(self, message: OutgoingMessage, deadline: float | None) -> bool:
        """Put a message into the outbox; return False if the deadline passes before there is room."""
        async with self._turn:
            while not self._publisher.pipeline.accept([message], 0.0):
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                await asyncio.sleep(_PAUSE)
        return True

    async def publish_many(
        self,
        bodies: Iterable[bytes | str],
        routing_keys: str | bytes | Iterable[str | bytes] = "",
        *,
        exchange: str | Iterable[str | bytes] | None = None,
        headers: HeaderColumn = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in Publisher
        **properties: Unpack[PropertyColumns],
    ) -> Totals:
        """Publish a batch given by columns, and return when the broker has confirmed each message: see `Publisher.publish_many`."""
        publisher = self._publisher
        publisher.pipeline.check()
        self._check_loop()
        columns = publisher.pipeline.encoder.many(bodies, routing_keys, exchange, headers, properties)
        bulk = publisher.bulk()
        try:
            return await asyncio.to_thread(publisher.publish_columns, bulk, columns, timeout)
        except asyncio.CancelledError:
            bulk.withdraw(_CANCELLED)
            raise

    @property
    def totals(self) -> Totals:
        """The current counters of all messages."""
        return self._publisher.totals

    @property
    def error(self) -> RabbitChxError | None:
        """Why the publisher gave up and is not connected: see `Publisher.error`."""
        return self._publisher.error

    @property
    def max_message_bytes(self) -> int:
        """The largest body that is accepted: see `Publisher.max_message_bytes`."""
        return self._publisher.max_message_bytes

    @property
    def max_property_bytes(self) -> int:
        """How long the properties of a message may be, headers included."""
        return self._publisher.max_property_bytes


class _News:
    """Wakes the tasks whose messages have their outcome, many at once: a wake-up of the loop costs more than a message."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._settled: deque[_Receipt] = deque()
        self._coming = False

    def add(self, receipt: _Receipt) -> None:
        """Note an outcome; called by the thread of the sender."""
        self._settled.append(receipt)
        if not self._coming and self.loop is not None:
            self._coming = True
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._coming = False  # first: what comes from now on needs another call
        while self._settled:
            done = self._settled.popleft().done
            if not done.done():
                done.set_result(None)


class _Receipt(Owner):
    """A task that waits for the outcome of one message."""

    __slots__ = ("_news", "done", "failure", "settled_already")

    def __init__(self, news: _News) -> None:
        self._news = news
        self.done = asyncio.get_running_loop().create_future()
        self.failure: Failure | None = None
        self.settled_already = False

    def settled(self, count: int, outcome: Outcome, failures: Sequence[Failure]) -> None:  # noqa: ARG002
        self.failure = failures[0] if failures else None
        self.settled_already = True
        self._news.add(self)
