"""Serve the page of a watch, its events and its metrics over HTTP, in separate threads.

    with Server(Access(Address.parse("127.0.0.1:8080"), token=None)) as server:
        server.show(interval)       # at each interval; never waits for a client

Each connection has a thread that waits for the newest interval: a slow client skips intervals, and nothing is queued for
the client.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from socketserver import TCPServer
from threading import BoundedSemaphore, Condition, Thread
from time import monotonic
from typing import Any, ClassVar, Final, Self
from urllib.parse import urlsplit

from rabbit_chx.errors import InvalidValue
from rabbit_chx.ring import Ring
from rabbit_chx.urls import host_and_port
from rabbit_chx.watch.interval import Interval
from rabbit_chx.watch.metrics import Metrics
from rabbit_chx.watch.page import page, pictures
from rabbit_chx.watch.tokens import Access

_log: Final = logging.getLogger(__name__)

_TIMEOUT: Final = 10.0
"""Seconds for a client to send its whole request, and then to receive the whole answer."""
_SLOWEST: Final = 10.0
"""Seconds for a client to receive an event; a slower client is dropped and can connect again."""
_HEARTBEAT: Final = 15.0
"""Seconds between comments on a connection without events; sending them detects that the client has gone."""
_MOST_CONNECTIONS: Final = 96
_MOST_WAITING: Final = 32
"""The most connections that have not sent an allowed request; one more closes the oldest, so that strangers keep out no one."""
_MOST_FOLLOWERS: Final = 64
"""The most pages that can be open at a time, so that Prometheus can still connect."""
_ENDS_WITHIN: Final = 5.0
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Events:
    """The newest event of each name, for any number of followers."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._newest: dict[str, tuple[int, bytes]] = {}
        self._count = 0
        self._closed = False

    def put(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the events of these names and wake the followers."""
        # JSON in ASCII has no line breaks that could end an event early.
        encoded = {
            name: f"event: {name}\ndata: {json.dumps(value, allow_nan=False)}\n\n".encode()
            for name, value in values.items()
        }
        with self._changed:
            self._count += 1
            self._newest |= {name: (self._count, event) for name, event in encoded.items()}
            self._changed.notify_all()

    def close(self) -> None:
        """End all followers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def follow(self, heartbeat: float = _HEARTBEAT) -> Iterator[bytes]:
        """Yield the newest events now and each time they change, and a comment after ``heartbeat`` seconds without a change."""
        seen = 0
        while True:
            with self._changed:
                self._changed.wait_for(partial(self._has_news, seen), heartbeat)
                if self._closed:
                    return
                newer = [event for number, event in self._newest.values() if number > seen]
                seen = self._count
            yield b"".join(newer) or b":\n\n"

    def _has_news(self, seen: int) -> bool:
        return self._closed or self._count > seen


class Server:
    """Serves the page of a watch, its events and its metrics until the server is closed.

    Raises:
        InvalidValue: if the server cannot listen on the address.
    """

    def __init__(self, access: Access) -> None:
        self._metrics = Metrics()
        self._events = Events()
        self._drawn: tuple[Ring | None, Ring | None] | None = None
        try:
            self._http = _HttpServer(access, self._events, self._metrics)
        except OSError as error:
            hint = f"The system says: {error.strerror}"
            raise InvalidValue("--serve", str(access.address), "an address to listen on", hint) from None
        self._thread = Thread(target=self._http.serve_forever, args=(0.1,), name="watch-server", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the page."""
        port = self._http.server_address[1]
        return f"http://{host_and_port(self._http.access.address.host, int(port))}/"

    def show(self, interval: Interval) -> None:
        """Show an interval on the page and in the metrics, without waiting for any client."""
        self._metrics.show(interval)
        events = {"interval": interval.as_dict()}
        rings = (interval.ring_check.live, interval.ring_check.wanted)
        if rings != self._drawn:
            self._drawn = rings
            events["pictures"] = pictures(*rings)
        self._events.put(events)

    def close(self) -> None:
        """Close all connections and stop listening."""
        self._events.close()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self._http.end_connections()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _HttpServer(ThreadingHTTPServer):
    """A server that limits its connections and closes them at its end."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, access: Access, events: Events, metrics: Metrics) -> None:
        self.access = access
        self.events = events
        self.metrics = metrics
        self.page = page()
        self.followers = BoundedSemaphore(_MOST_FOLLOWERS)
        self._connections: dict[socket.socket, float] = {}
        """The connections, oldest first, and when each must have sent an allowed request; `inf` for those that have."""
        self._ended = Condition()
        self.address_family = access.address.family
        super().__init__((access.address.ip, access.address.port), _Handler)

    def server_bind(self) -> None:
        """Bind, without the lookup of the host's full name in HTTPServer, which can take seconds."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, unless there are too many."""
        with self._ended:
            waiting = [connection for connection, until in self._connections.items() if 0 < until < inf]
            full = sum(until == inf for until in self._connections.values()) >= _MOST_CONNECTIONS
            if not full:
                self._connections[request] = monotonic() + _TIMEOUT
                if len(waiting) >= _MOST_WAITING:
                    self._connections[waiting[0]] = 0  # it is not counted again; its thread forgets it
                    _shut_down(waiting[:1])
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._ended:
            self._connections.pop(request, None)
            self._ended.notify_all()

    def admit(self, request: socket.socket) -> None:
        """Note that a connection has sent an allowed request."""
        with self._ended:
            self._connections[request] = inf

    def service_actions(self) -> None:
        """Close connections that send their requests too slowly; called several times per second."""
        now = monotonic()
        with self._ended:
            _shut_down(connection for connection, until in self._connections.items() if until < now)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log why a connection failed: usually, the client closed it or is too slow."""
        expected = isinstance(sys.exception(), OSError)
        _log.log(logging.DEBUG if expected else logging.ERROR, "a connection failed", exc_info=True)

    def end_connections(self) -> None:
        """Close all connections and wait for their threads."""
        with self._ended:
            _shut_down(self._connections)
            self._ended.wait_for(lambda: not self._connections, _ENDS_WITHIN)


def _shut_down(connections: Iterable[socket.socket]) -> None:
    for connection in connections:
        with suppress(OSError):  # the client has closed it already
            connection.shutdown(socket.SHUT_RDWR)


def _path_in(target: str) -> str:
    """The path in the target of a request; empty if the target is an invalid URL."""
    try:
        return urlsplit(target).path
    except ValueError:
        return ""


class _Handler(BaseHTTPRequestHandler):
    server: _HttpServer
    server_version = "rabbit-chx"
    sys_version = ""
    timeout = _TIMEOUT
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def do_GET(self) -> None:
        access = self.server.access
        if not access.names_this_server(self.headers.get_all("Host", [])):
            self.send_error(
                HTTPStatus.MISDIRECTED_REQUEST, "Use localhost, an address, or the name given to --serve"
            )
        elif not access.admits(self.headers.get("Authorization")):
            self.send_error(HTTPStatus.UNAUTHORIZED, "The token is required, as a password")
        elif answer := self._ANSWERS.get(_path_in(self.path)):
            self.server.admit(self.connection)
            answer(self)
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "The paths are /, /events and /metrics")

    do_HEAD = do_GET  # noqa: N815

    def end_headers(self) -> None:
        """Add the headers that every answer has."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def send_response(self, code: int, message: str | None = None) -> None:
        """Start an answer; a 401 makes browsers ask for the token."""
        super().send_response(code, message)
        if code == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="rabbit-chx watch", charset="UTF-8"')

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log a request instead of printing it to standard error, where it would overwrite the table."""
        _log.debug(format, *args)

    def _page(self) -> None:
        html, policy = self.server.page
        self._send(html, "text/html; charset=utf-8", policy)

    def _metrics(self) -> None:
        self._send(*self.server.metrics.text())

    def _send(self, body: bytes, content_type: str, policy: str = "default-src 'none'") -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _events(self) -> None:
        followers = self.server.followers
        if not followers.acquire(blocking=False):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages are open")
            return
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.connection.settimeout(_SLOWEST)
            if self.command != "HEAD":
                for events in self.server.events.follow():
                    self.wfile.write(events)
        finally:
            followers.release()

    _ANSWERS: ClassVar[dict[str, Callable[[_Handler], None]]] = {
        "/": _page,
        "/events": _events,
        "/metrics": _metrics,
    }
