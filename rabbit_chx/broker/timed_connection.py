"""A connection of pika that ends when the broker does not answer or announces too much, and keeps all headers.

pika itself waits for ever, collects frames and bodies of any announced size, and loses some values of headers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from pika import BlockingConnection, ConnectionParameters, SelectConnection
from pika.exceptions import AMQPError, ConnectionWrongStateError, InvalidFrameError, StreamLostError
from pika.frame import Header, Method
from pika.spec import Channel

from rabbit_chx.broker.properties import content_header

_SIZE: Final = slice(3, 7)
"""Where the size of a frame is."""
_OVERHEAD: Final = 8
_MOST_BODY: Final = 512 << 20
"""The largest body that any RabbitMQ accepts from a publisher."""


class _Frames(SelectConnection):  # type: ignore[misc] # pika has no types
    """Decodes content headers with `Properties`, and refuses frames and bodies larger than a broker may send."""

    _frame_buffer: bytes

    def _on_data_available(self, data_in: bytes) -> None:
        super()._on_data_available(data_in)
        # The rest of the buffer is the start of a frame. During the handshake, the server may not speak AMQP at all.
        size = int.from_bytes(self._frame_buffer[_SIZE], "big")
        if self.is_open and size > self.params.frame_max - _OVERHEAD:
            self._frame_buffer = b""
            raise InvalidFrameError(f"a frame of {size} bytes, expected at most {self.params.frame_max}")

    def _read_frame(self) -> tuple[int, Any]:
        found = content_header(self._frame_buffer) or super()._read_frame()
        if isinstance(found[1], Header) and found[1].body_size > _MOST_BODY:
            size = found[1].body_size
            raise InvalidFrameError(f"a message of {size} bytes, expected at most {_MOST_BODY}")
        return found

    def _deliver_frame_to_channel(self, value: Any) -> None:
        """Refuse what pika logs and ignores, so that a peer cannot fill the log; not the end of a channel, which is harmless."""
        late = isinstance(value, Method) and isinstance(value.method, Channel.CloseOk)
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
        super().__init__(parameters, _impl_class=_Frames)

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
