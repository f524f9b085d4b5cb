"""A connection of pika that ends when the broker does not answer, which pika itself waits for, and whose consumers get many messages at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pika import BasicProperties, BlockingConnection, ConnectionParameters, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ConnectionWrongStateError, StreamLostError

from rabbit_chx.broker.deliveries import RawDelivery
from rabbit_chx.broker.receiving import Deliver, ReceivingConnection


@dataclass(frozen=True, slots=True)
class _Run:
    """Deliveries among the events of a channel, which pika dispatches in their order."""

    deliver: Deliver
    deliveries: list[RawDelivery]

    def dispatch(self) -> None:
        self.deliver(self.deliveries)


class TimedConnection(BlockingConnection):  # type: ignore[misc]
    """Drops itself when a command gets no answer in time, even if heartbeats arrive.

    Waiting for messages (``process_data_events``, ``start_consuming``, ``consume``) may take longer.
    """

    patience: float = 30.0
    """Seconds for the answer to a command."""

    _for_events = False

    def __init__(self, parameters: ConnectionParameters) -> None:
        super().__init__(parameters, _impl_class=ReceivingConnection)

    def consume(
        self,
        channel: BlockingChannel,
        queue: str,
        deliver: Deliver,
        *,
        consumer_tag: str,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Consume a queue; `process_data_events` calls ``deliver`` with its deliveries in their order, many at once."""
        add = getattr(channel, "_add_pending_event", None)
        if add is not None:
            impl: Any = channel._impl  # noqa: SLF001
            self._impl.receive(impl, consumer_tag, lambda run: add(_Run(deliver, run)))
        channel.basic_consume(
            queue,
            lambda _, *decoded: deliver([raw(*decoded)]),
            consumer_tag=consumer_tag,
            arguments=arguments,
        )

    def __exit__(self, *error: object) -> None:
        """Close the connection; a broker that does not answer this either does no harm."""
        with suppress(AMQPError):
            super().__exit__(*error)

    def process_data_events(self, time_limit: float | None = 0) -> None:
        """Wait for events as `BlockingConnection` does, which raises a ValueError if the connection has ended before."""
        if not self.is_open:
            raise ConnectionWrongStateError("the connection has ended")
        self._for_events = True
        try:
            super().process_data_events(time_limit)
        finally:
            self._for_events = False

    def _flush_output(self, *waiters: Callable[[], bool]) -> None:
        if self._for_events:
            super()._flush_output(*waiters)
            return
        impl: Any = self._impl
        error = StreamLostError(f"the broker did not answer within {self.patience:g} seconds")
        timer = impl._adapter_call_later(self.patience, lambda: impl._terminate_stream(error))  # noqa: SLF001
        try:
            super()._flush_output(*waiters)
        finally:
            impl._adapter_remove_timeout(timer)  # noqa: SLF001


def raw(
    method: spec.Basic.Deliver | spec.Basic.GetOk, properties: BasicProperties, body: bytes
) -> RawDelivery:
    """Return a delivery that pika has put together."""
    received = getattr(properties, "encoded", None)
    return RawDelivery(
        method.delivery_tag,
        method.redelivered,
        method.exchange,
        method.routing_key,
        b"".join(properties.encode()) if received is None else received,
        body,
    )
