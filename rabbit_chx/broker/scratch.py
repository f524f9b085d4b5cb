"""A scratch exchange with queues of its own on a real broker, to see where messages really go.

Queues are exclusive and the exchange is auto-deleted, so that nothing is left when the connection
closes, however it closes. Nothing of the broker's other topology is touched.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import BrokerUnavailable, Unroutable
from rabbit_chx.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pika

    from rabbit_chx.releases import Release

__all__ = ["Scratch"]

_PATIENCE: Final = 30.0


class Scratch:
    """An ``x-consistent-hash`` exchange for the length of a connection."""

    def __init__(
        self,
        connection: pika.BlockingConnection,
        *,
        arguments: Mapping[str, str] | None = None,
        release: Release,
    ) -> None:
        from pika.exceptions import ChannelClosed, ConnectionClosed

        self.exchange = f"rabbit-chx.scratch.{secrets.token_hex(4)}"
        self.ring = Ring(release=release)
        self._channel = connection.channel()
        self._channel.confirm_delivery()
        try:
            self._channel.exchange_declare(
                self.exchange, "x-consistent-hash", auto_delete=True, arguments=dict(arguments or {})
            )
        except (ConnectionClosed, ChannelClosed) as error:
            raise BrokerUnavailable(_why_refused(str(error))) from None

    def bind(self, queue: str, weight: int = 1) -> None:
        """Declare a queue and bind it; the ring follows."""
        self._channel.queue_declare(self._name(queue), exclusive=True)
        self._channel.queue_bind(self._name(queue), self.exchange, routing_key=str(weight))
        self.ring = self.ring.bind(queue, weight)

    def unbind(self, queue: str) -> None:
        """Take a queue's only binding away; the ring follows."""
        (binding,) = (known for known in self.ring.bindings if known.destination == queue)
        self._channel.queue_unbind(self._name(queue), self.exchange, routing_key=binding.key)
        self.ring = self.ring.unbind(queue)

    def publish(
        self,
        messages: Iterable[tuple[str | bytes, Mapping[str, Any]]],
        advance: Callable[[int], object] = lambda _: None,
    ) -> int:
        """Publish routing keys with properties, each confirmed and mandatory; return how many."""
        import pika
        from pika.exceptions import UnroutableError

        count = 0
        for routing_key, properties in messages:
            try:
                self._channel.basic_publish(
                    self.exchange,
                    routing_key,  # pika encodes str and lets bytes through
                    str(count).encode(),
                    pika.BasicProperties(**properties),
                    mandatory=True,
                )
            except UnroutableError:
                raise Unroutable(f"the broker returned the message with key {routing_key!r}") from None
            count += 1
            advance(1)
        return count

    def landed(self, count: int, advance: Callable[[int], object] = lambda _: None) -> list[str]:
        """The queue of each of ``count`` messages in publish order, after taking them all out."""
        where: dict[int, str] = {}
        for queue in map(str, self.ring.destinations):
            name = self._name(queue)
            waiting = self._channel.queue_declare(name, passive=True).method.message_count
            if not waiting:
                continue
            for method, _, body in self._channel.consume(name, auto_ack=True, inactivity_timeout=_PATIENCE):
                if method is None:
                    raise BrokerUnavailable(
                        f"the broker delivers nothing from {queue!r} for {_PATIENCE:.0f} seconds"
                    )
                where[int(body or b"0")] = queue
                advance(1)
                waiting -= 1
                if not waiting:
                    break
            self._channel.cancel()
        return [where[index] for index in range(count)]

    def _name(self, queue: str) -> str:
        return f"{self.exchange}.{queue}"


def _why_refused(text: str) -> str:
    if "COMMAND_INVALID" in text or "exchange type" in text:
        return (
            "the broker does not know the exchange type x-consistent-hash: "
            "`rabbitmq-plugins enable rabbitmq_consistent_hash_exchange` on each node"
        )
    return f"the broker refuses a scratch exchange: {text}"
