"""Clients that write values to a stream in order, and return when the broker has confirmed all."""

from __future__ import annotations

import asyncio
from functools import partial
from urllib.parse import unquote, urlsplit

import pika
from rstream import AMQPMessage, CompressionType, Consumer, ConsumerOffsetSpecification, OffsetType, Producer

from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import StreamPublisher, connect
from rabbit_chx.streams.ends import bounds
from tests.patience import PATIENCE, wait_until

NAME = "exactly-what-was-written"
"""An ASCII name, because rstream cannot open streams with other names."""
LOT = 100
"""Number of messages of a sub-entry batch."""
LOTS = 50
"""Maximum number of unconfirmed lots: rstream sends all waiting messages in one frame, without checking its size."""


def over_amqp(broker, stream: str, values: list[bytes]) -> None:
    with Publisher(broker.url) as publisher:
        publisher.publish_many(values, stream)


def with_pika(broker, stream: str, values: list[bytes]) -> None:
    """Publish with pika, without confirms, and wait until the end of the stream shows that all are stored."""
    with connect(broker.stream_url) as connection:
        end = bounds(connection, stream).end + len(values)
        with pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0")) as publishing:
            channel = publishing.channel()
            for value in values:
                channel.basic_publish("", stream, value)
        wait_until(lambda: bounds(connection, stream).end >= end, "the messages of pika are stored")


def publish_encoded(publisher: StreamPublisher, messages: list[bytes]) -> None:
    """Publish messages that are encoded as AMQP 1.0, or should be."""
    with publisher.bulk() as bulk:
        bulk._add_encoded(messages)


def over_stream_protocol(broker, stream: str, values: list[bytes]) -> None:
    with StreamPublisher(broker.stream_url, stream) as publisher:
        publisher.publish_many(values)


def with_rstream(
    broker, stream: str, values: list[bytes], compression: CompressionType | None = None
) -> None:
    """Publish with rstream: message by message, or in sub-entry batches."""
    asyncio.run(asyncio.wait_for(_publish(broker, stream, values, compression), 2 * PATIENCE))


async def _publish(broker, stream, values, compression) -> None:
    messages = [AMQPMessage(body=value) for value in values]
    lots = [messages[start : start + LOT] for start in range(0, len(messages), LOT)]
    async with Producer(**place(broker), default_batch_publishing_delay=0.05) as producer:
        for start in range(0, len(lots), LOTS):
            await _confirmed(producer, stream, lots[start : start + LOTS], compression)


async def _confirmed(producer, stream, lots, compression) -> None:
    """Publish several lots, and wait until each message or each sub-entry batch is confirmed."""
    waiting = sum(map(len, lots)) if compression is None else len(lots)
    done = asyncio.Event()

    def confirm(status) -> None:
        nonlocal waiting
        assert status.is_confirmed, status
        waiting -= 1
        if not waiting:
            done.set()

    for lot in lots:
        if compression is None:
            await producer.send_batch(stream, lot, on_publish_confirm=confirm)
        else:
            await producer.send_sub_entry(stream, lot, compression, on_publish_confirm=confirm)
    await done.wait()


WRITERS = {
    "our publisher over AMQP": over_amqp,
    "our publisher over the stream protocol": over_stream_protocol,
    "rstream": with_rstream,
    "rstream, sub-entry batches": partial(with_rstream, compression=CompressionType.No),
    "rstream, sub-entry batches with gzip": partial(with_rstream, compression=CompressionType.Gzip),
}


def read_with_rstream(broker, stream: str, count: int) -> list[tuple[int, bytes]]:
    """Read the offset and the encoded message of each record with rstream."""
    return asyncio.run(asyncio.wait_for(_read(broker, stream, count), 2 * PATIENCE))


async def _read(broker, stream, count) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    done = asyncio.Event()

    def keep(message, context) -> None:
        found.append((context.offset, bytes(message)))
        if len(found) == count:
            done.set()

    async with Consumer(**place(broker)) as consumer:
        first = ConsumerOffsetSpecification(OffsetType.FIRST, None)
        await consumer.subscribe(stream, keep, offset_specification=first)
        await done.wait()
    return found


def place(broker) -> dict:
    """The arguments of clients of rstream."""
    parts = urlsplit(broker.stream_url)
    assert parts.hostname
    assert parts.port
    login = {"username": unquote(parts.username or ""), "password": unquote(parts.password or "")}
    # Load balancer mode, because the advertised host may not be reachable.
    return {"host": parts.hostname, "port": parts.port, "load_balancer_mode": True, **login}
