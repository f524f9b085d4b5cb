"""Publish messages, each confirmed by the broker, from any number of threads.

    with Publisher("amqp://user:password@host", exchange="orders") as publisher:
        publisher.publish(b"...", "customer-42")        # returns when this message is confirmed
        publisher.publish_many(bodies, keys)            # the same for a batch
        with publisher.bulk() as bulk:                  # a file: returns at once, and waits at the end
            for body, key in rows:
                bulk.add(body, key)

Messages are mandatory, and each one is confirmed; they are persistent unless ``delivery_mode=1``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, Unpack

from rabbit_chx.base.limits import check_integer
from rabbit_chx.base.timeouts import DEFAULTS, HEARTBEAT, Timeouts, deadline_of
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import parameters_of
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.guards import checked_urls
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.tls import warn_if_unchecked
from rabbit_chx.messages.message_fields import DefaultProperties, Headers, Properties, PropertyColumns
from rabbit_chx.publishing import calls
from rabbit_chx.publishing.async_calls import AsyncClient
from rabbit_chx.publishing.attempts import Address
from rabbit_chx.publishing.bulk import Batch, Bulk
from rabbit_chx.publishing.calls import BlockingClient, Client
from rabbit_chx.publishing.encoder import Encoder, HeaderColumn
from rabbit_chx.publishing.messages import Failure, Totals
from rabbit_chx.publishing.pipeline import AmqpPipeline

MAX_IN_FLIGHT: Final = 5_000


class PublisherOptions(Client[AmqpPipeline]):
    """The parameters of a publisher, the same for both classes."""

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        exchange: str = "",
        *,
        properties: DefaultProperties | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_message_bytes: int | None = None,
        timeouts: Timeouts = DEFAULTS,
        heartbeat: int = HEARTBEAT,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        connection_name: str = "rabbit-chx publisher",
    ) -> None:
        urls = checked_urls("Publisher", url, timeouts, heartbeat, credentials, tls, connection_name)
        for one in (each for each in urls if each.tls):
            warn_if_unchecked(tls, str(one))
        check_integer("max_in_flight", max_in_flight, 1, 2**32 - 1)
        parameters = partial(
            parameters_of,
            heartbeat=heartbeat,
            blocked_timeout=timeouts.blocked,
            credentials=credentials,
            tls=tls,
            connection_name=connection_name,
        )
        begin = partial(
            AmqpPipeline,
            [Address(str(one), partial(parameters, one)) for one in urls],
            timeouts,
            Encoder(exchange, properties, max_message_bytes),
            max_in_flight=max_in_flight,
            # As far as they are known before the first message.
            needs=Needs(write={("exchange", exchange)} if exchange else set()),
        )
        super().__init__(begin, ", ".join(map(str, urls)))

    @property
    def max_message_bytes(self) -> int:
        """The largest body that is accepted; before the first connection the largest that any release accepts."""
        return self._pipeline.encoder.max_message_bytes

    @property
    def _max_property_bytes(self) -> int:
        """How long the properties of a message may be, headers included."""
        return self._pipeline.encoder.max_property_bytes


class Publisher(PublisherOptions, BlockingClient[AmqpPipeline]):
    """Publishes to a broker, or to the first of several that accepts the connection. Any number of threads may use it.

    Args:
        url: an AMQP URL, or several that are tried in turn.
        exchange: where to publish messages that name no exchange themselves.
        properties: for every message, such as ``{"content_type": "application/json"}``.
        max_in_flight: messages that may be unconfirmed. A call waits while more than three quarters of this number, or
            of 32 MiB of bodies, are unconfirmed.
        max_message_bytes: the broker's ``max_message_size``, which AMQP does not report; by default 16 MiB on
            RabbitMQ 4 and 128 MiB before.
        timeouts: how long to keep trying.
        heartbeat: seconds; the publisher's thread sends them, even while the caller is busy.
        credentials: user and password that are not in the URL or that expire: a function that is called for each
            connection, or the ``Path`` of a file that holds the password of the URL's user and is read for each connection.
        tls: the context for amqps; by default the certificate and the host name are verified.
        connection_name: the connection's name in the broker's list.

    Order: the messages of one thread are sent in the order of its calls. After a nack, a return or a reconnect, the messages
    that were in flight may arrive twice or out of order; ``totals.resent`` counts them.
    """

    def publish(
        self,
        body: bytes | str,
        routing_key: str | bytes = "",
        *,
        exchange: str | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
        **properties: Unpack[Properties],
    ) -> None:
        """Publish one message, and return when the broker has confirmed it.

        After ``timeout`` seconds the message is withdrawn if it was not written to the connection.

        Raises:
            PublishFailed: the message was not confirmed; ``may_have_arrived`` says whether it may be in a queue all the same.
        """
        self._pipeline.check()
        encoded = self._pipeline.encoder.one(body, routing_key, exchange, headers, properties)
        calls.publish(self._pipeline, encoded, deadline_of(timeout), timeout)

    def publish_many(
        self,
        bodies: Iterable[bytes | str],
        routing_keys: str | bytes | Iterable[str | bytes] = "",
        *,
        exchange: str | Iterable[str | bytes] | None = None,
        headers: HeaderColumn = None,
        timeout: float | None = None,
        **properties: Unpack[PropertyColumns],
    ) -> Totals:
        """Publish a batch given by columns, and return when the broker has confirmed each message.

        Keys, exchanges, headers and each property are one value for all rows, or a column: a list, tuple or Arrow array; keys and
        exchanges may be any iterable. The whole batch is checked before its first message is sent. After
        ``timeout`` seconds the messages that were not written to the connection are withdrawn.

        Raises:
            PublishFailed: some messages were not confirmed. ``failures`` has each of their rows, which a caller may publish again.
                Messages that were written and have no outcome yet are unknown there, and pending in ``totals``.
        """
        self._pipeline.check()
        deadline = deadline_of(timeout)
        columns = self._pipeline.encoder.many(bodies, routing_keys, exchange, headers, properties)
        return Batch(self._pipeline, on_failure=None).publish(columns, deadline, timeout)

    def submit(
        self,
        body: bytes | str,
        routing_key: str | bytes = "",
        *,
        exchange: str | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
        **properties: Unpack[Properties],
    ) -> Future[None]:
        """Accept one message and return a future, which ends when the message is confirmed.

        The call waits only while too many messages are in flight; after ``timeout`` seconds, 0 for at once, the message fails unsent. The
        future's error is `PublishFailed`, and is logged if the future is never read. ``cancel()`` withdraws the message if
        it was not written to the connection. Callbacks run on a thread of their own and may publish: `close`, or the end of the
        block, waits for them. In a program that ends without it, they may not.
        """
        self._pipeline.check()
        encoded = self._pipeline.encoder.one(body, routing_key, exchange, headers, properties)
        return calls.submit(self._pipeline, encoded, deadline_of(timeout), timeout)

    def bulk(self, *, on_failure: Callable[[Failure], object] | None = None) -> Bulk:
        """Return a `Bulk`, for as many messages as a file or a partition holds.

        ``on_failure`` is called on the publisher's thread for each message that was not confirmed; ``flush`` then does not
        raise for them, and returns after the calls. It must not publish with this publisher, flush a bulk or close the
        publisher: these wait for the thread that runs it, and raise `RabbitChxError` on it. For messages that a call withdraws or
        does not accept because its ``timeout`` is over, it runs inside that call, which it may prolong.
        """
        return Bulk(self._pipeline, on_failure=on_failure)


class AsyncPublisher(PublisherOptions, AsyncClient[AmqpPipeline]):
    """A `Publisher` for asyncio, with the same parameters; use it in one event loop.

    Cancelling a call withdraws what was not written to the connection.
    """

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
        self._check()
        encoded = self._pipeline.encoder.one(body, routing_key, exchange, headers, properties)
        await self._publish(encoded, deadline_of(timeout), timeout)

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
        self._check()
        deadline = deadline_of(timeout)
        columns = self._pipeline.encoder.many(bodies, routing_keys, exchange, headers, properties)
        return await self._publish_many(columns, deadline, timeout)
