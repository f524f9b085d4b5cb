"""Streams for tests: declared and filled over AMQP, and deleted at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import pika

if TYPE_CHECKING:
    from collections.abc import Iterable


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


class Streams:
    """Streams and exchanges with unique names, deleted at the end of a ``with`` block."""

    def __init__(self, url: str) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(url + "?heartbeat=0"))
        self.channel = self._connection.channel()
        self.channel.confirm_delivery()
        self._prefix = f"read-{uuid4().hex[:6]}"
        self._streams: list[str] = []
        self._exchanges: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            self.channel.queue_delete(stream)
        for exchange in self._exchanges:
            self.channel.exchange_delete(exchange)
        self._connection.close()

    def stream(self, **arguments: Any) -> str:
        """Declare a stream."""
        name = f"{self._prefix}.{len(self._streams)}"
        self._streams.append(name)
        return self.declare(name, **arguments)

    def declare(self, name: str, **arguments: Any) -> str:
        """Declare a stream of this name."""
        self.channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **arguments})
        return name

    def create_again(self, name: str) -> None:
        """Delete a stream with its messages, and declare it again."""
        self.channel.queue_delete(name)
        self.declare(name)
        # This channel may still send to the stream that was deleted, and the broker confirms what is lost by that
        # (rabbit_channel, when the queue reports `eol`).
        self.channel = self._connection.channel()
        self.channel.confirm_delivery()

    def exchange(self, kind: str, keys: dict[str, str], **arguments: Any) -> str:
        """Declare an exchange, and bind streams to it with their keys."""
        name = f"{self._prefix}.x{len(self._exchanges)}"
        self._exchanges.append(name)
        self.channel.exchange_declare(name, kind, durable=True, arguments=arguments)
        for stream, key in keys.items():
            self.channel.queue_bind(stream, name, key)
        return name

    def super_stream(self, count: int) -> tuple[str, list[str]]:
        """Declare a super stream over AMQP: the stream protocol can only from RabbitMQ 3.13 on."""
        name = self.exchange("direct", {}, **{"x-super-stream": True})
        partitions = [self.stream() for _ in range(count)]
        for number, partition in enumerate(partitions):
            order = {"x-stream-partition-order": number}
            self.channel.queue_bind(partition, name, str(number), arguments=order)
        return name, partitions

    def fill(
        self, stream: str, bodies: Iterable[bytes], *, exchange: str = "", key: str | None = None, **more: Any
    ) -> None:
        """Publish messages, each with a confirm."""
        properties = pika.BasicProperties(**more)
        for body in bodies:
            self.channel.basic_publish(exchange, stream if key is None else key, body, properties)
