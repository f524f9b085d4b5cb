"""The publisher for asyncio: the same sender and its thread, and calls that suspend instead of blocking the loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from rabbit_chx.base.timeouts import deadline_of
from rabbit_chx.messages.message_fields import Headers, Properties, PropertyColumns
from rabbit_chx.publishing.async_calls import AsyncClient
from rabbit_chx.publishing.encoder import HeaderColumn
from rabbit_chx.publishing.messages import Totals
from rabbit_chx.publishing.pipeline import AmqpPipeline
from rabbit_chx.publishing.publisher import PublisherOptions


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
        encoded = self.pipeline.encoder.one(body, routing_key, exchange, headers, properties)
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
        columns = self.pipeline.encoder.many(bodies, routing_keys, exchange, headers, properties)
        return await self._publish_many(columns, deadline, timeout)
