"""A TCP proxy between publisher and broker that makes the network as bad as a test needs it.

Each connection has two threads, one per direction, and obeys the current settings of the proxy: delay, bytes per
second, size of the slices, and after how many bytes the connection is cut. All random numbers come from one seed. A cut is
a reset (SO_LINGER 0), usually in the middle of a frame.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

_RESET = struct.pack("ii", 1, 0)
_CHUNK = 65_536


class Proxy:
    """Listens on its own port and forwards bytes to the broker."""

    def __init__(self, url: str, *, seed: int = 0) -> None:
        parts = urlsplit(url)
        self.random = random.Random(seed)
        self.delay = 0.0
        """Seconds that every chunk waits, in both directions."""
        self.rate = 0
        """Bytes a second towards the broker; 0 is no limit."""
        self.slice = _CHUNK
        """Maximum bytes of one send."""
        self.cut_after: tuple[int, int] | None = None
        """Each new connection is cut after a number of bytes towards the broker, from this range."""
        self.damage = (b"", b"")
        """Bytes from the broker, and others that arrive in their place."""
        self.connections = 0
        self.cuts = 0
        self._target = (parts.hostname, parts.port)
        self._pairs: list[_Pair] = []
        self._flowing = True
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = url.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{self.port}")
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for pair in self._pairs:
            pair.end()
        for pair in self._pairs:
            pair.join()

    def cut(self) -> None:
        """Reset every connection, now."""
        for pair in self._pairs:
            if pair.end():
                self.cuts += 1

    def inject(self, data: bytes, times: int = 1) -> None:
        """Send bytes to every client as if they came from the broker, which should be idle, until the client hangs up."""
        for pair in self._pairs:
            with suppress(OSError):
                for _ in range(times):
                    pair.inject(data)

    def hold(self) -> None:
        """Hold back what the publisher sends from now on."""
        for pair in self._pairs:
            pair.flowing.clear()

    def release(self) -> None:
        """Forward what was held back."""
        for pair in self._pairs:
            pair.flowing.set()

    def partition(self) -> None:
        """Let nothing through in either direction, new connections included, until `heal`."""
        self._flowing = False
        for pair in self._pairs:
            pair.flowing.clear()
            pair.answering.clear()

    def heal(self) -> None:
        """End the partition; data sent during it arrives late."""
        self._flowing = True
        for pair in self._pairs:
            pair.flowing.set()
            pair.answering.set()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)  # an idle broker is not a fault
            self.connections += 1
            self._pairs.append(_Pair(self, client, server, flowing=self._flowing))


class _Pair:
    def __init__(
        self, proxy: Proxy, client: socket.socket, server: socket.socket, *, flowing: bool = True
    ) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._lock = threading.Lock()
        self.ended = False
        self.flowing, self.answering = threading.Event(), threading.Event()
        if flowing:
            self.flowing.set()
            self.answering.set()
        self._left = proxy.random.randint(*proxy.cut_after) if proxy.cut_after else None
        self._threads = [
            threading.Thread(target=self._to_broker, daemon=True),
            threading.Thread(target=self._from_broker, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> bool:
        """Reset both sides; return False if they were reset before."""
        with self._lock:
            news, self.ended = not self.ended, True
            if news:
                _reset(self._client)
                _reset(self._server)
        self.flowing.set()
        self.answering.set()
        return news

    def inject(self, data: bytes) -> None:
        if self.ended:
            raise OSError
        self._client.sendall(data)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(10)

    def _to_broker(self) -> None:
        with suppress(OSError, ValueError):
            while True:
                data = self._read() if self.flowing.is_set() else self._hold()
                if not data or not self._send(data):
                    break
        self.end()

    def _read(self) -> bytes:
        data = self._client.recv(_CHUNK)
        if self._proxy.delay:
            time.sleep(self._proxy.delay)
        return data

    def _hold(self) -> bytes:
        """Keep reading without forwarding until `release`, even after the publisher is gone."""
        held = b""
        while not self.flowing.wait(0.01):
            with suppress(OSError, ValueError):
                if select.select([self._client], [], [], 0)[0]:
                    held += self._client.recv(_CHUNK)
        return held or self._read()

    def _from_broker(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(_CHUNK):
                self.answering.wait()
                if self._proxy.delay:
                    time.sleep(self._proxy.delay)
                before, after = self._proxy.damage
                self._client.sendall(data.replace(before, after) if before else data)
        self.answering.wait()
        self.end()

    def _send(self, data: bytes) -> bool:
        """Forward bytes according to the settings; return False if the connection was cut meanwhile."""
        proxy, view = self._proxy, memoryview(data)
        while view:
            size = min(proxy.slice, len(view))
            if self._left is not None:
                size = min(size, self._left)
                self._left -= size
            self._server.sendall(view[:size])
            view = view[size:]
            if self._left == 0:
                proxy.cuts += self.end()
                return False
            if proxy.rate:
                time.sleep(size / proxy.rate)
        return True


def _reset(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.shutdown(socket.SHUT_RD)  # wakes the reading thread, and sends nothing
    sock.close()
