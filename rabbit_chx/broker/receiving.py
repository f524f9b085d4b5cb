"""What a connection of pika receives: headers without loss, no more than a broker may send, and deliveries at the socket's speed.

pika collects frames and bodies of any announced size, loses some values of headers, and decodes each frame into objects. Here
complete deliveries at the front of received data are read in one pass; everything else is pika's, also a delivery that has
not arrived as a whole. This uses names of pika that are not public (`PRIVATE_NAMES`); if one is missing, pika delivers every message, which is slower. And a connection ends when the broker does not answer, where pika
would wait without a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from pika import BasicProperties, BlockingConnection, ConnectionParameters, SelectConnection, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.channel import Channel
from pika.exceptions import AMQPError, ConnectionWrongStateError, InvalidFrameError, StreamLostError
from pika.frame import Header, Method

from rabbit_chx.broker.deliveries import BEFORE_PROPERTIES, RawDelivery, consumer, read_deliveries
from rabbit_chx.broker.properties import content_header

PRIVATE_NAMES: Final = (
    *(
        "_on_data_available",
        "_read_frame",
        "_process_frame",
        "_trim_frame_buffer",
        "_frame_buffer",
        "_channels",
    ),
    *("_adapter_emit_data", "_transport", "_error"),
    *("bytes_received", "frames_received", "bytes_sent", "frames_sent"),
)
"""What the fast paths for publishing and for deliveries use of pika's connection beyond its documentation.

A test checks the installed pika for these names. Deliveries also need `_add_pending_event` of its `BlockingChannel`, and arrive in
larger pieces if its transport has `_MAX_RECV_BYTES`.
"""


def has_private_names(names: Container[str]) -> bool:
    """Whether these names of pika's connection include all that the fast paths need."""
    return all(name in names for name in PRIVATE_NAMES)


def can_be_fast(connection: SelectConnection) -> bool:
    """Whether the installed pika has all names; of its methods only its own count, which our connections override."""
    return has_private_names({*vars(connection), *dir(SelectConnection)})


_SIZE: Final = slice(3, 7)
"""Where the size of a frame is."""
_OVERHEAD: Final = 8
_MOST_BODY: Final = 512 << 20
"""The largest body that any RabbitMQ accepts from a publisher."""
_AT_ONCE: Final = 1 << 17
"""Bytes to receive at a time; pika's 4,096 would cut one in twenty small deliveries in two."""

Deliver = Callable[[list[RawDelivery]], object]


class ReceivingConnection(SelectConnection):  # type: ignore[misc] # pika has no types
    """Decodes content headers with `Properties`, refuses what no broker sends, and reads the deliveries of `receive`."""

    _frame_buffer: bytes

    def __init__(self, *args: Any, **options: Any) -> None:
        self._receivers: dict[bytes, Deliver] = {}
        super().__init__(*args, **options)
        self._fast = can_be_fast(self)

    def receive(self, channel: Channel, consumer_tag: str, deliver: Deliver) -> None:
        """Have ``deliver`` called with the deliveries to a consumer, except for those that pika has to put together."""
        if not self._fast:
            return
        self._transport._MAX_RECV_BYTES = _AT_ONCE
        who = consumer(channel.channel_number, consumer_tag)
        self._receivers[who] = deliver

        def forget(frame: Any) -> None:
            if frame.method.consumer_tag == consumer_tag:
                self._receivers.pop(who, None)

        channel.add_on_cancel_callback(forget)
        channel.add_on_close_callback(lambda *_: self._receivers.pop(who, None))

    def _on_data_available(self, data_in: bytes) -> None:
        if self._receivers:
            self._read(data_in)
        else:
            super()._on_data_available(data_in)
        # The rest of the buffer is the start of a frame. During the handshake, the server may not speak AMQP at all.
        size = int.from_bytes(self._frame_buffer[_SIZE], "big")
        if self.is_open and size > self.params.frame_max - _OVERHEAD:
            self._frame_buffer = b""
            raise InvalidFrameError(f"a frame of {size} bytes, expected at most {self.params.frame_max}")

    def _read(self, data_in: bytes) -> None:
        """Do what pika does, which takes frame after frame, but take the deliveries first."""
        self._frame_buffer += data_in
        while self._frame_buffer:
            runs, size, frames = read_deliveries(self._frame_buffer, self._receivers)
            self._trim_frame_buffer(size)
            self.frames_received += frames
            for who, run in runs:
                self._receivers[who](run)
            size, frame = self._read_frame()
            if not frame:
                return
            self._trim_frame_buffer(size)
            self._process_frame(frame)

    def _read_frame(self) -> tuple[int, Any]:
        found = content_header(self._frame_buffer) or super()._read_frame()
        size, frame = found
        if isinstance(frame, Header):
            if frame.body_size > _MOST_BODY:
                text = f"a message of {frame.body_size} bytes, expected at most {_MOST_BODY}"
                raise InvalidFrameError(text)
            frame.properties.encoded = self._frame_buffer[BEFORE_PROPERTIES : size - 1]
        return found

    def _deliver_frame_to_channel(self, value: Any) -> None:
        """Refuse what pika logs and ignores, so that a peer cannot fill the log; not the end of a channel, which is harmless."""
        late = isinstance(value, Method) and isinstance(value.method, spec.Channel.CloseOk)
        if value.channel_number not in self._channels and not late:
            raise InvalidFrameError(f"a frame for channel {value.channel_number}, which is not open")
        super()._deliver_frame_to_channel(value)


class TimedConnection(BlockingConnection):  # type: ignore[misc]
    """Drops itself when a command gets no answer in time, even if heartbeats arrive.

    Waiting for messages (``process_data_events``, ``start_consuming``, ``consume``) may take longer.
    """

    patience: float = 30.0
    """Seconds for the answer to a command."""

    _for_events = False

    def __init__(self, parameters: ConnectionParameters) -> None:
        super().__init__(parameters, _impl_class=ReceivingConnection)

    def __exit__(self, *error: object) -> None:
        """Close the connection; a broker that does not answer this either does no harm."""
        with suppress(AMQPError, OSError):
            try:
                super().__exit__(*error)
            except AssertionError:
                # pika cannot cancel a consumer that an interrupt left half made, and has forgotten it now.
                self.close()

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
        timer = impl._adapter_call_later(self.patience, lambda: impl._terminate_stream(error))
        try:
            super()._flush_output(*waiters)
        finally:
            impl._adapter_remove_timeout(timer)


def consume(
    channel: BlockingChannel,
    queue: str,
    deliver: Deliver,
    *,
    consumer_tag: str,
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Consume a queue; ``process_data_events`` calls ``deliver`` with its deliveries in their order, many at once."""
    connection: Any = channel.connection._impl
    add = getattr(channel, "_add_pending_event", None)
    if add is not None and isinstance(connection, ReceivingConnection):
        impl = channel._impl
        # The events of a channel, which pika dispatches in their order.
        connection.receive(
            impl, consumer_tag, lambda run: add(SimpleNamespace(dispatch=partial(deliver, run)))
        )
    channel.basic_consume(
        queue, lambda _, *decoded: deliver([raw(*decoded)]), consumer_tag=consumer_tag, arguments=arguments
    )


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
