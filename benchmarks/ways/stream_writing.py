"""Three ways to write messages to a stream. Each returns the number of confirmed messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import rstream

from rabbit_chx.streams import StreamPublisher

_BATCH = 1_000
_SECONDS = 120.0


@dataclass(frozen=True)
class Writing:
    """A stream, and the messages to write to it: bodies, and the same bodies as encoded messages."""

    stream_url: str
    stream: str
    bodies: list[bytes]
    messages: list[bytes]


def publisher(writing: Writing) -> int:
    """Send encoded messages under a name, so that the broker drops messages that it already has."""
    with StreamPublisher(writing.stream_url, writing.stream, name="benchmark") as publisher:
        publisher.publish_encoded(writing.messages)
        return publisher.totals.confirmed


def publisher_of_bodies(writing: Writing) -> int:
    """Send bodies, which the publisher encodes, under a name."""
    with StreamPublisher(writing.stream_url, writing.stream, name="benchmark") as publisher:
        publisher.publish_many(writing.bodies)
        return publisher.totals.confirmed


def with_rstream(writing: Writing) -> int:
    """Send encoded messages in batches with rstream, and wait for all confirms."""
    return asyncio.run(_with_rstream(writing))


async def _with_rstream(writing: Writing) -> int:
    parts = urlsplit(writing.stream_url)
    producer = rstream.Producer(
        host=parts.hostname or "",
        port=parts.port or 5552,
        username=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        vhost=unquote(parts.path[1:]) or "/",
        load_balancer_mode=True,
    )
    done, confirmed = asyncio.Event(), 0

    def on_confirm(status: rstream.ConfirmationStatus) -> None:
        nonlocal confirmed
        confirmed += status.is_confirmed
        if confirmed == len(writing.messages):
            done.set()

    await producer.start()
    try:
        for start in range(0, len(writing.messages), _BATCH):
            batch = writing.messages[start : start + _BATCH]
            await producer.send_batch(writing.stream, batch, "benchmark", on_publish_confirm=on_confirm)
        await asyncio.wait_for(done.wait(), _SECONDS)
    finally:
        await producer.close()
    return confirmed


PUBLISHER, RSTREAM = "this publisher", "rstream, send_batch"
WRITERS: dict[str, Callable[[Writing], int]] = {
    PUBLISHER: publisher,
    "this publisher, from bodies": publisher_of_bodies,
    RSTREAM: with_rstream,
}
