"""Three lines in a consumer that compare the mirror with what really arrives.

    watch = DeliveryMonitor(exchange, name="orders")           # once
    ...
    watch.observe(method, "q1", properties)             # pika, in the callback
    watch.observe(message, "q1")                        # aio-pika

It opens no socket and keeps no body: it collects the pairs that :func:`rabbit_chx.infer` works out a ring
from, and counts the messages that landed elsewhere than the mirror says.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from rabbit_chx.errors import RabbitChxError, RingUnknown
from rabbit_chx.hashing import HashHeader

if TYPE_CHECKING:
    from rabbit_chx.exchange import ConsistentHashExchange
    from rabbit_chx.ring import Destination

__all__ = ["DeliveryMonitor"]


class DeliveryMonitor:
    """Compares deliveries with what an exchange is thought to do.

    ``name`` is the exchange that publishers publish to: messages of another one are passed over, as are
    dead-lettered ones, whose queue says nothing about the ring. At most ``keep`` pairs are kept, the newest.
    """

    def __init__(self, exchange: ConsistentHashExchange, *, name: str, keep: int = 10_000) -> None:
        self.exchange = exchange
        self.name = name
        self.pairs: deque[tuple[Any, Destination]] = deque(maxlen=keep)
        """What was hashed and the queue it was seen at: what ``infer`` takes."""
        self.expected: int = 0
        """Messages that landed where the mirror says."""
        self.drifted: int = 0
        """Messages that landed elsewhere: the ring is not the one that is thought."""
        self.unjudged: int = 0
        """Messages that the mirror has no answer for: an unknown ring, an ambiguous header."""
        self.passed_over: int = 0
        """Messages that did not come through this exchange, or not straight from it."""

    def observe(self, delivery: Any, queue: Destination, properties: Any = None) -> bool | None:
        """Take in one delivery; False if the mirror expected it elsewhere, None if it cannot tell.

        ``delivery`` is what the client hands over: pika's method (with its properties), or aio-pika's
        message, which is both. For a queue behind an exchange that the ring knows, ``queue`` is that
        exchange: ``ToExchange(name)``.
        """
        from_aio_pika = properties is None
        properties = delivery if from_aio_pika else properties
        headers = properties.headers or {}
        if delivery.exchange != self.name or "x-death" in headers:
            self.passed_over += 1
            return None
        on = self.exchange.hash_on
        if isinstance(on, HashHeader):
            value, key = headers, headers.get(on.header)
        else:
            value = key = delivery.routing_key if on.part == "routing_key" else getattr(properties, on.part)
        if not _is_as_sent(key, of_header=value is headers, from_aio_pika=from_aio_pika):
            self.unjudged += 1
            return None
        try:
            on.term(value, self.exchange.release, None)  # what is no evidence is not collected either
            expected = self.exchange.explain(value).destination
        except RingUnknown:  # just what the pairs are collected for
            if key is not None:
                self.pairs.append((key, queue))
            self.unjudged += 1
            return None
        except RabbitChxError:
            self.unjudged += 1
            return None
        if key is not None:
            self.pairs.append((key, queue))
        if expected == queue:
            self.expected += 1
        else:
            self.drifted += 1
        return expected == queue


def _is_as_sent(value: object, *, of_header: bool, from_aio_pika: bool) -> bool:
    """Whether the value is what the publisher sent: the consumer's library may have decoded it with a loss.

    pika cuts floats off to integers (of its own class), aio-pika takes timestamps after 2106 for
    milliseconds and an empty property for a missing one, and both are inventive with decimals.
    """
    if of_header:
        return value is None or isinstance(value, (str, bytes, bytearray, bool)) or type(value) is int
    if not from_aio_pika:
        return True
    return value is not None and not getattr(value, "microsecond", 0)
