"""Compare the deliveries of a consumer with the mirror, in three lines.

    monitor = DeliveryMonitor(exchange, name="orders")     # once
    ...
    monitor.observe(method, "q1", properties)              # pika, in the callback
    monitor.observe(message, "q1")                         # aio-pika

It counts the messages that landed on another queue than the mirror predicts, and collects the pairs from which
:func:`rabbit_chx.infer` works out a ring. It keeps no message bodies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from rabbit_chx.errors import RabbitChxError, RingUnknown
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.hashing import HashHeader, HashOn
from rabbit_chx.mirror.ring import Destination


class DeliveryMonitor:
    """Compares deliveries with the routes that an exchange predicts.

    ``name`` is the exchange that publishers publish to. Messages of other exchanges and dead-lettered messages are
    skipped, because their queue does not depend on the ring. The newest ``keep`` pairs are kept.
    """

    def __init__(self, exchange: ConsistentHashExchange, *, name: str, keep: int = 10_000) -> None:
        self.exchange = exchange
        self.name = name
        self.pairs: deque[tuple[Any, Destination]] = deque(maxlen=keep)
        """Hashed values with the queues where they were seen: the input of ``infer``.

        While the ring is unknown, an AMQP 1.0 id that is a number counts as its text, which contradicts other pairs.
        """
        self.expected: int = 0
        """Messages that landed on the predicted queue."""
        self.drifted: int = 0
        """Messages that landed on another queue: the broker's ring differs from the mirror's."""
        self.unpredicted: int = 0
        """Messages that the mirror cannot predict: the ring is unknown, or the consumer cannot tell what the broker hashed."""
        self.skipped: int = 0
        """Messages that did not come directly from this exchange."""

    def observe(self, delivery: Any, queue: Destination, properties: Any = None) -> bool | None:
        """Record one delivery; True if it was predicted, False if it was not, None if there is no prediction.

        ``delivery`` is pika's method (pass its properties too) or aio-pika's message. For a queue behind an
        exchange in the ring, ``queue`` is that exchange: ``ToExchange(name)``.
        """
        from_aio_pika = properties is None
        properties = delivery if from_aio_pika else properties
        headers = properties.headers or {}
        if delivery.exchange != self.name or "x-death" in headers:
            self.skipped += 1
            return None
        on = self.exchange._hash_on
        of_header = isinstance(on, HashHeader)
        key = _hashed(on, delivery, properties)
        value = headers if of_header else key
        if not _is_as_sent(key, of_header=of_header, from_aio_pika=from_aio_pika) or (
            not of_header and _may_be_of_amqp10(on.part, key, headers)
        ):
            self.unpredicted += 1
            return None
        try:
            on.term(value, self.exchange.release, None)  # an ambiguous value is not collected
            expected = self.exchange._explain(value).destination
        except RabbitChxError as error:
            if isinstance(error, RingUnknown) and key is not None:  # the pairs will reveal the ring
                self.pairs.append((key, queue))
            self.unpredicted += 1
            return None
        if expected != queue == self._of_number(on.part, key):
            self.unpredicted += 1
            return None
        if key is not None:
            self.pairs.append((key, queue))
        if expected == queue:
            self.expected += 1
        else:
            self.drifted += 1
        return expected == queue

    def _of_number(self, part: str, value: object) -> Destination | None:
        """The queue of an id that AMQP 1.0 may have sent as a number: the broker hashes the number, and consumers see its text."""
        if part not in _IDS or not isinstance(value, str) or not self.exchange.release.amqp10_in_core:
            return None
        if not value.isdecimal() or value != str(int(value)) or int(value) >= 2**64:
            return None
        return self.exchange._explain(int(value), client="amqp10").destination


def _hashed(on: HashOn, delivery: Any, properties: Any) -> Any:
    """The value of the part that the exchange hashes, as the consumer sees it."""
    if isinstance(on, HashHeader):
        return (properties.headers or {}).get(on.header)
    return delivery.routing_key if on.part == "routing_key" else getattr(properties, on.part)


_IDS: Final = ("message_id", "correlation_id")


def _may_be_of_amqp10(part: str, value: object, headers: Mapping[str, object]) -> bool:
    """Whether an id may have been the UUID or the bytes of an AMQP 1.0 publisher, which the broker hashes and consumers never see."""
    if part not in _IDS:
        return False
    if value is None:
        return f"x-{part.replace('_', '-')}" in headers
    return isinstance(value, str) and value.startswith("urn:uuid:")


def _is_as_sent(value: object, *, of_header: bool, from_aio_pika: bool) -> bool:
    """Whether the consumer's library decoded the value without loss.

    pika truncates floats to integers of its own class. aio-pika reads timestamps after 2106 as milliseconds and
    an empty property as a missing one. Neither decodes every decimal correctly.
    """
    if of_header:
        return value is None or isinstance(value, (str, bytes, bytearray, bool)) or type(value) is int
    if not from_aio_pika:
        return True
    return value is not None and not getattr(value, "microsecond", 0)
