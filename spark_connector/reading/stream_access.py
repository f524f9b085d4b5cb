"""Ask the broker, from the driver, for the streams of a read and for their bounds.

A connection stays open between micro-batches. After losing a connection, the driver tries to reconnect for ``reconnectTimeoutMs``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import Final, TypeAlias, TypeVar

from rabbit_chx import AnyOf, RabbitChxError, SuperStream
from rabbit_chx.base.outages import CALLER_WAITS, Backoff
from rabbit_chx.base.text import sentences
from rabbit_chx.base.timeouts import HEARTBEAT_OF_CALLER
from rabbit_chx.broker import Management, read
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, StreamUnavailable
from rabbit_chx.streams import StreamConnection
from rabbit_chx.streams.ends import Bounds, bounds, offset_at, stored_at
from rabbit_chx.streams.protocol.opening import OnOtherNode
from rabbit_chx.topology import Observed, ToExchange, Topology
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.routes import Router
from spark_connector.connections import connected, management_of, partitions
from spark_connector.reading.options import ReadOptions, no_keys
from spark_connector.reading.positions import EARLIEST, LATEST, Position, Positions
from spark_connector.worker import outage_of

_PAUSE_SECONDS: Final = 0.5
"""Between two questions to a replica that lags behind."""
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
        self._asked = 0.0
        """When they were used last."""
        self._reached: set[str] = set()
        """The streams of which a replica has been reached, and ``""`` once the connection for the others has opened."""
        self._outage = outage_of(f"read of {options.source}", options.timeouts.reconnect)
        self._backoff = Backoff(CALLER_WAITS)
        self._types: dict[str, str] = {}
        """The type of each queue in the last list of queues bound to the option ``exchange``."""
        self._listed: _Streams = ((), ())
        self._listed_until = 0.0
        self._list_by = math.inf
        """When a list must succeed again, after one has failed."""

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
        deadline = time.monotonic() + self._options.timeouts.connect
        while (found := self._bounds(stream)).end < least:
            if time.monotonic() >= deadline:
                return self._bounds(stream, at_leader=True)
            time.sleep(_PAUSE_SECONDS)
        return found

    def _bounds(self, stream: str, *, at_leader: bool = False) -> Bounds:
        with _existing("stream", stream, "Read a super stream with the option superStream"):
            return self._ask(partial(bounds, stream=stream), stream, at_leader=at_leader)

    def stored_at(self, stream: str, offset: int) -> int | None:
        """Return when the broker stored the message at an offset, or None if the stream has no message there."""
        return self._ask_replica(partial(stored_at, stream=stream, offset=offset), stream)

    def _offset(self, stream: str, position: Position, found: Bounds) -> int:
        if isinstance(position, int):
            return position
        if isinstance(position, str):
            return {EARLIEST: found.first, LATEST: found.end}[position]
        at_time = self._ask_replica(partial(offset_at, stream=stream, when=position), stream)
        return min(at_time, found.end)

    def offsets(self, positions: Positions, found: Mapping[str, Bounds]) -> dict[str, int]:
        """Convert the positions in all streams to offsets, and check them."""
        positions.check_streams(found)
        offsets = {stream: self._offset(stream, positions.of(stream), ends) for stream, ends in found.items()}
        for stream, ends in found.items():
            if offsets[stream] > ends.end:
                expected = f"an offset from {ends.first} to {ends.end}, where the stream ends"
                what = f"offset of stream {stream!r} in option {positions.option}"
                raise InvalidValue(what, offsets[stream], expected)
        return offsets

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
            self._list_by = min(self._list_by, now + self._options.timeouts.reconnect)
            if error.permanent or not self._listed[0] or now > self._list_by:
                hint = "Without the API, name the streams in the option stream"
                raise BrokerUnavailable(sentences(str(error), hint), permanent=error.permanent) from None
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

    def _partitions(self, super_stream: str) -> Sequence[str]:
        with _existing("super stream", super_stream, "Read a stream with the option stream"):
            return self._ask(partial(partitions, super_stream=super_stream))

    def _bound_streams(self, management: Management) -> _Streams:
        """The streams that are bound to the exchange, and those to which it routes the keys."""
        exchange, keys, vhost = self._options.exchange or "", self._options.keys, self._options.urls[0].vhost
        if keys is None:
            observed = Observed(Topology(vhost, bindings=tuple(management.bindings(vhost))))
        else:
            observed = read(management, vhost)
        found = reachable(observed.topology, [ToExchange(exchange)])
        queues = {one for one in found if isinstance(one, str)}
        # A queue that is not bound may be deleted and declared again with another type.
        self._types = {queue: kind for queue, kind in self._types.items() if queue in queues}
        for queue in queues - set(self._types):
            if one := _unless_missing(management.queue, vhost, queue):
                self._types[queue] = one.type
        streams = {queue for queue, kind in self._types.items() if kind == "stream"}
        if not streams:
            expected, hint = f"an exchange of virtual host {vhost!r}", "Pass the names in the option stream"
            if _unless_missing(management.exchange, vhost, exchange):
                expected = "an exchange to which a stream is bound"
                hint = "Bind a stream to it, or pass the names in the option stream"
            raise InvalidValue("option exchange", exchange, expected, hint)
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
        """Ask over the connection for a stream, and try again if the connection is lost or the stream is not available.

        The first attempt to connect is not repeated, and neither is the first one to reach a stream if all addresses lead to
        nodes without it. If the node does not have the stream, connect to one that does. With ``at_leader``, also later questions go to
        the leader, which has all messages of the stream.
        """
        now = time.monotonic()
        if (
            now > self._asked + HEARTBEAT_OF_CALLER
        ):  # the broker has closed, or will close, connections that send no heartbeats
            self.close()
        self._asked = now
        deadline = now + self._options.timeouts.reconnect
        key = stream if at_leader or stream in self._connections else ""
        while True:
            try:
                if at_leader:
                    self._drop(stream)
                    self._connections[stream] = connected(self._options, stream=stream, leader=True)
                answer = question(self._connection(key))
            except StreamUnavailable as error:
                if error.problem == "not available" and key != stream:  # it is on another node: no outage
                    key = stream
                    continue
                unknown = key not in self._reached and (not key or isinstance(error, OnOtherNode))
                if error.permanent or (unknown and not at_leader):
                    raise
                self._outage.failed(error)
                self._drop(key)
                if time.monotonic() > deadline:
                    raise
            else:
                self._outage.ended()
                self._backoff.works()
                return answer
            time.sleep(self._backoff.failed())

    def _ask_replica(self, question: Callable[[StreamConnection], _T], stream: str) -> _T:
        """Ask what only a node with the stream knows: since RabbitMQ 4.3, other nodes also know where it begins and ends."""
        answer = self._ask(question, stream)
        self._reached.add(stream)
        return answer

    def _connection(self, key: str) -> StreamConnection:
        if key not in self._connections:
            self._connections[key] = connected(self._options, stream=key or None)
            self._reached.add(key)
        return self._connections[key]

    def _drop(self, key: str) -> None:
        if connection := self._connections.pop(key, None):
            with suppress(RabbitChxError):
                connection.close()


def streams_of_keys(keys: Iterable[str], observed: Observed, exchange: str) -> set[str]:
    """The queues to which an exchange routes messages with these routing keys, computed by the mirror.

    Raises:
        InvalidValue: the route depends on more than the key, or on the unknown order of a ring.
    """
    chosen, topology = tuple(keys), observed.topology
    exchanges = [one for one in reachable(topology, [ToExchange(exchange)]) if isinstance(one, ToExchange)]
    for name in sorted(one.name for one in exchanges):
        known = topology.exchange(name)
        if known and (
            known.type == "headers" or known.hash_header is not None or known.hash_property is not None
        ):
            reason = f"Exchange {name!r} does not route by the routing key"
            raise no_keys(chosen, f"exchange {exchange!r}", reason)
    router = Router(topology, release=observed.release, rings=observed.rings)
    try:
        found = [one for key in chosen for one in router.route(exchange, key)]
    except RabbitChxError as error:
        raise no_keys(chosen, f"exchange {exchange!r}", str(error)) from None
    return {str(name) for one in found for name in (one.destinations if isinstance(one, AnyOf) else [one])}


def _unless_missing(get: Callable[[str, str], _T], vhost: str, name: str) -> _T | None:
    """A queue or an exchange; None if the broker does not have it, or no longer."""
    try:
        return get(vhost, name)
    except BrokerUnavailable as error:
        if not error.permanent:
            raise
        return None  # the API has just listed the bindings, so the user may read the virtual host


@contextmanager
def _existing(what: str, name: str, otherwise: str) -> Iterator[None]:
    """Explain that the broker does not have a stream."""
    try:
        yield
    except StreamUnavailable as error:
        if error.problem != "no such stream":
            raise
        hint = f"{otherwise}, or a queue with the option queue. If the {what} was deleted, start the query with a new checkpoint"
        raise InvalidValue(f"name of a {what}", name, f"a {what} in the virtual host", hint) from None
