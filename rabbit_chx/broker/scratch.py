"""A scratch exchange with its own queues on a real broker, to compare routing with the mirror.

The queues are exclusive and the exchange is auto-deleted, so the broker removes them when the connection closes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.broker.permissions import Beginning, Needs, Resources
from rabbit_chx.broker.reasons import why_refused
from rabbit_chx.errors import BrokerUnavailable, Unroutable
from rabbit_chx.mirror.releases import Release
from rabbit_chx.mirror.ring import Ring

if TYPE_CHECKING:
    import pika


_PATIENCE: Final = 30.0
_NAMES: Final = Beginning("rabbit-chx.scratch.")
_EXCHANGE: Final[Resources] = {("exchange", _NAMES)}
_QUEUE: Final[Resources] = {("queue", _NAMES)}
_WHAT: Final = "a scratch exchange"
_ALL: Final = Needs(_EXCHANGE | _QUEUE, _EXCHANGE | _QUEUE, _EXCHANGE | _QUEUE)


def check_known(connection: pika.BlockingConnection) -> None:
    """Raise if the broker does not support the exchange type; this needs no permission.

    The broker checks the type before the permission (``rabbit_channel:handle_method/3``, the clause of
    ``exchange.declare``), so a missing permission means that the type is known.
    """
    from pika.exceptions import AMQPError, ChannelClosedByBroker

    name = _new_name()
    try:
        channel = connection.channel()
        channel.exchange_declare(name, "x-consistent-hash", auto_delete=True)
        channel.exchange_delete(name)
        channel.close()
    except AMQPError as error:
        if not (isinstance(error, ChannelClosedByBroker) and error.reply_code == 403):
            raise BrokerUnavailable(why_refused(error, _ALL, what=_WHAT)) from None


class Scratch:
    """An ``x-consistent-hash`` exchange for the length of a connection."""

    def __init__(
        self,
        connection: pika.BlockingConnection,
        *,
        arguments: Mapping[str, str] | None = None,
        release: Release,
    ) -> None:
        self.exchange: str = _new_name()
        self.ring: Ring = Ring(release=release)
        self._connection = connection
        self._channel = connection.channel()
        self._channel.confirm_delivery()
        with self._asking(Needs(configure=_EXCHANGE)):
            self._channel.exchange_declare(
                self.exchange, "x-consistent-hash", auto_delete=True, arguments=dict(arguments or {})
            )

    def bind(self, queue: str, weight: int = 1) -> None:
        """Declare and bind a queue, in the broker and in `ring`."""
        with self._asking(Needs(configure=_QUEUE)):
            self._channel.queue_declare(self._name(queue), exclusive=True)
        with self._asking(Needs(write=_QUEUE, read=_EXCHANGE)):
            self._channel.queue_bind(self._name(queue), self.exchange, routing_key=str(weight))
        self.ring = self.ring.bind(queue, weight)

    def unbind(self, queue: str) -> None:
        """Unbind a queue, in the broker and in `ring`."""
        (binding,) = (known for known in self.ring.bindings if known.destination == queue)
        with self._asking(Needs(write=_QUEUE, read=_EXCHANGE)):
            self._channel.queue_unbind(self._name(queue), self.exchange, routing_key=binding.key)
        self.ring = self.ring.unbind(queue)

    def publish(
        self,
        messages: Iterable[tuple[str | bytes, Mapping[str, Any]]],
        advance: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Publish routing keys with properties, each confirmed and mandatory."""
        import pika
        from pika.exceptions import UnroutableError

        with self._asking(Needs(write=_EXCHANGE)):
            for number, (routing_key, properties) in enumerate(messages):
                try:
                    self._channel.basic_publish(
                        self.exchange,
                        routing_key,  # pika encodes str and lets bytes through
                        str(number).encode(),
                        pika.BasicProperties(**properties),
                        mandatory=True,
                    )
                except UnroutableError:
                    raise Unroutable(f"the broker returned the message with key {routing_key!r}") from None
                advance(1)

    def landed(self, count: int, advance: Callable[[int], object] = lambda _: None) -> list[str]:
        """The queue of each of ``count`` messages in publish order, or "", after taking them all out."""
        where: dict[int, str] = {}
        with self._asking(Needs(read=_QUEUE)):
            self._take_out(where, advance)
        return [where.get(index, "") for index in range(count)]

    def _take_out(self, where: dict[int, str], advance: Callable[[int], object]) -> None:
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

    def _name(self, queue: str) -> str:
        return f"{self.exchange}.{queue}"

    @contextmanager
    def _asking(self, at: Needs) -> Iterator[None]:
        """Run commands that need these permissions; delete the exchange if the broker refuses."""
        from pika.exceptions import AMQPError

        try:
            yield
        except AMQPError as error:
            # The broker deletes an auto-delete exchange only after a queue was unbound from it.
            with suppress(AMQPError):
                self._connection.channel().exchange_delete(self.exchange)
            raise BrokerUnavailable(why_refused(error, _ALL, at=at, what=_WHAT)) from None


def _new_name() -> str:
    return f"{_NAMES}{secrets.token_hex(4)}"
