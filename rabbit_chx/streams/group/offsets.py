"""The offsets that the broker stores for a group, in the streams themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from time import monotonic, sleep
from typing import Final, Self

from rabbit_chx.base.text import listed
from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.streams.ends import bounds, committed_chunk, last_chunk, offset_at
from rabbit_chx.streams.group.places import in_order
from rabbit_chx.streams.group.settings import Position, name_beside
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.requests import OffsetSpec

_MARK: Final = "known"
_READ_BACK: Final = 5.0
"""Seconds until a stored offset must be there."""
_STORE_AGAIN: Final = 1.0
_PAUSE: Final = 0.005


def first_of(connection: StreamConnection, stream: str, position: Position) -> int:
    """Return the offset with which a group begins at a position of a stream as it is now."""
    if isinstance(position, datetime):
        return offset_at(connection, stream, position)
    if isinstance(position, int):
        return _within(connection, stream, position)
    if position == "next":
        return bounds(connection, stream).end
    return last_chunk(connection, stream) if position == "last" else 0


def _within(connection: StreamConnection, stream: str, offset: int) -> int:
    """Raise if an offset is beyond the end."""
    if (end := end_before(connection, stream, offset)) is not None:
        hint = "Was the stream deleted and created again?"
        raise InvalidValue("offset", offset, f"at most {end}, the end of stream {stream!r}", hint)
    return offset


def end_before(connection: StreamConnection, stream: str, offset: int) -> int | None:
    """The end of a stream if an offset is beyond it, else None. A replica knows the end a moment later than the leader."""
    until = monotonic() + _READ_BACK
    while offset > (end := bounds(connection, stream).end):
        if connection.node == connection.metadata([stream])[stream].leader or monotonic() > until:
            return end
        sleep(_PAUSE)
    return None


def stored_in(connection: StreamConnection, group: str, stream: str) -> tuple[int | None, bool]:
    """The stored offset of a group, and whether it ever had one."""
    # The mark is stored after the first offset, so it is asked for before.
    known = connection.query_offset(name_beside(group, _MARK), stream) is not None
    return connection.query_offset(group, stream), known


def store(connection: StreamConnection, group: str, stream: str, offset: int, *, mark: bool) -> None:
    """Store an offset, and a mark that there is one.

    The broker forgets offsets whose messages retention has removed (osiris_tracking:snapshot/3), but never -1.
    """
    connection.store_offset(group, stream, offset)
    if mark:
        connection.store_offset(name_beside(group, _MARK), stream, -1)


def wait_until_stored(
    connection: StreamConnection, group: str, stream: str, offset: int, before: int | None
) -> int | None:
    """Wait until the broker returns an offset that was stored. It answers neither the request to store it nor refuses it.

    While the leader of the stream moves, the broker may drop the request, so it is repeated.

    Returns:
        None, or the offset that another client stores again and again: one that is not ``before``, which was stored earlier.
    """
    until = monotonic() + _READ_BACK
    again = monotonic() + _STORE_AGAIN
    while (found := connection.query_offset(group, stream)) != offset:
        if monotonic() > again:
            connection.store_offset(group, stream, offset)
            again = monotonic() + _STORE_AGAIN
        if monotonic() > until:
            if found not in {None, before}:
                return found
            raise not_stored(group, [stream])
        sleep(_PAUSE)
    return None


def not_stored(group: str, streams: Sequence[str]) -> StreamUnavailable:
    """The error for offsets that the broker does not store."""
    return StreamUnavailable(
        f"the broker did not store the offset of group {group!r} in {listed(streams, 'stream')}; its log says why, such as a "
        "missing permission on the stream",
        "permission",
        streams[0],
    )


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Where a stream begins and ends, and how far a group came."""

    stream: str
    first: int
    end: int
    stored: int | None
    """The last handled offset that is stored; None without one, and -1 before the first message."""
    lag: int | None
    """The offsets from the next message on, including gaps between messages; None if nothing is stored, or an offset beyond the end."""


class GroupOffsets:
    """The stored offsets of a group whose members run elsewhere, if it has any. For one thread, in a ``with`` block.

    ``connect`` opens a connection to a node that has a stream, or to any node for None.
    """

    def __init__(self, name: str, connect: Callable[[str | None], StreamConnection]) -> None:
        self._name = name
        self._connect = connect
        self._connections: list[StreamConnection] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._open(None)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self, stream: str | None) -> StreamConnection:
        connection = self._stack.enter_context(self._connect(stream))
        self._connections.append(connection)
        return connection

    def _with(self, stream: str) -> StreamConnection:
        """A connection to a node that has a stream."""
        for connection in self._connections:
            if connection.node is None or connection.node in connection.metadata([stream])[stream].nodes:
                return connection
        return self._open(stream)

    def streams_of(self, exchange: str) -> Sequence[str]:
        """The streams of a super stream or of another exchange."""
        return in_order(self._connections[0].partitions(exchange))

    def read(self, stream: str) -> PartitionOffsets:
        """The group's position in a stream."""
        connection = self._with(stream)
        found, stored, lag = bounds(connection, stream), connection.query_offset(self._name, stream), None
        if stored is not None and (stored < found.end or end_before(connection, stream, stored + 1) is None):
            # A stored offset is an entry of the stream itself, so that the end alone would show a lag of 1.
            following = committed_chunk(connection, stream, OffsetSpec.offset(stored + 1))
            lag = max(0, found.end - max(stored + 1, following.first_offset)) if following else 0
        return PartitionOffsets(stream, found.first, found.end, stored, lag)

    def before(self, stream: str, position: Position) -> int:
        """The offset to store so that the group begins at a position: -1 for the first message that is left then."""
        return first_of(self._with(stream), stream, position) - 1

    def store(self, stream: str, offset: int) -> None:
        """Store an offset, and wait until the broker returns it. A running member would replace it."""
        connection = self._with(stream)
        before = connection.query_offset(self._name, stream)
        store(connection, self._name, stream, offset, mark=True)
        if wait_until_stored(connection, self._name, stream, offset, before) is not None:
            raise StreamUnavailable(
                f"another client, such as a member that runs, stores offsets of group {self._name!r} in stream {stream!r}: stop all "
                "members first",
                "refused",
                stream,
            )
