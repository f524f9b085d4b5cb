"""Ways to read a whole stream. Each returns the number of messages that it read."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pika
import rstream
from ways.consumers import Stopwatch, consume_bare

from rabbit_chx.streams import StreamBatch, StreamGroup, StreamMessage, StreamReader, connect
from rabbit_chx.streams.protocol.requests import OffsetSpec

COLUMNS = ["body", "routing_key"]
_PREFETCH = 5_000
_CREDIT = 20
_SECONDS = 30.0
"""A way fails after this time without a message."""


@dataclass(frozen=True)
class Source:
    """A stream of a broker, and its number of messages."""

    amqp_url: str
    stream_url: str
    stream: str
    messages: int


def ours(source: Source) -> int:
    """Read bodies and routing keys as Arrow columns."""
    with StreamReader(source.stream_url, source.stream) as reader:
        bounds = reader.bounds()
        return sum(batch.num_rows for batch in reader.read(bounds.first, bounds.end, columns=COLUMNS))


def group_of_batches(source: Source) -> int:
    """Read the same columns as the only member of a new group."""
    group = StreamGroup(source.stream_url, stream=source.stream, name=f"benchmark-{secrets.token_hex(4)}")
    seen = 0

    def handle(batch: StreamBatch) -> None:
        nonlocal seen
        seen += batch.arrow(COLUMNS).num_rows
        if seen >= source.messages:
            group.stop()

    group.run_batches(handle)
    return seen


def group_of_messages(source: Source) -> int:
    """Call a function for each message, as the only member of a new group."""
    group = StreamGroup(source.stream_url, stream=source.stream, name=f"benchmark-{secrets.token_hex(4)}")
    seen = 0

    def handle(_message: StreamMessage) -> None:
        nonlocal seen
        seen += 1
        if seen >= source.messages:
            group.stop()

    group.run(handle)
    return seen


def chunks(source: Source) -> int:
    """The limit: receive the chunks, and decode only the number of messages in each header."""
    seen = 0
    with connect(source.stream_url) as connection:
        subscription = connection._subscribe(source.stream, OffsetSpec.first(), credit=_CREDIT)
        for _, chunk in connection._chunks(_SECONDS):
            seen += int.from_bytes(chunk[4:8], "big")
            if seen >= source.messages:
                return seen
            connection._credit(subscription, 1)
    return seen


def with_pika(source: Source) -> int:
    """Consume as in pika's documentation, and acknowledge every hundred messages."""
    with pika.BlockingConnection(pika.URLParameters(source.amqp_url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=_PREFETCH)
        found = channel.consume(
            source.stream, arguments={"x-stream-offset": "first"}, inactivity_timeout=_SECONDS
        )
        for seen, (method, _, _) in enumerate(found, 1):
            if method is None:
                return seen - 1
            if seen % 100 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if seen == source.messages:
                break
        channel.basic_ack(0, multiple=True)
    return source.messages


def with_rstream(source: Source) -> int:
    """Consume with rstream, which decodes each message and calls a function."""
    return asyncio.run(_with_rstream(source))


def rstream_address(url: str) -> dict[str, Any]:
    """The arguments of a client of rstream for a broker."""
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port,
        "username": unquote(parts.username or "guest"),
        "password": unquote(parts.password or "guest"),
        "vhost": unquote(parts.path[1:]) or "/",
        "load_balancer_mode": True,
    }


async def _with_rstream(source: Source) -> int:
    consumer = rstream.Consumer(**rstream_address(source.stream_url))
    seen = 0

    def on_message(_message: Any, _context: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == source.messages:
            done.set()

    done = asyncio.Event()
    await consumer.start()
    try:
        first = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)
        await consumer.subscribe(
            source.stream,
            on_message,
            decoder=rstream.amqp_decoder,
            offset_specification=first,
            initial_credit=_CREDIT,
        )
        await asyncio.wait_for(done.wait(), 600)
    finally:
        await consumer.close()
    return seen


def bare_socket(source: Source) -> int:
    """Consume over AMQP 0-9-1 with one blocking socket: count the deliveries, without decoding messages."""
    first = b"\x0fx-stream-offsetS\0\0\0\5first"
    handler = Stopwatch(source.messages)
    consume_bare(source.amqp_url, source.stream, _PREFETCH, handler, batch=_PREFETCH // 4, arguments=first)
    return source.messages


OURS, LIMIT, PIKA, RSTREAM = "this reader", "chunks, not decoded", "pika", "rstream"
BATCHES, MESSAGES = "group of one, run_batches", "group of one, run"
SLOW = {PIKA, RSTREAM}
WAYS: dict[str, Callable[[Source], int]] = {
    OURS: ours,
    BATCHES: group_of_batches,
    MESSAGES: group_of_messages,
    LIMIT: chunks,
    "AMQP 0-9-1, bare socket": bare_socket,
    PIKA: with_pika,
    RSTREAM: with_rstream,
}
