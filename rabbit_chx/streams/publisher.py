"""Publish to streams, each message confirmed. With a publisher name, a stream stores each message exactly once.

    with StreamPublisher("rabbitmq-stream://user:password@host", stream="events", name="import-7") as publisher:
        publisher.publish(b"one")
        publisher.publish_many([b"two", b"three"])

With ``super_stream=`` or ``exchange=`` instead of ``stream=``, the routing key of each message selects its stream. The calls are
those of `Publisher`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, Unpack

from rabbit_chx.base.limits import check_integer
from rabbit_chx.base.names import check_name
from rabbit_chx.base.text import counted
from rabbit_chx.base.timeouts import HEARTBEAT, Timeouts, deadline_of, defaults_of
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.guards import checked_urls
from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.message_fields import DefaultProperties, Headers, Properties, PropertyColumns
from rabbit_chx.publishing import calls
from rabbit_chx.publishing.async_calls import AsyncClient
from rabbit_chx.publishing.bulk import BaseBulk, Batch
from rabbit_chx.publishing.calls import BlockingClient, Client
from rabbit_chx.publishing.encoder import HeaderColumn
from rabbit_chx.publishing.messages import Failure, Totals
from rabbit_chx.streams.partitions import of_exchange, of_super_stream
from rabbit_chx.streams.protocol import requests
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.opening import connect_until
from rabbit_chx.streams.publishing.encoder import Messages, StreamColumns
from rabbit_chx.streams.publishing.pipeline import StreamPipeline

_TIMEOUTS: Final = defaults_of("connect", "reconnect", "confirm", "close")
MAX_IN_FLIGHT: Final = 20_000


class StreamPublisherOptions(Client[StreamPipeline]):
    """The parameters of a publisher to streams, the same for both classes."""

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        stream: str | None = None,
        *,
        super_stream: str | None = None,
        exchange: str | None = None,
        name: str | None = None,
        properties: DefaultProperties | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        follow_advertised: bool = False,
        timeouts: Timeouts = _TIMEOUTS,
        heartbeat: int = HEARTBEAT,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        connection_name: str = "rabbit-chx stream publisher",
    ) -> None:
        _check_one(stream=stream, super_stream=super_stream, exchange=exchange)
        urls = checked_urls(
            *("StreamPublisher", url, timeouts, heartbeat, credentials, tls, connection_name),
            defaults=_TIMEOUTS,
            streams=True,
        )
        check_integer("max_in_flight", max_in_flight, 1, 2**32 - 1)
        if name is not None:
            requests.name(name, "publisher name")

        def connect(give_up_at: float, stream: str | None = None) -> StreamConnection:
            return connect_until(
                give_up_at,
                urls,
                stream=stream,
                leader=stream is not None,
                follow_advertised=follow_advertised and stream is not None,
                timeout=timeouts.connect,
                heartbeat=heartbeat,
                credentials=credentials,
                tls=tls,
                connection_name=connection_name,
            )

        self.stream = stream
        self.name = name
        find = partial(of_exchange if super_stream is None else of_super_stream, named=name is not None)
        source = super_stream or exchange or ""
        begin = partial(
            StreamPipeline, stream, source, find, name, connect, timeouts, properties, max_in_flight
        )
        super().__init__(begin, ", ".join(map(str, urls)))

    @property
    def max_message_bytes(self) -> int | None:
        """The agreed maximum size of an encoded message; None for no limit, or before the first connection."""
        return self._pipeline.encoder.max_message_bytes


class StreamPublisher(StreamPublisherOptions, BlockingClient[StreamPipeline]):
    """Publishes to one stream, or by routing key to several, over a connection to each. Any number of threads may use it.

    Args:
        url: as for `connect`.
        stream: the name of the stream. Exactly one of ``stream``, ``super_stream`` and ``exchange`` is required.
        super_stream: the name of a super stream; its partition follows from the key as in the clients of RabbitMQ.
        exchange: the name of a consistent-hash exchange that hashes the routing key, bound to streams only; a message goes
            to the stream to which the exchange would route it.
        name: the publisher's name. The broker drops a message whose publishing id is not higher than the last one under this
            name, so a message that is sent again is stored once. A stream remembers the 255 names used most recently.
        properties: as for `Publisher`.
        max_in_flight: messages for a stream that may be unconfirmed. A call waits while more than three quarters of this number,
            or of 32 MiB for the stream, are unconfirmed.
        follow_advertised: as for `connect`.
        timeouts: ``connect`` for opening a connection, and for an answer; ``reconnect`` until a lost connection is replaced;
            ``confirm`` while the broker takes or confirms nothing; ``close`` for what is pending at the end.
        heartbeat: as for `Publisher`.
        credentials: as for `connect`.
        tls: as for `connect`.
        connection_name: as for `connect`.

    If a connection is lost, the publisher sends the unconfirmed messages again over a new one. With a name, the stream stores each
    message once; without a name, it may store some twice. The order of messages that go to the same stream is kept.

    The publisher notices added and removed streams within ten seconds, waits for the confirms of earlier messages, and routes by the new
    streams, which move keys: most keys of a super stream, and under a hash exchange the share of the new streams.
    """

    def sequence(self, timeout: float | None = None) -> int:
        """Return the highest publishing id that the stream remembers for this name; 0 if the stream remembers none, or without a name.

        The message with this id may not be confirmed yet: to be sure that it and those before it are, publish it again.
        Of several streams, return the lowest of these ids: they have all messages up to it.
        """
        return self._pipeline.sequence(timeout)

    def publish(
        self,
        body: bytes | str,
        routing_key: str | bytes | None = None,
        *,
        headers: Headers | None = None,
        publishing_id: int | None = None,
        timeout: float | None = None,
        **properties: Unpack[Properties],
    ) -> None:
        """Publish one message, and return when the broker has confirmed it: see `Publisher.publish`.

        Args:
            body: the body.
            routing_key: is stored with the message, and selects one of several streams.
            headers: streams store no lists, dicts and decimals, which are refused.
            publishing_id: from 1 to 2^64 - 1, by default the next one; with a name, that is also after the last id of earlier publishers.
            timeout: seconds; a message that was not written by then is withdrawn.
            properties: as for `Publisher.publish`.
        """
        self._pipeline.check()
        encoded = self._pipeline.encoder.one(body, routing_key, headers, publishing_id, properties)
        calls.publish(self._pipeline, encoded, deadline_of(timeout), timeout)

    def publish_many(
        self,
        bodies: Iterable[bytes | str],
        routing_keys: str | bytes | Iterable[str | bytes | None] | None = None,
        *,
        headers: HeaderColumn = None,
        ids: Iterable[int] | None = None,
        timeout: float | None = None,
        **properties: Unpack[PropertyColumns],
    ) -> Totals:
        """Publish a batch given by columns, and return when the broker has confirmed each message: see `Publisher.publish_many`.

        Args:
            bodies: the bodies of the messages.
            routing_keys: one value for all messages, or an iterable with one for each, which several streams require.
            headers: likewise.
            ids: publishing ids, which increase. With a name, the broker drops a message whose id is not higher than the last one under this
                name; it counts as confirmed, and in ``totals.duplicates``.
            timeout: seconds; messages that were not written by then are withdrawn.
            properties: as for `Publisher.publish_many`.
        """
        self._pipeline.check()
        deadline = deadline_of(timeout)
        columns = self._pipeline.encoder.many(bodies, routing_keys, headers, ids, properties)
        return Batch(self._pipeline, on_failure=None).publish(columns, deadline, timeout)

    def submit(
        self,
        body: bytes | str,
        routing_key: str | bytes | None = None,
        *,
        headers: Headers | None = None,
        publishing_id: int | None = None,
        timeout: float | None = None,
        **properties: Unpack[Properties],
    ) -> Future[None]:
        """Accept one message and return a future, which ends when the message is confirmed: see `Publisher.submit`."""
        self._pipeline.check()
        encoded = self._pipeline.encoder.one(body, routing_key, headers, publishing_id, properties)
        return calls.submit(self._pipeline, encoded, deadline_of(timeout), timeout)

    def bulk(self, *, on_failure: Callable[[Failure], object] | None = None) -> StreamBulk:
        """Return a `StreamBulk`, for as many messages as a file or a partition holds: see `Publisher.bulk`."""
        return StreamBulk(self._pipeline, on_failure=on_failure)


class AsyncStreamPublisher(StreamPublisherOptions, AsyncClient[StreamPipeline]):
    """A `StreamPublisher` for asyncio, with the same parameters; use it in one event loop.

    Cancelling a call withdraws what was not written to the connection.
    """

    async def publish(
        self,
        body: bytes | str,
        routing_key: str | bytes | None = None,
        *,
        headers: Headers | None = None,
        publishing_id: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in StreamPublisher
        **properties: Unpack[Properties],
    ) -> None:
        """Publish one message, and return when the broker has confirmed it: see `StreamPublisher.publish`."""
        self._check()
        encoded = self._pipeline.encoder.one(body, routing_key, headers, publishing_id, properties)
        await self._publish(encoded, deadline_of(timeout), timeout)

    async def publish_many(
        self,
        bodies: Iterable[bytes | str],
        routing_keys: str | bytes | Iterable[str | bytes | None] | None = None,
        *,
        headers: HeaderColumn = None,
        ids: Iterable[int] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in StreamPublisher
        **properties: Unpack[PropertyColumns],
    ) -> Totals:
        """Publish a batch given by columns, and return when the broker has confirmed each message: see `StreamPublisher.publish_many`."""
        self._check()
        deadline = deadline_of(timeout)
        columns = self._pipeline.encoder.many(bodies, routing_keys, headers, ids, properties)
        return await self._publish_many(columns, deadline, timeout)


class StreamBulk(BaseBulk[StreamPipeline]):
    """As `Bulk`, for streams: messages that are added in any number and confirmed together."""

    def add(
        self,
        body: bytes | str,
        routing_key: str | bytes | None = None,
        *,
        headers: Headers | None = None,
        publishing_id: int | None = None,
        timeout: float | None = None,
        **properties: Unpack[Properties],
    ) -> int:
        """Accept one message and return its row number, which identifies it in failures: see `Bulk.add`."""
        self._pipeline.check()
        encoded = self._pipeline.encoder.one(body, routing_key, headers, publishing_id, properties)
        return self._add_one(encoded, timeout)

    def add_many(
        self,
        bodies: Iterable[bytes | str],
        routing_keys: str | bytes | Iterable[str | bytes | None] | None = None,
        *,
        headers: HeaderColumn = None,
        ids: Iterable[int] | None = None,
        timeout: float | None = None,
        **properties: Unpack[PropertyColumns],
    ) -> range:
        """Accept a batch given by columns and return its rows: see `Bulk.add_many`."""
        self._pipeline.check()
        columns = self._pipeline.encoder.many(bodies, routing_keys, headers, ids, properties)
        return self._add_columns(columns, deadline_of(timeout), timeout)

    def _add_encoded(self, messages: Sequence[bytes], ids: Sequence[int] | None = None) -> None:
        """Accept messages without keys that are encoded as AMQP 1.0, for Spark's sink; the stream stores their bytes unchanged."""
        self._add_columns(StreamColumns([None] * len(messages), ids, Messages(messages)), None, None)


def _check_one(**given: str | None) -> None:
    named = {what: name for what, name in given.items() if name is not None}
    for what, name in named.items():
        check_name(what.replace("_", " "), name)
    if len(named) != 1:
        raise InvalidValue(
            "target of StreamPublisher",
            counted(len(named), "name"),
            "exactly one of stream, super_stream and exchange",
        )
