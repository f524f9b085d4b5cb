"""Serve the page of a watch, its events and its metrics over HTTP, in a thread with an event loop.

    with Server(Access(Address.parse("127.0.0.1:8080"), token=None)) as server:
        server.show(interval)       # at each interval; never waits for a client

A slow client skips intervals: only the newest event of each name is kept. Needs the extra ``watch``.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from threading import Thread
from typing import Any, Final, Self

from rabbit_chx.base.urls import host_and_port
from rabbit_chx.errors import InvalidValue, MissingDependency
from rabbit_chx.mirror.ring import Ring
from rabbit_chx.watch.interval import Interval
from rabbit_chx.watch.page import page, pictures
from rabbit_chx.watch.tokens import Access

try:
    import uvicorn
    from prometheus_client import CONTENT_TYPE_LATEST
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from rabbit_chx.watch.metrics import Metrics
except ImportError as _missing:
    needed = "--serve needs starlette, uvicorn and prometheus-client: pip install 'rabbit-chx[watch]'"
    raise MissingDependency(needed) from _missing

_TIMEOUT: Final = 10.0
"""Seconds for a client to send a whole request, and to read what the server has sent."""
_HEARTBEAT: Final = 15.0
"""Seconds between comments on a connection without events, so that no proxy takes it for idle."""
_MOST_CONNECTIONS: Final = 128
_MOST_WAITING: Final = 32
"""The most connections without an answer; one more closes the oldest, so that idle strangers do not keep others out."""
_MOST_FOLLOWERS: Final = 64
"""The most pages that can be open at a time, so that Prometheus can still connect."""
_BACKLOG: Final = 64
_ENDS_WITHIN: Final = 1
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "rabbit-chx",
    "X-Content-Type-Options": "nosniff",
}


class Server:
    """Serves the page of a watch, its events and its metrics until the server is closed.

    Raises:
        InvalidValue: if the server cannot listen on the address.
    """

    def __init__(self, access: Access) -> None:
        address = access.address
        both = address.family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        try:
            listener = socket.create_server(
                (address.ip, address.port), family=address.family, dualstack_ipv6=both
            )
        except OSError as error:
            hint = f"The system says: {os.strerror(error.errno or 0)}"
            raise InvalidValue("--serve", str(address), "an address to listen on", hint) from None
        self.url: str = f"http://{host_and_port(address.host, listener.getsockname()[1])}/"
        """The URL of the page."""
        self._metrics = Metrics()
        self._events = _Events()
        self._drawn: tuple[Ring | None, Ring | None] | None = None
        self._http = uvicorn.Server(
            uvicorn.Config(
                _app(access, self._events, self._metrics),
                http=_Connection,
                ws="none",
                lifespan="off",
                proxy_headers=False,
                server_header=False,
                headers=list(_HEADERS.items()),
                log_config=None,
                log_level="error",  # warnings would overwrite the table
                access_log=False,
                backlog=_BACKLOG,
                limit_concurrency=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=_ENDS_WITHIN,
            )
        )
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = Thread(target=self._serve, args=(listener,), name="watch-server", daemon=True)
        self._thread.start()

    def show(self, interval: Interval) -> None:
        """Show an interval on the page and in the metrics, without waiting for any client."""
        self._metrics.show(interval)
        events = {"interval": interval.as_dict()}
        rings = (interval._ring_check.live, interval._ring_check.wanted)
        if rings != self._drawn:
            self._drawn = rings
            events["pictures"] = pictures(*rings)
        self._loop.call_soon_threadsafe(self._events.put, _encoded(events))

    def close(self) -> None:
        """Close all connections and stop listening."""
        self._http.should_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, listener: socket.socket) -> None:
        with self._runner as runner:
            runner.run(self._http.serve(sockets=[listener]))


class _Connection(H11Protocol):
    """Ends if the client does not send a request, or does not read, in time; uvicorn has no limits for these."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # pause_writing is called as soon as the client is behind
        self._late = self.loop.call_later(_TIMEOUT, self._end_if_late)
        waiting = [each for each in self.connections if isinstance(each, _Connection) and not each.answered]
        for each in sorted(waiting, key=lambda each: each._late.when())[:-_MOST_WAITING]:
            each.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._late.cancel()
        self._late = self.loop.call_later(_TIMEOUT, self._end_if_late)

    def shutdown(self) -> None:
        """End at once, because an event stream would never end by itself."""
        self.transport.abort()

    @property
    def answered(self) -> bool:
        """Whether an answer has begun."""
        return self.cycle is not None and self.cycle.response_started

    def _end_if_late(self) -> None:
        if not self.answered or self.flow.write_paused:
            self.transport.abort()


class _Events:
    """The newest event of each name, for any number of followers."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(_MOST_FOLLOWERS)
        self._changed = asyncio.Event()
        self._newest: dict[str, tuple[int, bytes]] = {}
        self._count = 0

    def put(self, encoded: Mapping[str, bytes]) -> None:
        """Replace the events of these names and wake the followers."""
        self._count += 1
        self._newest |= {name: (self._count, event) for name, event in encoded.items()}
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, heartbeat: float = _HEARTBEAT) -> AsyncIterator[bytes]:
        """Yield the newest events now and each time they change, and a comment after ``heartbeat`` seconds without a change."""
        seen = 0
        async with self.places:
            while True:
                changed = self._changed
                newer = b"".join(event for number, event in self._newest.values() if number > seen)
                seen = self._count
                if newer:
                    yield newer
                try:
                    await asyncio.wait_for(changed.wait(), heartbeat)
                except TimeoutError:
                    yield b":\n\n"


def _encoded(values: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    # JSON in ASCII has no line breaks that could end an event early.
    return {
        name: f"event: {name}\ndata: {json.dumps(value, allow_nan=False)}\n\n".encode()
        for name, value in values.items()
    }


def _app(access: Access, events: _Events, metrics: Metrics) -> Starlette:
    html, policy = page()

    async def show_page(_: Request) -> Response:
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def follow(request: Request) -> Response:
        if events.places.locked():
            return PlainTextResponse("Too many pages are open", 503)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(events.follow(), media_type="text/event-stream")

    return Starlette(
        routes=[Route("/", show_page), Route("/events", follow), Route("/metrics", show_metrics)],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=access.hosts, www_redirect=False),
            Middleware(_TokenMiddleware, access),
        ],
    )


class _TokenMiddleware:
    """Refuses requests without the token, if one is needed. A 401 makes browsers ask for it."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._denied = PlainTextResponse(
            "The token is required, as a password",
            401,
            {"WWW-Authenticate": 'Basic realm="rabbit-chx watch", charset="UTF-8"'},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admitted = self._access.admits(Headers(scope=scope).get("Authorization"))
        await (self._app if admitted else self._denied)(scope, receive, send)
