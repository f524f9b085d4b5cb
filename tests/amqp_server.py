"""An AMQP server on loopback that completes the handshake and then misbehaves as a test tells it to."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from pika import frame, spec

if TYPE_CHECKING:
    from collections.abc import Callable

_ANSWERS = {
    spec.Connection.StartOk: lambda: spec.Connection.Tune(2047, 131_072, 0),
    spec.Connection.Open: spec.Connection.OpenOk,
    spec.Channel.Open: spec.Channel.OpenOk,
    spec.Confirm.Select: spec.Confirm.SelectOk,
}
_CAPABILITIES = {"publisher_confirms": True, "basic.nack": True, "connection.blocked": True}


class AmqpServer:
    """Accepts connections; once a connection has published, ``behave`` gets its socket."""

    def __init__(self, behave: Callable[[socket.socket], object]) -> None:
        self._behave = behave
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections: int = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            client.settimeout(30)
            client.recv(8)
            self._shake_hands(client)
            self._behave(client)

    def _shake_hands(self, client: socket.socket) -> None:
        properties = {"product": "RabbitMQ", "version": "4.3.6", "capabilities": _CAPABILITIES}
        start = spec.Connection.Start(server_properties=properties, mechanisms="PLAIN", locales="en_US")
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
                method = getattr(content, "method", None)
                if isinstance(method, spec.Basic.Publish):
                    return
                if type(method) in _ANSWERS:
                    answer: Any = _ANSWERS[type(method)]()
                    client.sendall(frame.Method(content.channel_number, answer).marshal())
