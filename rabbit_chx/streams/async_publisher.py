"""The publisher to streams for asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from rabbit_chx.base.timeouts import deadline_of
from rabbit_chx.messages.message_fields import Headers, Properties, PropertyColumns
from rabbit_chx.publishing.async_calls import AsyncClient
from rabbit_chx.publishing.encoder import HeaderColumn
from rabbit_chx.publishing.messages import Totals
from rabbit_chx.streams.publisher import StreamPublisherOptions
from rabbit_chx.streams.publishing.pipeline import StreamPipeline


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
        encoded = self.pipeline.encoder.one(body, routing_key, headers, publishing_id, properties)
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
        columns = self.pipeline.encoder.many(bodies, routing_keys, headers, ids, properties)
        return await self._publish_many(columns, deadline, timeout)
