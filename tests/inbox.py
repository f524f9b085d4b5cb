"""What a write has brought to a broker: everything that lies in a queue, and a queue of its own."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import uuid4

import pika

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pika.adapters.blocking_connection import BlockingChannel


class Received(NamedTuple):
    """A message as a consumer sees it."""

    exchange: str
    key: str
    properties: pika.BasicProperties
    body: bytes


def emptied(channel: BlockingChannel, queue: str, timeout: float = 60.0) -> list[Received]:
    """Everything in a queue; all of it was confirmed, so the broker's count is exact."""
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
    """A fanout exchange and its one queue; both go with the connection that made them."""

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

    def take(self, count: int, timeout: float = 30.0) -> list[Received]:
        """So many messages, and not one more in the queue behind them."""
        found: list[Received] = []
        for one in self._arriving(timeout):
            if one is not None:
                found.append(one)
            if len(found) >= count:
                break
        self._channel.cancel()
        assert len(found) == count, f"{len(found)} messages of {count} within {timeout} seconds"
        assert len(self) == 0, f"{len(self)} messages more than {count}"
        return found

    def take_all(self) -> list[Received]:
        """Every message that lies in the queue."""
        return self.take(len(self)) if len(self) else []

    def bodies(self) -> Counter[bytes]:
        """How often each body lies in the queue, which is empty then."""
        return Counter(one.body for one in self.take_all())

    def _arriving(self, timeout: float) -> Iterator[Received | None]:
        deadline = time.monotonic() + timeout
        consumed: Any = self._channel.consume(self.queue, auto_ack=True, inactivity_timeout=0.2)
        for method, properties, body in consumed:
            yield method and Received(method.exchange, method.routing_key, properties, body)
            if time.monotonic() > deadline:
                return
