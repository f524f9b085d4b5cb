"""An AMQP server on loopback that misbehaves as a test tells it to, after the handshake or at once."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from pika import frame, spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ANSWERS = {
    spec.Connection.StartOk: lambda: spec.Connection.Tune(2047, 131_072, 0),
    spec.Connection.Open: spec.Connection.OpenOk,
    spec.Channel.Open: spec.Channel.OpenOk,
    spec.Confirm.Select: spec.Confirm.SelectOk,
}
_CLOSE = spec.Channel.Close.INDEX.to_bytes(4, "big")
_CAPABILITIES = {"publisher_confirms": True, "basic.nack": True, "connection.blocked": True}


def confirm(number: int, *, multiple: bool = False, ack: bool = True) -> bytes:
    """The confirm of a message, or of all up to this one; without ``ack``, their rejection."""
    method = spec.Basic.Ack(number, multiple) if ack else spec.Basic.Nack(number, multiple, requeue=False)
    return frame.Method(1, method).marshal()


ACK_ALL = confirm(0, multiple=True)


def received(client: socket.socket) -> Iterator[bytes]:
    """What the client sends until it closes its channel, which comes before the connection."""
    while (data := client.recv(1 << 16)) and _CLOSE not in data:
        yield data


def confirm_all(client: socket.socket) -> None:
    """Confirm whatever the client sends."""
    client.sendall(ACK_ALL)
    for _ in received(client):
        client.sendall(ACK_ALL)


class AmqpServer:
    """Accepts connections, and gives ``behave`` the socket after the first command that is not part of a handshake.

    Without a handshake, ``behave`` gets it as soon as the client has spoken.
    """

    def __init__(
        self, behave: Callable[[socket.socket], object], *, handshake: bool = True, mechanisms: str = "PLAIN"
    ) -> None:
        self._behave = behave
        self._mechanisms = mechanisms
        self._handshake = handshake
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections: int = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(
            socket.SHUT_RDWR
        )  # close() alone lets a waiting accept() take another connection
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            client.settimeout(90)
            client.recv(8)
            if self._handshake:
                self._shake_hands(client)
            self._behave(client)

    def _shake_hands(self, client: socket.socket) -> None:
        properties = {"product": "RabbitMQ", "version": "4.3.6", "capabilities": _CAPABILITIES}
        start = spec.Connection.Start(
            server_properties=properties, mechanisms=self._mechanisms, locales="en_US"
        )
        client.sendall(frame.Method(0, start).marshal())
        buffer = b""
        while True:
            received = client.recv(1 << 16)
            if not received:
                raise ConnectionError
            buffer += received
            while (decoded := frame.decode_frame(buffer))[1] is not None:
                size, content = decoded
                buffer = buffer[size:]
                if not isinstance(content, frame.Method) or isinstance(
                    content.method, spec.Connection.TuneOk
                ):
                    continue
                if type(content.method) not in _ANSWERS:
                    return
                answer: Any = _ANSWERS[type(content.method)]()
                client.sendall(frame.Method(content.channel_number, answer).marshal())
