"""Connect to a broker, or to a node that has a certain stream; and replace the connection of a client when it is lost."""

from __future__ import annotations

import math
import random
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from rabbit_chx.base.timeouts import CONNECT, HEARTBEAT_OF_CALLER, share_of
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.guards import Guard
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams.protocol.answers import Node, reason
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.handshake import WRONG_PORT
from rabbit_chx.streams.protocol.permissions import publishing, reading

_TRIES: Final = 60
"""The maximum number of connections to find a node with the stream, through all addresses together.

With seven nodes behind a load balancer, 20 connections miss a given node in 5% of cases, 60 in 0.01%. There is a limit
because the nodes of the addresses may all lack the stream: each attempt would burden them for the whole timeout.
"""
_Opened: TypeAlias = Callable[..., StreamConnection]
"""Connects to an address, or gives up ``give_up_at`` a time of the monotonic clock."""


def connect(
    url: str | BrokerUrl | Sequence[str | BrokerUrl],
    *,
    stream: str | None = None,
    leader: bool = False,
    follow_advertised: bool = False,
    timeout: float = CONNECT,
    heartbeat: int = HEARTBEAT_OF_CALLER,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
    connection_name: str = "rabbit-chx",
) -> StreamConnection:
    """Connect to the stream port of a broker.

    Args:
        url: ``rabbitmq-stream://user:password@host:5552/vhost`` or ``rabbitmq-stream+tls://``. An ``amqp://`` or ``amqps://``
            URL means the same host, user and virtual host, and port 5552 or 5551. Several are tried in turn.
        stream: connect to a node that has this stream.
        leader: connect to the leader of that stream, as publishers need.
        follow_advertised: connect to the address that such a node advertises. By default `connect` tries the addresses of the URLs
            several times, because a load balancer may lead to another node each time.
        timeout: seconds for opening a connection, which the addresses share, and for each answer; while data arrives before an answer, up
            to 60 times as long.
        heartbeat: the heartbeat interval in seconds, if the URL does not contain it; 0 disables heartbeats. The broker may ask for a
            shorter one.
        credentials: returns user and password, if the URL does not contain them.
        tls: the context for TLS; by default the certificate and the host name are verified.
        connection_name: the connection's name in the broker's list.

    Raises:
        StreamUnavailable: the connection did not open; the message has the reason.
    """
    return connect_until(
        math.inf,
        url,
        stream=stream,
        leader=leader,
        follow_advertised=follow_advertised,
        timeout=timeout,
        heartbeat=heartbeat,
        credentials=credentials,
        tls=tls,
        connection_name=connection_name,
    )


def connect_until(
    give_up_at: float,
    url: str | BrokerUrl | Sequence[str | BrokerUrl],
    *,
    stream: str | None = None,
    leader: bool = False,
    follow_advertised: bool = False,
    timeout: float,
    **options: Any,
) -> StreamConnection:
    """Connect as `connect` does, before a time of the monotonic clock; the connection waits no longer than that for anything."""
    opened: _Opened = partial(StreamConnection, timeout=timeout, **options)
    if stream is not None:
        opened = partial(_with_stream, opened, stream=stream, leader=leader, follow=follow_advertised)
    connection = _first(opened, BrokerUrl._several(url, streams=True), timeout, give_up_at)
    connection._give_up_at(give_up_at)
    return connection


def _first(opened: _Opened, urls: Sequence[BrokerUrl], timeout: float, give_up_at: float) -> StreamConnection:
    """Try each address until one opens; then those again that led to a node without the stream.

    They share the time, so that one that does not answer leaves time for the others.
    """
    deadline = min(time.monotonic() + timeout, give_up_at)
    failed: dict[BrokerUrl, StreamUnavailable] = {}
    left = urls
    for _ in range(max(_TRIES // len(urls), 1)):
        for number, url in enumerate(left):
            now = time.monotonic()
            share = share_of(deadline - now, len(left) - number, timeout)
            try:
                return opened(url, give_up_at=min(now + share, give_up_at))
            except StreamUnavailable as error:
                failed[url] = error
        left = [url for url in left if isinstance(failed[url], _WrongNode)]
        if not left or time.monotonic() > deadline:
            break
    errors = failed.values()
    told = next((error for error in errors if not error.permanent), failed[urls[-1]])
    kind = OnOtherNode if all(isinstance(error, OnOtherNode) for error in errors) else StreamUnavailable
    raise kind("; ".join(map(str, errors)), told.problem, told.stream)


class OnOtherNode(StreamUnavailable):
    """A node has the stream, but no address leads to it."""


class _WrongNode(OnOtherNode):
    """An address led to a node without the stream; through a load balancer, the next connection may lead to another node."""


def _with_stream(
    open_at: _Opened, url: BrokerUrl, *, stream: str, leader: bool, follow: bool, give_up_at: float
) -> StreamConnection:
    """Open a connection to a node with the stream: the node at the address, or with ``follow`` one that it names."""
    place = url
    for _ in range(2 if follow else 1):
        connection = open_at(place, give_up_at=give_up_at)
        try:
            nodes = _nodes(connection, stream, leader=leader)
        except BaseException:
            connection.close()
            raise
        if connection.node is None or connection.node in nodes:
            return connection
        connection.close()
        if follow:
            chosen = random.choice(nodes)  # noqa: S311 - it spreads the readers
            place = replace(url, host=chosen.host, port=chosen.port)
        if time.monotonic() > give_up_at:
            break
    what = "its leader" if leader else "a replica"
    hint = "" if follow else "; follow_advertised=True (in Spark, followAdvertised) connects to it directly"
    raise (OnOtherNode if follow else _WrongNode)(
        f"no connection to {url} led to a node with {what} of stream {stream!r}, which is on {nodes[0]}{hint}",
        "not available",
        stream,
    )


def no_such_stream(connection: StreamConnection, stream: str) -> StreamUnavailable:
    """The error for a stream that a node does not know."""
    return StreamUnavailable(
        f"virtual host {connection.url.vhost!r} has no stream {stream!r}: it does not exist, or is a queue of another "
        "type or a super stream",
        "no such stream",
        stream,
    )


def _nodes(connection: StreamConnection, stream: str, *, leader: bool) -> Sequence[Node]:
    found = connection.metadata([stream])[stream]
    if not found.exists:
        raise no_such_stream(connection, stream)
    # RabbitMQ 4.3 hides streams on which the user has no permission.
    if reason(found.code)[0] == "permission":
        access = publishing(stream, named=False) if leader else reading(stream)
        why = access(connection.url.vhost, connection.user)
        raise StreamUnavailable(
            f"the broker at {connection.url} refused Metadata for stream {stream!r}: {why}",
            "permission",
            stream,
        )
    nodes = ((found.leader,) if found.leader else ()) if leader else found.nodes
    if not nodes:
        raise StreamUnavailable(f"stream {stream!r} has no leader at the moment", "not available", stream)
    return nodes


def again(connect: Callable[[float], StreamConnection], give_up_at: float) -> StreamConnection:
    """Connect before a time of the monotonic clock, where a connection has opened before: the port is right."""
    try:
        return connect(give_up_at)
    except StreamUnavailable as error:
        raise StreamUnavailable(str(error).replace(WRONG_PORT, ""), error.problem, error.stream) from None


class Link:
    """The connection of a client: opened when asked, and only used in its own thread and process."""

    def __init__(self, client: str, connect: Callable[[float], StreamConnection]) -> None:
        self._connect = connect
        self._guard = Guard(client, one_thread=True)
        self._connection: StreamConnection | None = None

    @property
    def _is_open(self) -> bool:
        """Whether this process has opened the client, and not closed it."""
        return self._connection is not None and not self._guard.inherited

    def open(self) -> None:
        """Connect, unless the client is open already."""
        if self._is_open:
            self._guard.check()
            return
        self._connection = None
        self._guard.closed()
        self._connection = self._connect(math.inf)
        self._guard.opened()

    @property
    def connection(self) -> StreamConnection:
        """The connection, which may be lost.

        Raises:
            InvalidValue: the client is not open, or belongs to another thread or process.
        """
        self._guard.check_open()
        assert self._connection is not None
        return self._connection

    def replace(self) -> StreamConnection:
        """Close the connection and open another one."""
        self.connection.close()
        self._connection = again(self._connect, math.inf)
        return self._connection

    def close(self) -> None:
        """Close the connection. A second call does nothing, and neither does a call in a forked child."""
        if self._is_open:
            self.connection.close()
            self._connection = None
            self._guard.closed()
