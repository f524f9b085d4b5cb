"""One connection and its channel, on pika, with two fast paths and three checks of what the server sends.

Handshake, TLS, authentication, heartbeats, blocking and closing are pika's. The fast paths: frames encoded elsewhere
are handed to its transport in one piece, and confirms at the front of received data are read here instead of being
decoded frame by frame. The checks keep a faulty or hostile server from filling the memory. All of them use names of
pika that are not public: ``PRIVATE_NAMES`` lists them, a test checks the installed pika for them, and if one is missing
the connection publishes through ``basic_publish``, which is slower.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

import pika
from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.exceptions import StreamLostError

from rabbit_chx.broker.reasons import NotAmqp
from rabbit_chx.publishing.frames import FRAME_OVERHEAD, encode
from rabbit_chx.publishing.properties import DEFAULT_FRAME_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rabbit_chx.publishing.messages import Message
    from rabbit_chx.publishing.window import Confirm

__all__ = ["ConnectionEvents", "PublisherConnection", "has_private_names"]

PRIVATE_NAMES: Final = (
    *(
        "_on_data_available",
        "_process_frame",
        "_frame_buffer",
        "_channels",
        "_adapter_emit_data",
        "_transport",
    ),
    *("_error", "bytes_received", "frames_received", "bytes_sent", "frames_sent"),
)
"""What this file uses of pika's connection beyond its documentation."""

# A confirm is a method frame of 21 bytes: 11 constant ones, a delivery tag, the flag "multiple", and the end byte.
_ACK: Final = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50"
_NACK: Final = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x78"
_CONFIRM: Final = struct.Struct(">11sQBx")
_CONFIRMS: Final = {_ACK, _NACK}
_MULTIPLE: Final = 1

_FIRST_BYTES: Final = {b"\x01", b"A"}
"""The first byte of a method frame, or of the protocol header by which a server asks for another version."""

_PIECE: Final = 1 << 17
_CLOSE_SECONDS: Final = 2.0
"""How long the broker may take to answer ``connection.close``."""


def has_private_names(connection: SelectConnection) -> bool:
    """Whether this pika has the names that the fast paths and the checks need."""
    return all(hasattr(connection, name) for name in PRIVATE_NAMES)


class ConnectionEvents(Protocol):
    """What a connection reports to its owner, always from the thread that runs it."""

    def on_ready(self) -> None:
        """Messages can be sent."""

    def on_confirms(self, confirms: Sequence[Confirm]) -> None:
        """The broker confirmed or rejected messages; these confirms were received together."""

    def on_return(self, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        """A message was returned as unroutable; its confirm follows."""

    def on_blocked(self, reason: str) -> None:
        """The broker blocks publishing (an alarm)."""

    def on_unblocked(self) -> None:
        """The broker accepts messages again."""

    def on_violation(self, text: str) -> None:
        """The server violated the protocol; the connection is about to end."""

    def on_down(self, error: Exception) -> None:
        """The connection did not open, or it ended, or its channel did."""

    @property
    def largest_body(self) -> int:
        """Bytes of the largest body that may be returned."""


class _FastConnection(SelectConnection):  # type: ignore[misc] # pika has no types
    """pika's connection, with the fast paths and the checks."""

    fast = False
    _frame_buffer: bytes

    def __init__(self, *args: Any, events: ConnectionEvents, **kwargs: Any) -> None:
        self._events = events
        super().__init__(*args, **kwargs)
        self.fast = has_private_names(self)

    def _on_data_available(self, data_in: bytes) -> None:
        if self.fast:
            # pika has removed every complete frame from its buffer, so the rest starts at the start of a frame.
            data_in = self._frame_buffer + data_in
            self._frame_buffer = b""
            if not self.bytes_received and data_in[:1] not in _FIRST_BYTES:
                # pika would wait for the rest of a huge frame. A TLS listener, for example, answers with an alert.
                not_amqp = NotAmqp(data_in[:1])
                self._events.on_down(not_amqp)
                raise not_amqp  # pika's transport ends the connection
            data_in = self._read_confirms(data_in)
        if data_in:
            super()._on_data_available(data_in)
        if self.fast and int.from_bytes(self._frame_buffer[3:7], "big") > DEFAULT_FRAME_MAX - FRAME_OVERHEAD:
            self._violation("announced a frame larger than frame_max")

    def _read_confirms(self, data: bytes) -> bytes:
        whole = len(data) - len(data) % _CONFIRM.size
        confirms: list[Confirm] = []
        for start, number, flags in _CONFIRM.iter_unpack(memoryview(data)[:whole]):
            if start not in _CONFIRMS:
                break
            confirms.append((number, flags & _MULTIPLE != 0, start == _ACK))
        if not confirms:
            return data
        size = len(confirms) * _CONFIRM.size
        # The heartbeat checker watches these two.
        self.bytes_received += size
        self.frames_received += len(confirms)
        self._events.on_confirms(confirms)
        return data[size:]

    def _process_frame(self, frame: Any) -> None:
        if self.fast and self.is_open:
            channel = getattr(frame, "channel_number", 0)
            if channel and channel not in self._channels:
                self._violation(f"sent a frame for channel {channel}, which is not open")
                return
            size = getattr(frame, "body_size", 0)  # of a content header
            if size > self._events.largest_body:
                self._violation(f"announced a returned message of {size} bytes, more than any in flight")
                return
        super()._process_frame(frame)

    def _violation(self, text: str) -> None:
        self._events.on_violation(text)
        self._frame_buffer = b""
        self.abort(StreamLostError(text))

    def emit(self, data: bytes, frames: int) -> None:
        """Send encoded frames, in pieces small enough that a partial write does not copy all of them."""
        self.bytes_sent += len(data)
        self.frames_sent += frames
        view = memoryview(data)
        for start in range(0, len(view), _PIECE):
            self._adapter_emit_data(view[start : start + _PIECE])

    @property
    def unsent_bytes(self) -> int:
        """What pika has accepted and the socket has not."""
        transport = getattr(self, "_transport", None)
        return transport.get_write_buffer_size() if transport is not None else 0

    def give_up(self) -> None:
        """End the connection while it opens."""
        if getattr(self, "_transport", None) is not None:
            self.abort(StreamLostError("given up"))  # pika's close() fails during a handshake
        else:
            self.close()

    def abort(self, error: Exception | None = None) -> None:
        """End the connection without waiting for the other side; ``on_down`` follows."""
        transport = getattr(self, "_transport", None)
        if transport is not None:
            if error is not None:
                self._error = error
            transport.abort()


class PublisherConnection:
    """A connection from its opening to its end; it is not used again."""

    def __init__(
        self, parameters: pika.ConnectionParameters, events: ConnectionEvents, *, fence: str | None
    ) -> None:
        self._events = events
        self._fence = fence
        self._channel: Any = None
        self._down = False
        self.ready: bool = False
        self.loop: IOLoop = IOLoop()
        self._connection = _FastConnection(
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
        """Release what the loop holds; no other thread may call into it any more."""
        self.loop.close()

    @property
    def server_version(self) -> str:
        """The release that the server reports."""
        return str((self._connection.server_properties or {}).get("version", ""))

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return self._connection.unsent_bytes

    @property
    def frame_max(self) -> int:
        """The negotiated frame size."""
        return int(self._connection.params.frame_max)

    def send(self, messages: Sequence[Message]) -> int:
        """Publish messages in order and return the bytes they took; call it only while the connection is ready."""
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
        """Close the connection, abruptly if the other side does not answer; ``on_down`` follows."""
        self.ready = False
        if self._connection.is_open:
            self._connection.close()
        elif not (self._connection.is_closing or self._connection.is_closed):
            self._connection.give_up()
        self.loop.call_later(_CLOSE_SECONDS, self._connection.abort)

    def _on_open(self, connection: _FastConnection) -> None:
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
        """Report a confirm that followed another frame, so that pika decoded it."""
        method = frame.method
        acked = isinstance(method, pika.spec.Basic.Ack)
        self._events.on_confirms([(method.delivery_tag, method.multiple, acked)])

    def _on_channel_closed(self, _: Any, error: Exception) -> None:
        """Close the connection with its channel; the end of the connection would report the same."""
        self.ready = False
        if not self._down:
            self._report(error)
            self.close()

    def _on_down(self, error: Exception) -> None:
        self.ready = False
        self._report(error)
        self.loop.stop()

    def _report(self, error: Exception) -> None:
        """Report the first end only: the channel ends with the connection, and the other way round."""
        if not self._down:
            self._down = True
            self._events.on_down(error)
