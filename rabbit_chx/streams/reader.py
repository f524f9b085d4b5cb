"""Read a range of offsets from a stream, or follow it: each message once and in order, even if the connection is lost.

    with StreamReader("rabbitmq-stream://user:password@host", "events") as reader:
        bounds = reader.bounds()
        for batch in reader.read(bounds.first, bounds.end):
            print(batch.num_rows)

`read` yields Arrow batches, `messages` single messages; `follow` goes on at the end of the stream.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from rabbit_chx.base.limits import check_integer
from rabbit_chx.base.names import check_name
from rabbit_chx.base.outages import CALLER_WAITS, Backoff
from rabbit_chx.base.timeouts import HEARTBEAT_OF_CALLER, Timeouts, defaults_of
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.guards import checked_urls
from rabbit_chx.errors import InvalidValue, MissingDependency, RabbitChxError, StreamUnavailable
from rabbit_chx.messages.message import StreamMessage
from rabbit_chx.streams.ends import Bounds, bounds, end_in, first_chunk, offset_at, stored_at
from rabbit_chx.streams.messages.amqp10 import MAX_ITEMS
from rabbit_chx.streams.messages.chunks import Chunk, parse_chunk
from rabbit_chx.streams.messages.stored import messages_of
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.opening import Link, connect_until
from rabbit_chx.streams.protocol.requests import MAX_CREDIT, OffsetSpec

if TYPE_CHECKING:
    import pyarrow as pa

_TIMEOUTS: Final = defaults_of("connect", "reconnect")
_CREDIT: Final = 50
"""Chunks that the broker may send ahead. Socket buffers hold them until the reader takes them."""
_QUIET: Final = 0.05
"""Seconds without a chunk before the reader checks for another one; each check doubles them."""
_TICK: Final = 0.2
"""Seconds between two checks for `StreamReader.stop` at the end of a stream."""
_CHECK: Final = 5.0
"""Seconds at the end of a stream without a chunk, after which the reader asks the broker for one."""
_PAUSE: Final = 0.1
"""Seconds between two questions for the end of a stream."""


class StreamReader:
    """Reads one stream, over one connection at a time, in one thread. `open`, or a ``with`` block, connects.

    Args:
        url: as for `connect`.
        stream: the name of the stream. To read a super stream, read each of its `partitions`.
        leader: connect to the leader of the stream. Replicas can lag behind it.
        follow_advertised: as for `connect`.
        credit: how many chunks the broker may send ahead.
        max_items: how many items the lists, maps and arrays of a message may have; a longer text counts for each 32 bytes. A publisher
            can compress millions of items to a few kilobytes; such a message raises `InvalidMessage`.
        max_batch_bytes: how many bytes a compressed sub-entry batch may decompress to, by default 16 MiB, or 250 times its stored size
            up to 24 MiB. The reader holds a few batches of this size; a larger one raises `CorruptChunk`.
        timeouts: ``connect`` for opening a connection, for an answer, and for the next chunk of a range; ``reconnect`` until
            a lost connection is replaced by one that delivers a chunk.
        heartbeat: as for `connect`.
        credentials: as for `connect`.
        tls: as for `connect`.
        connection_name: as for `connect`.
    """

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        stream: str,
        *,
        leader: bool = False,
        follow_advertised: bool = False,
        credit: int = _CREDIT,
        max_items: int = MAX_ITEMS,
        max_batch_bytes: int | None = None,
        timeouts: Timeouts = _TIMEOUTS,
        heartbeat: int = HEARTBEAT_OF_CALLER,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        connection_name: str = "rabbit-chx stream reader",
    ) -> None:
        check_integer("credit", credit, 2, MAX_CREDIT)
        check_integer("max_items", max_items, 1, 2**32 - 1)
        if max_batch_bytes is not None:
            check_integer("max_batch_bytes", max_batch_bytes, 1, 2**32 - 1)
        urls = checked_urls(
            *("StreamReader", url, timeouts, heartbeat, credentials, tls, connection_name),
            defaults=_TIMEOUTS,
            streams=True,
        )
        self.stream: str = check_name("stream", stream)
        self._credit = credit
        self._limits: dict[str, Any] = {"max_items": max_items, "max_batch_bytes": max_batch_bytes}
        self._timeouts = timeouts
        opening = partial(
            connect_until,
            url=urls,
            stream=stream,
            leader=leader,
            follow_advertised=follow_advertised,
            timeout=timeouts.connect,
            heartbeat=heartbeat,
            credentials=credentials,
            tls=tls,
            connection_name=connection_name,
        )
        self._link = Link("StreamReader", opening)
        self._range: object = None
        """The range that began last. Chunks of earlier ones are lost, because ranges share the connection."""
        self._gap = range(0)
        """Offsets without a message, at the end of the stream when the reader last looked."""
        self._stopped = False
        self._backoff = Backoff(CALLER_WAITS)

    def open(self) -> None:
        """Connect to a node with the stream.

        Raises:
            StreamUnavailable: the connection did not open, or the stream does not exist.
        """
        self._link.open()
        self._stopped = False

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def bounds(self) -> Bounds:
        """Return where the stream currently begins and ends."""
        return bounds(self._connected(), self.stream)

    def offset_at(self, time: datetime | int) -> int:
        """Return the first offset of the first chunk stored at or after a time; the end of the stream without such a chunk.

        Args:
            time: an aware datetime, or milliseconds since 1970.
        """
        return offset_at(self._connected(), self.stream, time)

    def read(
        self, start: int, end: int, *, columns: Sequence[str] | None = None, binary_headers: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages with ``start <= offset < end`` as Arrow batches, each once and in order.

        The iterator ends with the range and does not wait for new messages. It replaces a lost connection. A reader reads
        one range at a time: another range may begin before this one ends, but then this one cannot continue.

        Args:
            start: the first offset.
            end: the offset after the last one.
            columns: names from `COLUMNS`, by default all. Only these are decoded.
            binary_headers: return headers as ``list<struct<key: string, value: binary>>``, with binary values as they are, instead
                of as ``map<string, string>``, where they are base64.

        Raises:
            InvalidValue: another range of this reader has begun.
            StreamUnavailable: the stream lacks offsets of the range, or was created again, or no new connection opened in time.
            CorruptStream: a chunk or a message is damaged.
        """
        try:
            from rabbit_chx.streams.messages.arrow.batch import chosen, record_batches
        except ModuleNotFoundError as error:
            raise MissingDependency("Arrow batches need pyarrow: pip install 'rabbit-chx[arrow]'") from error
        return record_batches(
            self._chunks(start, end),
            chosen(columns),
            start=start,
            end=end,
            binary_headers=binary_headers,
            **self._limits,
        )

    def messages(self, start: int, end: int) -> Iterator[StreamMessage]:
        """Yield each message with ``start <= offset < end``. Unlike `read`, this does not need pyarrow."""
        return messages_of(self._chunks(start, end), start, end, **self._limits)

    def follow(self, start: int, *, timeout: float | None = None) -> Iterator[StreamMessage]:
        """Yield the messages from an offset on, and wait for new ones at the end of the stream. `stop` ends the iterator.

        Args:
            start: the first offset, such as ``reader.bounds().end`` for new messages only, or ``reader.offset_at(time)``.
            timeout: end the iterator when no message has arrived for this many seconds; None waits forever.

        Raises:
            InvalidValue: a range of this reader has begun since.
            StreamUnavailable: as for `read`.
        """
        if not (isinstance(start, int) and start >= 0):
            raise InvalidValue("start of follow", start, "an offset, from 0 on")
        if timeout is not None and not timeout >= 0:
            raise InvalidValue("timeout of follow", timeout, "seconds, from 0 on, or None")
        return self._followed(start, math.inf if timeout is None else timeout)

    def stop(self) -> None:
        """End `follow`, until the next `open`. Any thread and any signal handler may call it.

        This takes a fraction of a second; while a connection is opened, or the broker owes an answer or a chunk, up to ``timeouts.connect``.
        """
        self._stopped = True

    def _followed(self, start: int, timeout: float) -> Iterator[StreamMessage]:
        for each in messages_of(self._new_chunks(start, timeout), start, **self._limits):
            yield each
            if self._stopped:
                return

    def _new_chunks(self, start: int, timeout: float) -> Iterator[Chunk]:
        since = time.monotonic()
        for chunk in self._arriving(start, math.inf):
            if self._stopped:
                return
            if chunk is not None:
                yield chunk
                since = time.monotonic()
            elif time.monotonic() - since > timeout:
                return

    def _chunks(self, start: int, end: int) -> Iterator[Chunk]:
        """Yield the chunks with messages of a range. The first and the last chunk may have other messages, too."""
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end):
            raise InvalidValue("range of offsets", (start, end), "two integers with 0 <= start <= end")
        for chunk in self._arriving(start, end):
            if chunk is not None:
                yield chunk

    def _arriving(self, start: int, end: float) -> Iterator[Chunk | None]:
        """Yield the chunks of a range over one connection after the other. Without an end, yield None whenever there is no more."""
        at, failing_since, follows = start, math.inf, end == math.inf
        this, seen = object(), None
        self._range, self._gap = this, range(0)
        while at < end:
            try:
                if seen is not None:
                    self._check_same(*seen)
                for chunk in self._over_one_connection(at, end):
                    if chunk is None and not follows:
                        return
                    yield chunk
                    if chunk is not None:
                        self._backoff.works()
                        seen = chunk.end - 1, chunk.timestamp_ms
                    ends = at if chunk is None else chunk.end
                    if self._range is not this and ends < end:
                        rest = "and later" if follows else f"to {end}"
                        what = f"offsets {ends} {rest} cannot be read after another range has begun"
                        raise InvalidValue(what, hint="Open a StreamReader for each range")
                    at, failing_since = ends, math.inf
            except StreamUnavailable as error:
                failing_since = min(failing_since, time.monotonic())
                if error.permanent or time.monotonic() - failing_since > self._timeouts.reconnect:
                    raise
            else:
                return
            self._link.connection.close()
            again = time.monotonic() + self._backoff.failed()
            while (left := again - time.monotonic()) > 0:
                time.sleep(min(left, _TICK))
                if follows:  # so that none connects after `stop`
                    yield None

    def _connected(self) -> StreamConnection:
        connection = self._link.connection
        return connection if connection.is_open else self._link.replace()

    def _check_same(self, offset: int, time_ms: int) -> None:
        """Check that the stream still has the message at an offset, unless retention has removed it: in a new stream, it has another time."""
        if stored_at(self._connected(), self.stream, offset) not in {None, time_ms}:
            raise StreamUnavailable(
                f"stream {self.stream!r} was deleted and created again after the message at offset {offset}",
                "no such stream",
                self.stream,
            )

    def _over_one_connection(self, start: int, end: float) -> Iterator[Chunk | None]:
        """Yield the chunks of a range over one connection, and None whenever the stream has no more."""
        connection = self._connected()
        self._check_range(start, end)
        subscription = connection._subscribe(self.stream, OffsetSpec.offset(start), credit=self._credit)
        try:
            for expected, chunk in self._delivered(connection, subscription, start):
                if chunk is None:
                    yield None
                    continue
                if chunk.first_offset > expected:  # a gap, or retention
                    self._check_first(expected, bounds(connection, self.stream))
                if chunk.first_offset >= end:
                    return
                if chunk.end > expected:
                    yield chunk
                if chunk.end >= end:
                    return
        finally:
            if connection.is_open:
                with suppress(RabbitChxError):  # the iterator may be collected in another thread
                    # A new connection costs less than many chunks in vain.
                    connection._unsubscribe(subscription, timeout=connection.timeout)

    def _delivered(
        self, connection: StreamConnection, subscription: int, start: int
    ) -> Iterator[tuple[int, Chunk | None]]:
        """Yield the chunks of a subscription, each with the expected first offset, and None for a chunk at the end of the stream."""
        at, owed, lot = start, 0, max(self._credit // 4, 1)
        quiet, waited, at_end_until = _QUIET, 0.0, 0.0
        while waited <= (self._timeouts.reconnect if connection._is_receiving else self._timeouts.connect):
            for number, data in connection._chunks(quiet):
                if number != subscription:
                    continue
                chunk = parse_chunk(data, self.stream)
                yield at, chunk
                at, owed = max(at, chunk.end), owed + 1
                quiet, waited, at_end_until = _QUIET, 0.0, 0.0
                if owed == lot:
                    connection._credit(subscription, lot)
                    owed = 0
            if time.monotonic() < at_end_until:
                yield at, None
            elif connection._is_receiving:
                waited += quiet
            elif self._has_more(connection, at):
                waited += quiet
                quiet *= 2
            else:
                yield at, None
                quiet, waited, at_end_until = _TICK, 0.0, time.monotonic() + _CHECK
        raise StreamUnavailable(
            f"the broker sent no chunk of stream {self.stream!r} for {waited:.0f} seconds; the next offset is {at}",
            "lost",
            self.stream,
        )

    def _has_more(self, connection: StreamConnection, at: int) -> bool:
        """Whether the stream has a chunk at or after an offset, which the node may still lack."""
        # Asked for first: the chunk may arrive in between.
        stats = connection.stats(self.stream) if connection.has_stats else None
        following = first_chunk(connection, self.stream, OffsetSpec.offset(at))
        if following is None:
            if stats is None or stats._is_behind:
                return stats is not None
            self._gap = range(at, end_in(stats))
            return False
        if (
            following.first_offset > at
        ):  # the broker may not notice that retention removed the segment that it reads
            self._check_first(at, bounds(connection, self.stream))
        return True

    def _check_range(self, start: int, end: float) -> None:
        """Check that the stream has a range; wait if the node lags behind the one that reported the end."""
        deadline, follows = time.monotonic() + self._timeouts.connect, end == math.inf
        end = start if follows else end
        while (found := self.bounds()).end < end and not (follows and self._stopped):
            if time.monotonic() > deadline:
                raise StreamUnavailable(
                    f"offsets {start} to {end} are beyond the end of stream {self.stream!r}, which is {found.end}: was the "
                    "stream deleted and created again?",
                    "beyond the end",
                    self.stream,
                    found.first,
                    found.end,
                )
            time.sleep(_PAUSE)
        self._check_first(start, found)

    def _check_first(self, start: int, found: Bounds) -> None:
        if start in self._gap:
            start = self._gap.stop
        if start < found.first:
            raise StreamUnavailable(
                f"stream {self.stream!r} begins at offset {found.first}, so offsets {start} to {found.first - 1} are lost: "
                "retention (max-age, max-length-bytes) removed them",
                "truncated",
                self.stream,
                found.first,
                found.end,
            )
