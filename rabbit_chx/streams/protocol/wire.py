"""A socket that sends and receives frames: framing, time limits and heartbeats.

Chunks are copied once, from the kernel: frames are views of the receive buffer, and a buffer with frames in use is replaced, not
reused.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import Final

import numpy as np

from rabbit_chx.base.text import seconds
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.guards import Guard
from rabbit_chx.broker.reasons import why_tls_failed, why_unreachable
from rabbit_chx.broker.sockets import first_open
from rabbit_chx.broker.tls import default_context, warn_if_unchecked
from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.streams.protocol.answers import SIZE, Command
from rabbit_chx.streams.protocol.requests import one_way

RECEIVE: Final = 1 << 18
"""The size of a buffer in bytes; larger frames get a larger one."""
_BEFORE_TUNE: Final = 1 << 20
"""The maximum size of a frame in bytes, until the broker proposes one."""
_LEAST_WAIT: Final = 1e-4
"""Seconds. With a timeout of 0, only what the socket has room for would be sent."""
_LEAST_FOR_HEARTBEAT: Final = 1.0
"""Seconds in which the broker must take a heartbeat, even at the end of a wait."""
_LARGEST: Final = 1 << 30
"""The maximum size of a chunk in bytes. The agreed maximum does not apply to chunks."""
_HEADER: Final = struct.Struct(">H3x36xI8x")
"""A Deliver frame up to the end of the chunk header: the command, and the size of the entries."""
_OTHERS: Final = {
    b"AMQP": "it speaks AMQP; the default port of the stream protocol is 5552",
    b"HTTP": "it speaks HTTP; the default port of the stream protocol is 5552",
    b"\x15\x03": "it expects TLS; use amqps:// or rabbitmq-stream+tls://, by default with port 5551",
}
"""The first bytes of peers that do not speak the stream protocol."""
_HEARTBEAT: Final = one_way(Command.HEARTBEAT)
_ENABLE: Final = "the stream protocol needs `rabbitmq-plugins enable rabbitmq_stream` on the broker, and port 5552 (5551 with TLS)"


class Wire:
    """Frames over one socket."""

    def __init__(self, sock: socket.socket, where: str) -> None:
        self.where: str = where
        self.frame_max: int = _BEFORE_TUNE
        """The maximum size of a frame in bytes, except for Deliver; 0 means no limit."""
        self.heartbeat: float = 0.0
        """The heartbeat interval in seconds; 0 disables heartbeats."""
        self._closed = False
        self._guard = Guard("StreamConnection", one_thread=True)
        self._guard.opened()
        self._socket = sock
        self._buffer = _buffer(RECEIVE)
        self._start = self._end = 0  # the received bytes that `receive` has not returned yet
        self._last_sent = self._last_received = time.monotonic()
        self.last_data: float = self._last_received
        """When something else than a heartbeat arrived."""
        self.longest_gap: float = 0.0
        """The longest time in which nothing arrived, since `Calls.answer` set it to 0."""

    @property
    def has_part(self) -> bool:
        """Whether a frame has arrived in part."""
        return self._end > self._start

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent or received, as far as the client knows; always in a forked child."""
        return self._closed or self._guard.inherited

    def send(self, frames: bytes, timeout: float) -> None:
        """Send one or more frames."""
        self._check_open()
        try:
            self._socket.settimeout(max(timeout, _LEAST_WAIT))
            self._socket.sendall(frames)
        except TimeoutError:
            raise self._lost(TimeoutError(f"the broker took no data for {seconds(timeout)}")) from None
        except OSError as error:
            raise self._lost(error) from None
        except (
            BaseException
        ):  # Ctrl-C, for example: what is sent next would complete a frame of which only a part was sent
            self.close()
            raise
        self._last_sent = time.monotonic()

    def receive(self, deadline: float) -> memoryview | None:
        """Receive the next frame and return it without its size; None if it is incomplete at the deadline."""
        if not self._have(SIZE.size, deadline):
            return None
        (size,) = SIZE.unpack_from(self._buffer, self._start)
        if size > (self.frame_max or _LARGEST) and not self._is_chunk(size, deadline):
            return None
        if not self._have(SIZE.size + size, deadline):
            return None
        start = self._start + SIZE.size
        self._start = start + size
        return self._buffer[start : self._start]

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket, unless it belongs to another process."""
        if self._guard.inherited:
            return
        self._closed = True
        with suppress(OSError):
            self._socket.close()

    def abort(self) -> None:
        """Make what waits for the socket in another thread fail."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _have(self, size: int, deadline: float) -> bool:
        """Receive until this many bytes are available; False at the deadline."""
        if self._start + size > len(self._buffer):
            # In a new buffer, because returned frames are views of the current one.
            rest = self._buffer[self._start : self._end]
            larger, end = _buffer(max(RECEIVE, size)), len(rest)
            larger[:end] = rest
            self._buffer, self._start, self._end = larger, 0, end  # no call in between, so no interrupt
        while self._end - self._start < size:
            if not self._fill(deadline):
                return False
        return True

    def _fill(self, deadline: float) -> bool:
        self._check_open()
        while True:
            if self.heartbeat and time.monotonic() - self._last_sent > self.heartbeat / 2:
                left = max(deadline - time.monotonic(), _LEAST_FOR_HEARTBEAT)
                self.send(_HEARTBEAT, min(self.heartbeat, left))
            wait = max(deadline - time.monotonic(), 0.0)
            try:
                self._socket.settimeout(min(wait, self.heartbeat / 2 or wait))
                count = self._socket.recv_into(self._buffer[self._end :])
                self._end += count
            # all but the first with a timeout of 0
            except (TimeoutError, BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                silence = time.monotonic() - self._last_received
                if self.heartbeat and silence > 2 * self.heartbeat:
                    text = f"no data for {silence:.0f} seconds, not even a heartbeat"
                    raise self._lost(TimeoutError(text)) from None
                if time.monotonic() >= deadline:
                    return False
            except OSError as error:
                raise self._lost(error) from None
            except BaseException:  # Ctrl-C, for example: bytes that have arrived may be lost
                self.close()
                raise
            else:
                if not count:
                    raise self._lost(ConnectionError("the broker closed it"))
                now = time.monotonic()
                self.longest_gap = max(self.longest_gap, now - self._last_received)
                self._last_received = now
                if count > len(_HEARTBEAT):  # a broker that hangs still sends heartbeats
                    self.last_data = now
                return True

    def _is_chunk(self, size: int, deadline: float) -> bool:
        """Whether a frame beyond the agreed maximum is a chunk whose header confirms the size.

        Raises:
            StreamUnavailable: The frame is not a chunk.
        """
        first = bytes(self._buffer[self._start : self._start + SIZE.size])
        for other, text in _OTHERS.items():
            if first.startswith(other):
                problem = f"the server at {self.where} does not speak the stream protocol: {text}"
                raise self._ended(StreamUnavailable(problem, "protocol"))
        if not self._have(SIZE.size + _HEADER.size, deadline):
            return False
        key, data_size = _HEADER.unpack_from(self._buffer, self._start + SIZE.size)
        if key == Command.DELIVER and _HEADER.size + data_size == size <= _LARGEST:
            return True
        raise self._ended(
            StreamUnavailable(
                f"the broker at {self.where} sent a frame of {size} bytes; the agreed maximum is {self.frame_max or _LARGEST}",
                "frame too large",
            )
        )

    def _check_open(self) -> None:
        self._guard.check()
        if self._closed:
            raise StreamUnavailable(f"the connection to {self.where} is closed", "lost")

    def _lost(self, error: OSError) -> StreamUnavailable:
        if isinstance(error, ssl.SSLError):
            # with TLS 1.3, the broker rejects a client certificate after the handshake
            reason = why_tls_failed(error, f"the broker at {self.where}")
            if reason.permanent:
                return self._ended(StreamUnavailable(str(reason), "tls"))
        text = str(error) or error.strerror or type(error).__name__
        return self._ended(StreamUnavailable(f"the connection to {self.where} was lost: {text}", "lost"))

    def _ended(self, error: StreamUnavailable) -> StreamUnavailable:
        self.close()
        return error


def _buffer(size: int) -> memoryview:
    """Allocate memory without filling it with zeros."""
    return np.empty(size, np.uint8).data


def open_wire(
    url: BrokerUrl, tls: ssl.SSLContext | None, timeout: float, give_up_at: float = math.inf
) -> Wire:
    """Connect to a stream port, with TLS if the URL has it, before a time of the monotonic clock.

    Raises:
        StreamUnavailable: no server accepts the connection, or the TLS handshake failed.
    """
    where = str(url)
    if url.tls:
        warn_if_unchecked(tls, where)
    deadline = min(time.monotonic() + timeout, give_up_at)
    try:
        plain = first_open(url.host, url.port, deadline - time.monotonic())
    except (OSError, OverflowError, UnicodeError) as error:  # a server may advertise any host and port
        advice = f"; {_ENABLE}" if isinstance(error, ConnectionRefusedError) else ""
        raise StreamUnavailable(f"{why_unreachable(error, where)}{advice}", "unreachable") from None
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(max(deadline - time.monotonic(), _LEAST_WAIT))  # for the handshake
        sock = (tls or default_context()).wrap_socket(plain, server_hostname=url.host) if url.tls else plain
    except OSError as error:
        plain.close()
        peer = f"the broker at {where}"
        reason = BrokerUnavailable(f"TLS with {peer} failed: {str(error) or type(error).__name__}")
        if isinstance(error, ssl.SSLError):
            reason = why_tls_failed(error, peer)
        if reason.permanent:
            raise StreamUnavailable(str(reason), "tls") from None
        # A broker that is restarting ends handshakes, too, so another attempt may succeed.
        raise StreamUnavailable(f"{reason}; is this a port without TLS?", "lost") from None
    return Wire(sock, where)
