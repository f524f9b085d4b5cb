"""Ask the broker, from the driver, for the streams of a read and for their bounds.

A connection stays open between micro-batches. After losing a connection, the driver tries to reconnect for ``reconnectTimeoutMs``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Final, Self, TypeAlias, TypeVar

from rabbit_chx import RabbitChxError, SuperStream
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, StreamUnavailable
from rabbit_chx.streams import Bounds, StreamConnection, StreamReader, bounds, stored_at
from rabbit_chx.topology import Management, Observed, Topology, read
from spark_connector.connections import connected, management_of, stream_reader
from spark_connector.logs import Outage
from spark_connector.reading.options import ReadOptions
from spark_connector.reading.positions import EARLIEST, LATEST, Position, Positions
from spark_connector.reading.stream_keys import bound_queues, streams_of_keys

_PAUSE_SECONDS: Final = 0.5
_LISTED_SECONDS: Final = 5.0
"""How long to use a list from the management API: Spark asks an idle query for its end up to a hundred times a second."""
_T = TypeVar("_T")
_Streams: TypeAlias = tuple[Collection[str], Collection[str]]
"""All streams of a source, and the streams that can hold the keys (all without the option ``keys``)."""


class StreamAccess:
    """The streams of a read, over connections that are opened when they are first used."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connections: dict[str, StreamConnection] = {}
        """By stream for streams on other nodes; under ``""`` for all others."""
        self._was_open = False
        self._outage = Outage(f"read of {options.source}", options.reconnect_timeout_ms)
        self._types: dict[str, str] = {}
        """The type of each queue that was bound to the option ``exchange``."""
        self._listed: _Streams = ((), ())
        self._listed_until = 0.0
        self._list_by = math.inf
        """When a list must succeed again, after one has failed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            with suppress(RabbitChxError):
                connection.close()

    def chosen(self, kept: Iterable[str] = ()) -> list[str]:
        """Return the streams to read, sorted. With the option ``keys``, these are the streams that can hold the keys or are in ``kept``."""
        names, holding = self._sources()
        return sorted(set(names) & {*holding, *kept})

    def bounds(self, streams: Iterable[str], reached: Mapping[str, int] | None = None) -> dict[str, Bounds]:
        """The first offset of each stream, and its end.

        Ask again while a stream ends before the offset in ``reached``, and at last ask its leader: after the leader has moved, a
        replica can lag behind the replica that answered before.
        """
        return {stream: self._bounds_from(stream, (reached or {}).get(stream, 0)) for stream in streams}

    def _bounds_from(self, stream: str, least: int) -> Bounds:
        deadline = time.monotonic() + self._options.connection_timeout_ms / 1000
        while (found := self._bounds(stream)).end < least:
            if time.monotonic() >= deadline:
                return self._bounds(stream, at_leader=True)
            time.sleep(_PAUSE_SECONDS)
        return found

    def _bounds(self, stream: str, *, at_leader: bool = False) -> Bounds:
        try:
            return self._ask(partial(bounds, stream=stream), stream, at_leader=at_leader)
        except StreamUnavailable as error:
            if error.problem != "no such stream":
                raise
            raise _missing("stream", stream, "Read a super stream with the option superStream") from None

    def stored_at(self, stream: str, offset: int) -> int | None:
        """Return when the broker stored the message at an offset, or None if the stream has no message there."""
        return self._ask(partial(stored_at, stream=stream, offset=offset), stream)

    def offset(self, stream: str, position: Position, found: Bounds) -> int:
        """Convert a position in a stream to an offset."""
        if isinstance(position, int):
            return position
        if isinstance(position, str):
            return {EARLIEST: found.first, LATEST: found.end}[position]
        with stream_reader(self._options, stream) as reader:
            return min(reader.offset_at(position), found.end)

    def offsets(self, positions: Positions, option: str, found: Mapping[str, Bounds]) -> dict[str, int]:
        """Convert the positions in all streams to offsets."""
        positions.check_streams(option, found)
        return {stream: self.offset(stream, positions.of(stream), ends) for stream, ends in found.items()}

    # -- the streams of the source -------------------------------------------------------------------

    def _sources(self) -> _Streams:
        options, keys = self._options, self._options.keys
        if options.stream is not None:
            return options.stream, options.stream
        if options.super_stream is not None:
            names = self._partitions(options.super_stream)
            return names, names if keys is None else set(map(SuperStream(names).route, keys))
        if time.monotonic() >= self._listed_until:
            self._list_again()
        return self._listed

    def _list_again(self) -> None:
        """List the streams of the exchange. If no API answers, use the last list, for ``reconnectTimeoutMs`` at most."""
        try:
            self._listed, self._list_by = self._list(), math.inf
        except BrokerUnavailable as error:
            now = time.monotonic()
            self._list_by = min(self._list_by, now + self._options.reconnect_timeout_ms / 1000)
            if error.permanent or not self._listed[0] or now > self._list_by:
                hint = "Without the API, name the streams in the option stream"
                raise BrokerUnavailable(f"{error}. {hint}", permanent=error.permanent) from None
        self._listed_until = time.monotonic() + _LISTED_SECONDS

    def _list(self) -> _Streams:
        """Ask one API after the other until one answers."""
        *others, last = self._managements
        for management in others:
            try:
                return self._bound_streams(management)
            except BrokerUnavailable as error:
                if error.permanent:
                    raise
        return self._bound_streams(last)

    def _partitions(self, super_stream: str) -> list[str]:
        try:
            return self._ask(lambda connection: connection.partitions(super_stream))
        except StreamUnavailable as error:
            if error.problem != "no such stream":
                raise
            raise _missing("super stream", super_stream, "Read a stream with the option stream") from None

    def _bound_streams(self, management: Management) -> _Streams:
        """The streams that are bound to the exchange, and those to which it routes the keys."""
        exchange, keys, vhost = self._options.exchange or "", self._options.keys, self._options.urls[0].vhost
        if keys is None:
            observed = Observed(Topology(vhost, bindings=tuple(management.bindings(vhost))))
        else:
            observed = read(management, vhost)
        queues = bound_queues(observed.topology, exchange)
        for queue in queues - set(self._types):
            if kind := _type_of(management, vhost, queue):
                self._types[queue] = kind
        streams = {queue for queue in queues if self._types.get(queue) == "stream"}
        if not streams:
            hint = "Bind a stream to it, or pass the names in the option stream"
            raise InvalidValue("option exchange", exchange, "an exchange to which a stream is bound", hint)
        return streams, streams if keys is None else streams_of_keys(keys, observed, exchange)

    @cached_property
    def _managements(self) -> list[Management]:
        """The API of the option ``managementUrl``; by default, the API of each broker."""
        options = self._options
        brokers = options.urls if options.management_url is None else options.urls[:1]
        return [management_of(options, options.management_url, broker) for broker in brokers]

    # -- connections ---------------------------------------------------------------------------------

    def _ask(
        self, question: Callable[[StreamConnection], _T], stream: str = "", *, at_leader: bool = False
    ) -> _T:
        """Ask over the connection for a stream, and reconnect if it is lost. The first attempt to connect is not repeated."""
        deadline = time.monotonic() + self._options.reconnect_timeout_ms / 1000
        while True:
            try:
                if at_leader:
                    self._go_to_leader(stream)
                answer = question(self._connection(stream))
            except StreamUnavailable as error:
                if error.permanent or not self._was_open:
                    raise
                self._outage.failed(error)
                self._drop(stream, elsewhere=error.problem == "not available")
                if time.monotonic() > deadline:
                    raise
            else:
                self._outage.ended()
                return answer
            time.sleep(_PAUSE_SECONDS)

    def _connection(self, stream: str) -> StreamConnection:
        key = stream if stream in self._connections else ""
        if key not in self._connections:
            self._connections[key] = connected(self._options)
            self._was_open = True
        return self._connections[key]

    def _go_to_leader(self, stream: str) -> None:
        """Ask the leader of a stream from now on, which has all its messages."""
        leader = connected(self._options, stream=stream, leader=True)
        if replica := self._connections.get(stream):
            replica.close()
        self._connections[stream] = leader

    def _drop(self, stream: str, *, elsewhere: bool) -> None:
        """Close the connection that failed; if the stream is on another node, open a connection to that node."""
        key = stream if stream in self._connections else ""
        if connection := self._connections.pop(key, None):
            with suppress(RabbitChxError):
                connection.close()
        if elsewhere and stream:
            with suppress(StreamUnavailable):
                self._connections[stream] = connected(self._options, stream=stream)


def open_reader(
    options: ReadOptions, stream: str, columns: tuple[str, ...], name: str, *, leader: bool = False
) -> StreamReader:
    """Prepare a reader of one stream, at the first address that answers; ``name`` is the name of its connection."""
    return stream_reader(options, stream, columns=columns, connection_name=name, leader=leader)


def _type_of(management: Management, vhost: str, queue: str) -> str | None:
    """The type of a queue; None if it was deleted after its bindings were listed."""
    try:
        return management.queue(vhost, queue).type
    except BrokerUnavailable as error:
        if not error.permanent:
            raise
        return None  # the API has just listed the bindings, so the user may read the virtual host


def _missing(what: str, name: str, otherwise: str) -> InvalidValue:
    """The error for a stream that the broker does not have."""
    hint = f"{otherwise}, or a queue with the option queue. If the {what} was deleted, start the query with a new checkpoint"
    return InvalidValue(f"name of a {what}", name, f"a {what} in the virtual host", hint)
