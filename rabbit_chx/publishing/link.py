"""One connection and its channel, on pika's machinery, with two short cuts for bulk.

Handshake, TLS, authentication, heartbeats, blocking and closing stay pika's. The short cuts are that frames
made elsewhere are handed to its transport in one piece, and that the confirms at the front of what was
received are read here instead of being decoded frame by frame. Both lean on names with an underscore:
``SEAM`` lists them, a test holds them against the installed pika, and where one is missing the link publishes
through ``basic_publish``, which is slower and never wrong.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

import pika
from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.exceptions import StreamLostError

from rabbit_chx.broker.reasons import NotAmqp
from rabbit_chx.publishing.frames import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rabbit_chx.publishing.frames import Message
    from rabbit_chx.publishing.window import Confirm

__all__ = ["Link", "LinkEvents", "seam_is_there"]

SEAM: Final = (
    *("_on_data_available", "_frame_buffer", "_adapter_emit_data", "_transport", "_error"),
    *("bytes_received", "frames_received", "bytes_sent", "frames_sent"),
)
"""What of a connection of pika's is used although no page documents it."""

# A confirm is a method frame of 21 bytes: 11 that are always the same, a number, the flag "multiple", and the end.
_ACK: Final = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50"
_NACK: Final = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x78"
_CONFIRM: Final = struct.Struct(">11sQBx")
_CONFIRMS: Final = {_ACK, _NACK}
_MULTIPLE: Final = 1

_FIRST_BYTES: Final = {b"\x01", b"A"}
"""Of a method frame, or of the protocol header by which a server asks for another version."""

_PIECE: Final = 1 << 17
_GRACE: Final = 2.0
"""Seconds that the broker has for saying good-bye."""


def seam_is_there(connection: SelectConnection) -> bool:
    """Whether this pika has the names that the short cuts need."""
    return all(hasattr(connection, name) for name in SEAM)


class LinkEvents(Protocol):
    """What a link tells its owner, always from the thread that runs its loop."""

    def on_ready(self) -> None:
        """Messages can be sent."""

    def on_confirms(self, confirms: Sequence[Confirm]) -> None:
        """The broker confirmed numbers, or all up to one; or refused to. These were received together."""

    def on_return(self, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        """A message could not be routed; its confirm follows."""

    def on_blocked(self, reason: str) -> None:
        """The broker stopped reading (an alarm)."""

    def on_unblocked(self) -> None:
        """It reads again."""

    def on_down(self, error: Exception) -> None:
        """The connection failed to open, or is gone, or its channel is."""


class _Connection(SelectConnection):  # type: ignore[misc] # pika has no types
    """pika's connection, which reads the confirms at the front of received data by itself."""

    fast = False
    _frame_buffer: bytes

    def __init__(self, *args: Any, events: LinkEvents, **kwargs: Any) -> None:
        self._events = events
        super().__init__(*args, **kwargs)
        self.fast = seam_is_there(self)

    def _on_data_available(self, data_in: bytes) -> None:
        if self.fast:
            # pika has taken every whole frame off its buffer, so what is left of it begins where a frame does.
            data_in = self._frame_buffer + data_in
            self._frame_buffer = b""
            if not self.bytes_received and data_in[:1] not in _FIRST_BYTES:
                # pika would wait for the rest of a huge frame. A listener for TLS answers with an alert.
                stranger = NotAmqp(data_in[:1])
                self._events.on_down(stranger)
                raise stranger  # by which pika ends a connection whose frames are wrong
            data_in = self._read_confirms(data_in)
        if data_in:
            super()._on_data_available(data_in)

    def _read_confirms(self, data: bytes) -> bytes:
        whole = len(data) - len(data) % _CONFIRM.size
        confirms: list[Confirm] = []
        for start, number, flags in _CONFIRM.iter_unpack(memoryview(data)[:whole]):
            if start not in _CONFIRMS:
                break
            confirms.append((number, flags & _MULTIPLE != 0, start == _ACK))
        if not confirms:
            return data
        at = len(confirms) * _CONFIRM.size
        # The heartbeat checker watches these two.
        self.bytes_received += at
        self.frames_received += len(confirms)
        self._events.on_confirms(confirms)
        return data[at:]

    def emit(self, data: bytes, frames: int) -> None:
        """Send frames made elsewhere, in pieces that a partial write does not copy whole."""
        self.bytes_sent += len(data)
        self.frames_sent += frames
        view = memoryview(data)
        for start in range(0, len(view), _PIECE):
            self._adapter_emit_data(view[start : start + _PIECE])

    @property
    def unsent_bytes(self) -> int:
        """What pika has taken and the socket has not."""
        transport = getattr(self, "_transport", None)
        return transport.get_write_buffer_size() if transport is not None else 0

    def give_up(self) -> None:
        """End it while it opens."""
        if getattr(self, "_transport", None) is not None:
            # In the middle of a handshake pika's close() trips over itself; that a stream is lost it can bear.
            self._error = StreamLostError("given up")
            self.abort()
        else:
            self.close()

    def abort(self) -> None:
        """End it without waiting for the other side; its end is reported as usual."""
        transport = getattr(self, "_transport", None)
        if transport is not None:
            transport.abort()


class Link:
    """A connection from its opening to its end; it is not used again."""

    def __init__(
        self, parameters: pika.ConnectionParameters, events: LinkEvents, *, fence: str | None
    ) -> None:
        self._events = events
        self._fence = fence
        self._channel: Any = None
        self._down = False
        self.ready: bool = False
        self.loop: IOLoop = IOLoop()
        self._connection = _Connection(
            parameters,
            on_open_callback=self._on_open,
            on_open_error_callback=lambda _, error: self._on_down(error),
            on_close_callback=lambda _, error: self._on_down(error),
            custom_ioloop=self.loop,
            events=events,
        )
        self._connection.add_on_connection_blocked_callback(
            lambda _, frame: events.on_blocked(frame.method.reason)
        )
        self._connection.add_on_connection_unblocked_callback(lambda _, __: events.on_unblocked())

    def run(self) -> None:
        """Serve the connection until it is down."""
        self.loop.start()

    def dispose(self) -> None:
        """Give back what the loop holds; nobody may call into it any more."""
        self.loop.close()

    @property
    def server_version(self) -> str:
        """The release that the server says it is."""
        return str((self._connection.server_properties or {}).get("version", ""))

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return self._connection.unsent_bytes

    @property
    def frame_max(self) -> int:
        """The largest frame that both sides have agreed on."""
        return int(self._connection.params.frame_max)

    def send(self, messages: Sequence[Message]) -> int:
        """Publish messages in order and return the bytes they took; only between ready and down."""
        if self._connection.fast:
            data = encode(messages, frame_max=self.frame_max)
            self._connection.emit(data, 3 * len(messages))
            return len(data)
        before = self._connection.bytes_sent
        for message in messages:
            properties = pika.BasicProperties()
            properties.decode(message.properties)
            self._channel.basic_publish(
                message.exchange.decode(),
                message.routing_key,
                bytes(message.body),
                properties,
                mandatory=True,
            )
        return int(self._connection.bytes_sent - before)

    def close(self) -> None:
        """Close the connection in good order, or without it if the other side keeps silent; ``on_down`` follows."""
        self.ready = False
        if self._connection.is_open:
            self._connection.close()
        elif not (self._connection.is_closing or self._connection.is_closed):
            self._connection.give_up()
        self.loop.call_later(_GRACE, self._connection.abort)

    def _on_open(self, connection: _Connection) -> None:
        connection.channel(on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Any) -> None:
        assert channel.channel_number == 1
        self._channel = channel
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_return_callback(
            lambda _, method, properties, body: self._events.on_return(method, properties, body)
        )
        if self._fence is None:
            self._select_confirms()
        else:
            channel.queue_declare(self._fence, exclusive=True, callback=lambda _: self._select_confirms())

    def _select_confirms(self) -> None:
        self._channel.confirm_delivery(self._on_decoded_confirm, callback=self._on_selected)

    def _on_selected(self, _: Any) -> None:
        self.ready = True
        self._events.on_ready()

    def _on_decoded_confirm(self, frame: Any) -> None:
        """A confirm behind another frame, which pika has decoded."""
        method = frame.method
        acked = isinstance(method, pika.spec.Basic.Ack)
        self._events.on_confirms([(method.delivery_tag, method.multiple, acked)])

    def _on_channel_closed(self, _: Any, error: Exception) -> None:
        """Without its channel the connection is of no use; its own end reports the same."""
        self.ready = False
        if not self._down:
            self._report(error)
            self.close()

    def _on_down(self, error: Exception) -> None:
        self.ready = False
        self._report(error)
        self.loop.stop()

    def _report(self, error: Exception) -> None:
        """The first end counts: a channel's takes its connection along, and the other way round."""
        if not self._down:
            self._down = True
            self._events.on_down(error)
