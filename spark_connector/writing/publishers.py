"""The publishers of a Python worker: at most one for each query and set of options, kept between tasks, closed when idle.

Spark reuses its Python workers, each for one task at a time. A stateful stream runs hundreds of small tasks a minute,
and a connection for each would burden the broker with handshakes. The publisher's own thread keeps a connection alive
and reconnects it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from rabbit_chx import RabbitChxError, SuperStream, publishing
from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import StreamPublisher
from rabbit_chx.streams.protocol.permissions import routing
from spark_connector.connections import connected, credentials_of, names_port, partitions, tls_of, to_streams
from spark_connector.worker import show
from spark_connector.writing.options import WriteOptions

_IDLE_SECONDS: Final = 30.0
"""Less than the minute after which Spark kills an idle worker, so that the connection is closed properly."""
FLUSH_SECONDS: Final = 1.0
"""For the confirms of a publisher whose task has failed."""
_REUSED: Final = "SPARK_REUSE_WORKER"
"""Spark sets this variable if a worker outlives its task."""

_kept: dict[tuple[Any, ...], tuple[Publisher, float]] = {}
"""The idle publishers, and the time at which each became idle."""
_watched: set[tuple[Any, ...]] = set()
"""The keys whose publishers have a timer. Many tasks share a timer: starting a thread takes a third of a small task."""
_guard = threading.Lock()


def borrow(options: WriteOptions, name: str, query_id: str = "") -> Publisher:
    """The publisher kept from an earlier task of the query, if it still works; else a new one, connected under this name."""
    with _guard:
        publisher, _ = _kept.pop((query_id, *options.connection), (None, 0.0))
    if publisher is not None:
        if publisher.error is None:
            return publisher
        discard(publisher)
    publisher = Publisher(
        options.urls,
        properties=None if options.persistent else {"delivery_mode": 1},
        max_in_flight=options.max_in_flight,
        max_message_bytes=options.max_message_bytes,
        timeouts=replace(
            options.timeouts,
            retry=options.retry_timeout_ms / 1000,
            confirm=options.confirm_timeout_ms / 1000,
            blocked=options.blocked_timeout_ms / 1000,
        ),
        heartbeat=options.heartbeat_seconds,
        credentials=credentials_of(options),
        tls=tls_of(options),
        connection_name=name,
    )
    publisher.open()
    return publisher


def give_back(options: WriteOptions, publisher: Publisher, query_id: str) -> None:
    """Keep a publisher without unconfirmed messages for later tasks of the query, until it has been idle for a while."""
    if not os.environ.get(_REUSED):
        publisher.close()
        return
    key = (query_id, *options.connection)
    with _guard:
        _kept[key] = (publisher, time.monotonic())
        unwatched = key not in _watched
        _watched.add(key)
    if unwatched:
        _watch(key, _IDLE_SECONDS)


def _watch(key: tuple[Any, ...], seconds: float) -> None:
    timer = threading.Timer(seconds, _close_idle, [key])
    timer.daemon = True
    timer.start()


def _close_idle(key: tuple[Any, ...]) -> None:
    """Close a publisher that has been idle long enough; check again later if it was used since."""
    with _guard:
        publisher, since = _kept.get(key, (None, 0.0))
        left = since + _IDLE_SECONDS - time.monotonic()
        if publisher is None or left <= 0:
            _kept.pop(key, None)
            _watched.discard(key)
    if publisher is None:  # a task is using the publisher; give_back starts another timer
        return
    if left > 0:
        _watch(key, left)
    else:
        discard(publisher)


def discard(publisher: Publisher) -> None:
    """Close a publisher whose failures have been, or are about to be, reported."""
    with suppress(RabbitChxError):
        publisher.close(timeout=FLUSH_SECONDS)


def check_target(options: WriteOptions) -> None:
    """Check that the exchange or the streams of a write exist and that the user may publish to them."""
    if options.to_streams:
        check_streams(options)
    else:
        check_access(options, [] if options.exchange is None else [options.exchange])


def check_access(options: WriteOptions, exchanges: Iterable[str]) -> None:
    """Connect as the write will, and check that the user may publish to these exchanges. Nothing is published."""
    publishing.check_access(
        options.urls,
        exchanges,
        connection_name=f"{options.connection_name} check",
        timeout=options.timeouts.connect,
        credentials=credentials_of(options),
        tls=tls_of(options),
    )


def check_streams(options: WriteOptions) -> None:
    """Check that each stream exists, that the user may publish to it as the write will, and that this machine can select one by its key."""
    streams = streams_of(options)
    if options.super_stream is not None:
        SuperStream(streams).route("")
    # With a name, a publisher asks for its last id, which needs the read permission.
    producer = "check" if options.exactly_once else None
    for stream in streams:
        open_publisher(options, stream, producer, f"{options.connection_name} check").close()


def streams_of(options: WriteOptions) -> Sequence[str]:
    """Return the stream, or the partitions of the super stream."""
    if options.super_stream is None:
        return [options.stream or ""]
    with connected(options) as connection:
        access = routing(options.super_stream, named=options.exactly_once)
        return partitions(connection, options.super_stream, access)


def last_ids(
    options: WriteOptions, streams: Sequence[str], producers: Sequence[str]
) -> dict[tuple[str, str], int]:
    """Return the last publishing id that each stream remembers for each producer name; each node asks the leaders."""
    if not streams:
        return {}
    with connected(options) as connection:
        return {
            (stream, producer): connection.query_publisher_sequence(producer, stream)
            for stream in streams
            for producer in producers
        }


def open_publisher(options: WriteOptions, stream: str, producer: str | None, name: str) -> StreamPublisher:
    """Connect to the leader of a stream; ``name`` is the name of the connection."""
    show("rabbit_chx.streams")
    timeouts = replace(options.timeouts, confirm=options.confirm_timeout_ms / 1000)
    publisher = to_streams(
        options, StreamPublisher, stream=stream, name=producer, connection_name=name, timeouts=timeouts
    )
    with names_port(options):
        publisher.open()
    return publisher
