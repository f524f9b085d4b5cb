"""Where a stream begins and ends, on every release.

Offsets have gaps: the broker stores the offsets of consumers and the names of publishers in separate chunks, and never delivers
them. So the last message may be before ``end - 1``, and a stream may have fewer messages than ``end - first``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rabbit_chx.base.limits import as_integer
from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.mirror.fields import EPOCH, MILLISECOND
from rabbit_chx.streams.messages.chunks import Chunk, parse_chunk
from rabbit_chx.streams.protocol.answers import StreamStats
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.requests import OffsetSpec

_PAUSE: Final = 0.05
"""Seconds between two requests."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of offsets of a stream. It contains every committed message, and gaps."""

    first: int
    end: int
    """The offset after the last one."""


def bounds(connection: StreamConnection, stream: str) -> Bounds:
    """Return where a stream begins and ends at the moment.

    Raises:
        StreamUnavailable: the stream does not exist, or the user has no permission to read it.
    """
    if not connection.has_stats:
        return _bounds_by_chunks(connection, stream)
    stats = _stats(connection, stream)
    first, last = stats.first_chunk_id or 0, stats.committed_chunk_id
    if last is None:
        return Bounds(first, first)
    if stats.committed_offset is not None:
        return Bounds(first, stats.committed_offset + 1)
    chunk = first_chunk(connection, stream, OffsetSpec.offset(last))
    # A chunk that the broker does not deliver has one offset. A node that lacks the last chunk may send an earlier one.
    return Bounds(first, max(chunk.end if chunk else 0, last + 1))


def end_in(stats: StreamStats) -> int:
    """The end of a stream; before RabbitMQ 4.3, it may be too small by a chunk."""
    last = stats.committed_chunk_id if stats.committed_offset is None else stats.committed_offset
    return 0 if last is None else last + 1


def _stats(connection: StreamConnection, stream: str) -> StreamStats:
    """Ask for the ends of a stream until they are known: after an election, a replica reports the last one with a delay."""
    deadline = time.monotonic() + connection.timeout
    while (stats := connection.stats(stream)).committed_chunk_id is None and stats.first_chunk_id is not None:
        if time.monotonic() > deadline:
            raise _not_committed(stream)
        time.sleep(_PAUSE)
    return stats


def last_chunk(connection: StreamConnection, stream: str) -> int:
    """Return the first offset of the last chunk, or of the last committed one if the last is not committed yet; 0 without one.

    Requires RabbitMQ 3.11.
    """
    # Asked for first: in between, a chunk without messages may be committed behind the last one with messages.
    committed = _stats(connection, stream).committed_chunk_id
    chunk = first_chunk(connection, stream, OffsetSpec.last())
    return chunk.first_offset if chunk else committed or 0


def first_chunk(connection: StreamConnection, stream: str, start: OffsetSpec) -> Chunk | None:
    """Return the first chunk at or after a position; None if the node has none.

    The broker sends a committed chunk before it answers the next request, so this needs no timeout.
    """
    found = connection._unsubscribe(connection._subscribe(stream, start, credit=1))
    return parse_chunk(found[0], stream) if found else None


def nothing_from(connection: StreamConnection, stream: str, offset: int) -> bool:
    """Whether a stream has no chunk at or after an offset. False if the node still lacks committed chunks."""
    # Asked for first: the chunks may arrive in between.
    is_behind = connection.has_stats and connection.stats(stream)._is_behind
    return first_chunk(connection, stream, OffsetSpec.offset(offset)) is None and not is_behind


def committed_chunk(connection: StreamConnection, stream: str, start: OffsetSpec) -> Chunk | None:
    """Return the first chunk at or after a position; None if the stream has none. Wait if the node still lacks committed chunks.

    Raises:
        StreamUnavailable: the node did not get them in time.
    """
    if not connection.has_stats:
        return first_chunk(connection, stream, start)
    deadline, committed = time.monotonic() + connection.timeout, None
    while True:
        stats = _stats(connection, stream)
        committed = stats.committed_chunk_id if committed is None else committed  # not those that follow
        found = first_chunk(connection, stream, start)
        if not stats._lacks(committed) or (found is not None and _is_at(start, found)):
            return found
        if time.monotonic() > deadline:
            text = f"the node has not yet copied stream {stream!r} up to offset {committed}"
            raise StreamUnavailable(text, "not available", stream)
        time.sleep(_PAUSE)


def _is_at(start: OffsetSpec, chunk: Chunk) -> bool:
    """Whether a chunk is at or after a position. A node that lacks the position sends the next chunk that it gets."""
    at = chunk.timestamp_ms if start.kind == OffsetSpec.TIMESTAMP else chunk.end - 1
    return at >= start.value


def offset_at(connection: StreamConnection, stream: str, when: datetime | int) -> int:
    """Return the first offset of the first chunk stored at or after a time, an aware datetime or milliseconds since 1970.

    Without such a chunk, return the end of the stream.
    """
    if isinstance(when, datetime):
        if when.tzinfo is None:
            hint = "Add a time zone, such as tzinfo=datetime.UTC"
            raise InvalidValue("time", when, "an aware datetime", hint)
        since = -((EPOCH - when) // MILLISECOND)  # rounded up: chunks have whole milliseconds
    else:
        hint = "Of seconds: int(seconds * 1000)" if isinstance(when, float) else ""
        number = as_integer(when)
        if number is None or not 0 <= number < 2**63:
            expected = "an aware datetime, or milliseconds since 1970 as an integer from 0 to 2^63 - 1"
            raise InvalidValue("time", when, expected, hint)
        since = number
    start, end = OffsetSpec.timestamp(since), 0
    if (found := committed_chunk(connection, stream, start)) is None:
        end = bounds(connection, stream).end
        found = committed_chunk(connection, stream, start)  # stored in between
    return found.first_offset if found else end


def stored_at(connection: StreamConnection, stream: str, offset: int) -> int | None:
    """Return when the broker stored a message, in milliseconds since 1970; None without a message at this offset.

    All messages of a chunk have the same time, on every replica.

    Raises:
        StreamUnavailable: the stream does not exist, or the user has no permission to read it.
    """
    chunk = first_chunk(connection, stream, OffsetSpec.offset(offset))
    return chunk.timestamp_ms if chunk and chunk.first_offset <= offset < chunk.end else None


def _bounds_by_chunks(connection: StreamConnection, stream: str) -> Bounds:
    """Find the bounds from the first and last chunk: before 3.11, brokers do not report them."""
    first = first_chunk(connection, stream, OffsetSpec.first())
    if first is None:
        return Bounds(0, 0)
    last = first_chunk(connection, stream, OffsetSpec.last()) or _uncommitted(connection, stream)
    return Bounds(first.first_offset, max(first.end, last.end))


def _uncommitted(connection: StreamConnection, stream: str) -> Chunk:
    """Return the last chunk as soon as the replicas have committed it."""
    number = connection._subscribe(stream, OffsetSpec.last(), credit=1)
    for subscription, chunk in connection._chunks(connection.timeout):
        if subscription == number:
            connection._unsubscribe(number)
            return parse_chunk(chunk, stream)
    raise _not_committed(stream)


def _not_committed(stream: str) -> StreamUnavailable:
    return StreamUnavailable(f"the last chunk of stream {stream!r} is not committed", "not available", stream)
