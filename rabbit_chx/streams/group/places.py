"""The connections of a member: each to a node that has some of the streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from time import monotonic
from typing import Final

from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.streams.group.lanes import StreamLane
from rabbit_chx.streams.group.settings import StreamSettings, check_release
from rabbit_chx.streams.protocol.answers import ConsumerUpdate, StreamMetadata
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.requests import MAX_IDS, OffsetSpec

_MOMENT: Final = 0.1
_PATIENCE: Final = 10.0
"""How long a member waits for the others to join, in seconds: one of them may hang."""

_MOST: Final = MAX_IDS - 1
"""The most streams of a connection: the lock of those that join takes a number, and so does a look at the end of a stream."""
_NUMBERS: Final = (
    "other members may have joined when the stream had another number (x-stream-partition-order): "
    "it passes when they have left the stream, so stop them all at once"
)


class Place:
    """One connection, and the lanes that it serves by the number of their subscription."""

    def __init__(self, connection: StreamConnection, settings: StreamSettings) -> None:
        check_release(connection.release)
        self.connection: Final = connection
        self.lanes: Final[dict[int, StreamLane]] = {}
        self._settings = settings

    def is_for(self, stream: str) -> bool:
        """Whether this node has a replica of a stream, or no node has one."""
        found = self.connection.metadata([stream])[stream]
        return not found.exists or self._is_here(found)

    def _is_here(self, found: StreamMetadata) -> bool:
        return self.connection.node is None or self.connection.node in found.nodes

    @contextmanager
    def joining(self, stream: str, is_stopped: Callable[[], bool]) -> Iterator[None]:
        """Join while no other member does, so that the broker has the members in the same order in each stream.

        A group of its own is the lock: the broker activates its next consumer when this one unsubscribes or is lost. Errors
        are not raised here, since subscribing without the lock meets the same ones.
        """
        lock, until = None, monotonic() + _PATIENCE
        with suppress(StreamUnavailable):
            properties = self._settings.joining_properties
            lock = self.connection._subscribe(stream, OffsetSpec.next(), credit=0, properties=properties)
            while not is_stopped() and monotonic() < until:
                for event in islice(self.connection._events(_MOMENT), 1):
                    if isinstance(event, ConsumerUpdate) and event.subscription == lock and event.active:
                        self.connection._answer_update(event, OffsetSpec.next())
                        until = 0.0
        try:
            yield
        finally:
            if lock is not None:
                with suppress(StreamUnavailable):
                    self.connection._unsubscribe(lock)

    def serve(
        self, lanes: Iterable[StreamLane], missing: Callable[[StreamConnection, StreamLane], object]
    ) -> None:
        """Subscribe to those streams of which this node has a replica; report those that do not exist."""
        wanted = {lane.stream: lane for lane in lanes}
        if not wanted:
            return
        found, refused = self.connection.metadata(wanted), None
        for stream, lane in wanted.items():
            lane.nodes = frozenset(found[stream].nodes)
            if not found[stream].exists:
                missing(self.connection, lane)
            elif self._is_here(found[stream]) and len(self.lanes) < _MOST:
                try:
                    self._subscribe(lane)
                except StreamUnavailable as error:
                    if error.permanent or not self.connection.is_open:
                        raise
                    refused = error  # the node may serve the others
        if refused is not None:
            raise refused

    def _subscribe(self, lane: StreamLane) -> None:
        credit, properties = self._settings.credit, self._settings.properties
        try:
            # The answer to the broker's question says where to start, not this.
            number = self.connection._subscribe(
                lane.stream, OffsetSpec.next(), credit=credit, properties=properties
            )
        except StreamUnavailable as error:
            if error.problem != "refused" or self._settings.exchange is None:
                raise
            raise StreamUnavailable(f"{error}; {_NUMBERS}", "not available", lane.stream) from None
        lane.subscription, lane.ahead = number, credit
        self.lanes[number] = lane

    def top_up(self, lane: StreamLane) -> None:
        """Let the broker send as many chunks as the handler has taken."""
        window = self._settings.credit
        lack = window - lane.ahead - len(lane.waiting)
        if lane.subscription is not None and lack >= max(window // 4, 1):
            self.connection._credit(lane.subscription, lack)
            lane.ahead += lack

    def forget(self, stream: str) -> StreamLane | None:
        """Return the lane of a stream that this node does not serve any more.

        If the node has only refused a request, its active consumer would otherwise remain the subscription that is forgotten.
        """
        for number, lane in self.lanes.items():
            if lane.stream == stream:
                lane.subscription = None
                del self.lanes[number]
                with suppress(StreamUnavailable):  # the broker may have removed it
                    self.connection._unsubscribe(number)
                return lane
        return None

    def close(self) -> list[StreamLane]:
        """Close the connection, and return its lanes."""
        self.connection.close()
        lanes = list(self.lanes.values())
        self.lanes.clear()
        for lane in lanes:
            lane.subscription = None
        return lanes


def in_order(streams: Iterable[str]) -> list[str]:
    """Sort streams by the number at the end of their names: members that join in the same order get equal shares."""

    def place(stream: str) -> tuple[str, int, str]:
        head, _, tail = stream.rpartition("-")
        return (head, int(tail), "") if head and tail.isdecimal() else (stream, 0, stream)

    return sorted(streams, key=place)


def is_gone(error: BrokerUnavailable) -> bool:
    """Whether a stream does not exist."""
    return isinstance(error, StreamUnavailable) and error.problem == "no such stream"
