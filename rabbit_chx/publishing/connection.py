"""One connection and its channel, on pika, with two fast paths and three checks of what the server sends.

Handshake, TLS, authentication, heartbeats, blocking and closing are pika's. The fast paths: frames encoded elsewhere
are handed to its transport in one piece, and confirms at the front of received data are read here instead of being
decoded frame by frame. The checks keep a faulty or hostile server from filling the memory. The properties of a returned
message are reported as received, since pika's decoding loses the fraction of a double. All of this uses names of pika
that are not public (`broker.receiving`); if one is missing the connection publishes through ``basic_publish``, which is slower.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import pika
from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.exceptions import ChannelClosedByBroker, StreamLostError

from rabbit_chx.broker.deliveries import BEFORE_PROPERTIES
from rabbit_chx.broker.reasons import NotAmqp
from rabbit_chx.broker.receiving import can_be_fast
from rabbit_chx.publishing.messages import OutgoingMessage
from rabbit_chx.publishing.properties import DEFAULT_FRAME_MAX
from rabbit_chx.publishing.window import Confirm

# A confirm is a method frame of 21 bytes: 11 constant ones, a delivery tag, the flag "multiple", and the end byte.
_ACK: Final = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50"
_NACK: Final = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x78"
_CONFIRM: Final = struct.Struct(">11sQBx")
_CONFIRMS: Final = {_ACK, _NACK}
_MULTIPLE: Final = 1

_FIRST_BYTES: Final = {b"\x01", b"A"}
"""The first byte of a method frame, or of the protocol header with which a server asks for another version."""

_PIECE: Final = 1 << 17
_CLOSE_SECONDS: Final = 2.0
"""How long the broker may take to answer ``connection.close``."""


class _Events(Protocol):
    """What a connection reports to its owner, always from the thread that runs its loop."""

    def on_ready(self) -> None: ...
    def on_confirms(self, confirms: Sequence[Confirm]) -> None: ...
    def on_return(self, method: Any, properties: bytes, body: bytes) -> None: ...
    def on_blocked(self, reason: str) -> None: ...
    def on_unblocked(self) -> None: ...
    def on_violation(self, text: str) -> None: ...
    def on_channel_closed(self, error: ChannelClosedByBroker) -> bool: ...
    def on_down(self, error: Exception) -> None: ...
    @property
    def largest_body(self) -> int: ...


class PublisherConnection(SelectConnection):  # type: ignore[misc] # pika has no types
    """A connection and its channel, from its opening to its end; it is not used again."""

    fast: bool = False
    _frame_buffer: bytes
    _returned_properties: bytes = b""
    """Of the last content header, as received."""

    def __init__(self, parameters: pika.ConnectionParameters, events: _Events) -> None:
        self._events = events
        self._channel: Any = None
        self._down = False
        self.ready: bool = False
        super().__init__(
            parameters,
            on_open_callback=lambda _: self._open_channel(),
            on_open_error_callback=self._on_down,
            on_close_callback=self._on_down,
            custom_ioloop=IOLoop(),
        )
        self.fast = can_be_fast(self)
        self.add_on_connection_blocked_callback(lambda _, frame: events.on_blocked(frame.method.reason))
        self.add_on_connection_unblocked_callback(lambda _, __: events.on_unblocked())

    @property
    def unsent_bytes(self) -> int:
        """What pika has accepted and the socket has not."""
        transport = getattr(self, "_transport", None)
        return transport.get_write_buffer_size() if transport is not None else 0

    @property
    def frame_max(self) -> int:
        """The negotiated frame size."""
        return int(self.params.frame_max)

    def publish(self, messages: Sequence[OutgoingMessage]) -> int:
        """Publish messages in order and return the bytes they took; call it only while the connection is ready."""
        before = self.bytes_sent
        if self.fast:
            self._emit(encode(messages, frame_max=self.frame_max), 3 * len(messages))
            return int(self.bytes_sent - before)
        for message in messages:
            properties = pika.BasicProperties()
            properties.decode(message.properties)
            exchange, body = message.exchange.decode(), bytes(message.body)
            self._channel.basic_publish(exchange, message.routing_key, body, properties, mandatory=True)
        return int(self.bytes_sent - before)

    def end(self) -> None:
        """Close the connection, abruptly if the other side does not answer; ``on_down`` follows."""
        self.ready = False
        if not (self.is_closing or self.is_closed):
            if self.is_open or getattr(self, "_transport", None) is None:
                self.close()
            else:
                self._abort(StreamLostError("given up"))  # pika's close() fails during a handshake
        self.ioloop.call_later(_CLOSE_SECONDS, self._abort)

    def _abort(self, error: Exception | None = None) -> None:
        """End the connection without waiting for the other side; ``on_down`` follows."""
        transport = getattr(self, "_transport", None)
        if transport is not None:
            if error is not None:
                self._error = error
            transport.abort()

    # -- from opening to end -----------------------------------------------------------------------

    def _open_channel(self) -> None:
        if self.is_open:
            self.channel(channel_number=1, on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_decoded_confirm, callback=self._on_selected)

    def _on_selected(self, _: Any) -> None:
        self.ready = True
        self._events.on_ready()

    def _on_return(self, _: Any, method: Any, decoded: pika.BasicProperties, body: bytes) -> None:
        properties = self._returned_properties if self.fast else b"".join(decoded.encode())
        self._events.on_return(method, properties, body)

    def _on_channel_closed(self, _: Any, error: Exception) -> None:
        """Open another channel after a refused message; otherwise close the connection with its channel."""
        self.ready = False
        if isinstance(error, ChannelClosedByBroker) and self._events.on_channel_closed(error):
            self.ioloop.call_later(0, self._open_channel)  # when pika has forgotten the closed one
        elif not self._down:
            self._report(error)
            self.end()

    def _on_down(self, _: Any, error: Exception) -> None:
        self.ready = False
        self._report(error)
        self.ioloop.stop()

    def _report(self, error: Exception) -> None:
        """Report the first end only: the channel ends with the connection, and the other way round."""
        if not self._down:
            self._down = True
            self._events.on_down(error)

    # -- the fast paths and the checks -------------------------------------------------------------

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

    def _read_frame(self) -> tuple[int, Any]:
        size, frame = super()._read_frame()
        if isinstance(frame, pika.frame.Header):
            self._returned_properties = self._frame_buffer[BEFORE_PROPERTIES : size - 1]
        return size, frame

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
        self._abort(StreamLostError(text))

    def _emit(self, data: bytes, frames: int) -> None:
        """Send encoded frames, in pieces small enough that a partial write does not copy all of them."""
        self.bytes_sent += len(data)
        self.frames_sent += frames
        view = memoryview(data)
        for start in range(0, len(view), _PIECE):
            self._adapter_emit_data(view[start : start + _PIECE])

    def _on_decoded_confirm(self, frame: Any) -> None:
        """Report a confirm that followed another frame, so that pika decoded it."""
        method = frame.method
        acked = isinstance(method, pika.spec.Basic.Ack)
        self._events.on_confirms([(method.delivery_tag, method.multiple, acked)])


# -- frames -------------------------------------------------------------------------------------------

FRAME_OVERHEAD: Final = 8
"""Type, channel and size before a frame's payload, and the end byte after it."""

_METHOD, _HEADER, _BODY, _END = b"\x01", b"\x02", b"\x03", b"\xce"
_BASIC_PUBLISH: Final = struct.pack(">HHH", 60, 40, 0)  # class, method, and a reserved field
_MANDATORY: Final = b"\x01"
_CHANNEL: Final = struct.pack(">H", 1)
_BODY_START: Final = _BODY + _CHANNEL
_SIZE = struct.Struct(">I").pack
_BASIC_HEADER: Final = struct.pack(">HH", 60, 0)  # class and weight
_BODY_SIZE = struct.Struct(">Q").pack


def encode(messages: Iterable[OutgoingMessage], *, frame_max: int) -> bytes:
    """Return all frames of the messages, on channel 1, mandatory.

    A message is a ``basic.publish`` method frame, a content header frame with its properties, and its body in frames of the
    negotiated size. The fields that all messages of a batch have in common are packed once.
    """
    limit = frame_max - FRAME_OVERHEAD
    pieces: list[bytes | memoryview] = []
    add = pieces.extend
    exchange = properties = None
    heads_of: dict[bytes, _Heads] = {}
    for message in messages:
        if message.exchange is not exchange:
            exchange = message.exchange
            if exchange not in heads_of:
                heads_of[exchange] = _Heads(_BASIC_PUBLISH + bytes([len(exchange)]) + exchange)
            heads = heads_of[exchange]
        if message.properties is not properties:
            properties = message.properties
            header_size = len(_BASIC_HEADER) + 8 + len(properties)
            middle = _MANDATORY + _END + _HEADER + _CHANNEL + _SIZE(header_size) + _BASIC_HEADER
            tail = properties + _END
        key, body = message.routing_key, message.body
        size = len(body)
        head = heads[len(key)]
        if 0 < size <= limit:  # one call: there are many of these
            add((head, key, middle, _BODY_SIZE(size), tail, _BODY_START, _SIZE(size), body, _END))
            continue
        add((head, key, middle, _BODY_SIZE(size), tail))
        view = memoryview(body)
        for start in range(0, size, limit):
            part = view[start : start + limit]
            add((_BODY_START, _SIZE(len(part)), part, _END))
    return b"".join(pieces)


class _Heads(dict[int, bytes]):
    """The bytes before a routing key, by the length of the key."""

    def __init__(self, method_start: bytes) -> None:
        super().__init__()
        self._method_start = method_start

    def __missing__(self, length: int) -> bytes:
        size = len(self._method_start) + 1 + length + len(_MANDATORY)
        head = _METHOD + _CHANNEL + _SIZE(size) + self._method_start + bytes([length])
        self[length] = head
        return head
