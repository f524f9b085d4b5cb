"""Servers that share one stream, in place of brokers, and a clock, for the tests of `StreamPublisher`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pytest

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams import StreamConnection, StreamPublisher
from rabbit_chx.streams.protocol.answers import Confirms, Node, StreamMetadata
from rabbit_chx.streams.publishing.outlet import Outlet
from tests.patience import PATIENCE, wait_until

FIRST, SECOND = "rabbitmq-stream://first", "rabbitmq-stream://second"


class Servers:
    """Servers that share one stream; those that are down accept no connection."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.refusing: set[str] = set()
        self.opened: list[tuple[str, float]] = []
        """The host and the timeout of each connection."""
        self.stored: dict[int, bytes] = {}
        self.silent = False
        """Whether messages are never confirmed."""
        self.closed = 0
        """How many of the connections the servers have closed."""
        self.waits: set[float] = set()
        """How long clients waited until the server took their frames."""
        self.connections: list[Connection] = []
        self.streams = 2
        """How many streams a super stream has."""
        self.moved = ""
        """Where a server that does not answer takes the new connections."""

    def close_connections(self) -> None:
        self.closed = len(self.opened)
        self.tell()

    def tell(self) -> None:
        """Let the clients look at their connections."""
        for connection in self.connections:
            connection.tell()


class Connection:
    """A connection to these servers, with the methods of `StreamConnection` that a publisher calls."""

    servers: Servers
    node = None
    frame_max = 1 << 20
    heartbeat = 60.0

    def __init__(self, url: BrokerUrl, *, timeout: float, give_up_at: float, **_: object) -> None:
        if self.servers.moved:
            StreamConnection(self.servers.moved, timeout=timeout, give_up_at=give_up_at)
        self._host, self._arrived = url.host, []
        if url.host in self.servers.refusing:
            raise StreamUnavailable(f"{url.host} refuses", "login")
        if url.host in self.servers.down:
            raise StreamUnavailable(f"{url.host} is down", "unreachable")
        self.servers.opened.append((url.host, timeout))
        self._number = len(self.servers.opened)
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.is_open = True
        self._has_unread = False
        self.servers.connections.append(self)

    def fileno(self) -> int:
        return self._ours.fileno()

    def tell(self) -> None:
        with suppress(OSError):
            self._theirs.send(b"1")

    def close(self) -> None:
        self.is_open = False
        self._ours.close()
        self._theirs.close()

    def _abort(self) -> None:
        self.servers.close_connections()

    def _give_up_at(self, when: float) -> None: ...

    def metadata(self, streams: list[str]) -> dict[str, StreamMetadata]:
        return {name: StreamMetadata(name, Node("first", 5552), ()) for name in streams}

    def partitions(self, name: str, **_: object) -> list[str]:
        return [f"{name}-{number}" for number in range(self.servers.streams)]

    def _declare_publisher(self, _stream: str, _name: str | None) -> int:
        return 0

    def query_publisher_sequence(self, publisher: str, stream: str) -> int:
        assert publisher
        assert stream
        self._check_open()
        return max(self.servers.stored, default=0)

    def _publish(self, _: int, ids: Iterable[int], messages: Iterable[bytes], *, timeout: float) -> None:
        self._check_open()
        self.servers.waits.add(timeout)
        sent = dict(zip(ids, messages, strict=True))
        self._arrived += sent
        self.servers.stored |= sent
        self.tell()

    def _confirms(self, timeout: float) -> Iterator[Confirms]:
        self._check_open()
        with suppress(BlockingIOError):
            self._ours.recv(1 << 10)
        if self._arrived and not self.servers.silent:
            arrived, self._arrived = self._arrived, []
            yield Confirms(0, tuple(arrived))

    def _check_open(self) -> None:
        if not self.is_open or self._host in self.servers.down or self._number <= self.servers.closed:
            raise StreamUnavailable("the connection was lost", "lost")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    found = Servers()
    monkeypatch.setattr(Connection, "servers", found, raising=False)
    monkeypatch.setattr("rabbit_chx.streams.protocol.opening.StreamConnection", Connection)
    yield found
    for connection in found.connections:
        connection.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Time that passes only between two attempts to connect, so that there is another one before it is over."""
    now = [time.monotonic()]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("rabbit_chx.streams.publishing.outlet.time", clock)
    monkeypatch.setattr(Outlet, "_pause", lambda *_: sleep(0.1))
    return clock.monotonic


def lose(publisher: StreamPublisher, servers: Servers) -> None:
    """Close the connection of a publisher that has nothing to send, and wait until it has noticed."""
    servers.close_connections()
    wait_until(lambda: publisher._pipeline.outboxes[0].trouble, "the loss is noticed")


def delayed(
    monkeypatch: pytest.MonkeyPatch, call: str, stream: str = ""
) -> tuple[threading.Event, threading.Event]:
    """Let a call to the servers, about this stream or any, wait; return events that it has begun and that it may go on."""
    begun, goes_on, found = threading.Event(), threading.Event(), getattr(Connection, call)

    def late(*given: object, **more: object) -> object:
        if not stream or stream in given:
            begun.set()
            goes_on.wait(PATIENCE)
        return found(*given, **more)

    monkeypatch.setattr(Connection, call, late)
    return begun, goes_on


def opened_without_streams(
    publisher: StreamPublisher, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> tuple[Future[None], threading.Event]:
    """Open a publisher in another thread, which waits for the names of its streams until the event is set."""
    asked, answers = delayed(monkeypatch, "partitions")
    opening = pool.submit(publisher.open)
    wait_until(lambda: asked.is_set() and publisher._pipeline.state == "open", "it is opened")
    return opening, answers
