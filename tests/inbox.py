"""The messages that a write has sent: everything in a queue, and a queue for tests."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import uuid4

import pika

from tests.patience import PATIENCE

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel


class Received(NamedTuple):
    """A message as a consumer sees it."""

    exchange: str
    key: str
    properties: pika.BasicProperties
    body: bytes


def emptied(channel: BlockingChannel, queue: str, timeout: float = PATIENCE) -> list[Received]:
    """Take everything in a queue; all of it was confirmed, so the broker's count is exact."""
    count = channel.queue_declare(queue, passive=True).method.message_count
    found: list[Received] = []
    if count:
        consumed: Any = channel.consume(queue, auto_ack=True, inactivity_timeout=timeout)
        for method, properties, body in consumed:
            assert method is not None, f"only {len(found)} of {count} messages arrived from {queue!r}"
            found.append(Received(method.exchange, method.routing_key, properties, body))
            if len(found) == count:
                break
        channel.cancel()
    return found


@dataclass
class Inbox:
    """An exchange and its one queue, which exist inside the `with` block."""

    url: str
    kind: str = "fanout"
    binding: str = ""

    def __enter__(self) -> Self:
        self.exchange = self.queue = f"inbox-{uuid4().hex[:8]}"
        self._connection = pika.BlockingConnection(pika.URLParameters(self.url + "?heartbeat=0"))
        self._channel = self._connection.channel()
        self._channel.exchange_declare(self.exchange, self.kind, durable=True)
        self._channel.queue_declare(self.queue, durable=True)
        self._channel.queue_bind(self.queue, self.exchange, self.binding)
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.queue_delete(self.queue)
        self._channel.exchange_delete(self.exchange)
        self._connection.close()

    def __len__(self) -> int:
        return int(self._channel.queue_declare(self.queue, passive=True).method.message_count)

    def take(self, count: int, timeout: float = PATIENCE) -> list[Received]:
        """Wait for that many messages, and no more, and take them."""
        deadline = time.monotonic() + timeout
        while len(self) < count and time.monotonic() < deadline:
            self._connection.sleep(0.02)
        found = self.take_all()
        assert len(found) == count, f"{len(found)} messages of {count} within {timeout} seconds"
        return found

    def take_all(self) -> list[Received]:
        """Take every message in the queue."""
        return emptied(self._channel, self.queue)

    def bodies(self) -> Counter[bytes]:
        """Take every message, and count each body."""
        return Counter(one.body for one in self.take_all())
