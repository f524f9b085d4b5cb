"""The state of each stream of a member, its *lane*: the chunks in order, how far their messages are handled, and the status.

A lane outlives its connection, so that one message is never handled twice at the same time. This module does no IO; its
caller holds the lock of the workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import Any, Final

from rabbit_chx.errors import CorruptChunk
from rabbit_chx.messages.message import StreamMessage
from rabbit_chx.streams.group.batch import StreamBatch, undecodable_part, why_undecodable
from rabbit_chx.streams.messages.chunks import Chunk, may_have_batches, pieces_of, size_of
from rabbit_chx.streams.messages.stored import Undecodable, stored_in
from rabbit_chx.streams.protocol.answers import ConsumerUpdate, Node
from rabbit_chx.working.workers import OneByOne

_MOST_ROWS: Final = 16_384
_MOST_MESSAGES: Final = 2_048
_MOST_BYTES: Final = 8 << 20
"""A batch, and what is searched for messages at once, ends after the chunk that reaches one of these, decompressed."""
_MOST_TOGETHER: Final = 1 << 20
"""Bytes of undecodable messages that are parked together."""


class Attention:
    """Whether the member has to look at its lanes."""

    wanted = False


class Change:
    """A stream was assigned or revoked, which a worker tells the program, in turn with the messages."""

    __slots__ = ("assigned", "attempt", "done", "start", "stream")

    def __init__(self, stream: str, *, assigned: bool) -> None:
        self.stream: Final = stream
        self.assigned: Final = assigned
        self.attempt = 1
        self.start: Any = None
        """What the last of the program's functions returned: that of ``start``, if it is a function."""
        self.done = False
        """Whether the program has been told."""


class StreamLane(OneByOne):
    """One stream of a member."""

    is_new = False
    """Whether the stream was found while the member ran, perhaps after its first messages were published."""

    def __init__(self, stream: str, *, batches: bool, store_every: int, attention: Attention) -> None:
        self.stream: Final = stream
        self.subscription: int | None = None
        """The number of the subscription on its connection, if any."""
        self.tried = 0.0
        """When a connection to a node with the stream was last tried."""
        self.nodes: frozenset[Node] = frozenset()
        """The nodes with the stream, as far as the member knows."""
        self.ahead = 0
        """How many chunks the broker may send."""
        self.questions: Final[deque[tuple[ConsumerUpdate, float]]] = deque()
        """The questions of the broker that are not answered yet, each with the time until which it must be."""
        self.change: Change | None = None
        """What the program must be told before the question is answered."""
        self.told = False
        """Whether the program knows that the stream is assigned."""
        self.leaving = False
        """Whether no further message may be started."""
        self.trusted_until = 0.0
        """Until when no other member can have the stream, after the last sign that the broker knew the connection."""
        self.done: int | None = None
        """The offset up to which everything is handled, if anything is in this assignment."""
        self.stored: int | None = None
        """The offset that the broker stores, as far as the member knows."""
        self.checked = False
        """Whether a stored offset was read back in this assignment."""
        self.is_refused = False
        """Whether the broker did not store an offset of this assignment."""
        self.contested = False
        """Whether another client has stored offsets during this assignment."""
        self.unstored = 0
        """How many messages were handled since the last store."""
        self.store_again = 0.0
        self.end = 0
        """The end of the stream, as far as the member knows."""
        self.empty_to = 0
        """An offset before which only a gap follows the handled messages, as far as the member knows."""
        self.is_beyond = False
        """Whether the stored offset was beyond the end when the assignment began, and no message has been handled since."""
        self.handled = 0
        self._batches = batches
        self._store_every = store_every
        self._attention = attention
        self._start = 0
        self.waiting: deque[Chunk] = deque()
        self._current: list[Chunk] = []
        """The chunks of these messages."""
        self._messages: Iterator[StreamMessage] = iter(())
        self._again: deque[Any] = deque()
        """The messages or batches that are next because they were put back."""
        self._changes: deque[Change] = deque()

    # ---- what the member does

    def assign(self, start: int, stored: int | None) -> None:
        """Begin an assignment, whose first message has this offset or a later one."""
        self._drop()
        self.channel, self.leaving, self._start = object(), False, start
        self.done, self.stored, self.unstored, self.checked = None, stored, 0, False
        self.is_refused = self.contested = False
        self.empty_to = 0

    def revoke(self) -> None:
        """Start no further message; drop those that wait."""
        self.leaving = True
        self._drop()

    def end_assignment(self) -> None:
        """End the assignment: what a handler still works on does not count."""
        self.channel, self.leaving = None, False
        self._drop()

    def _drop(self) -> None:
        self.waiting.clear()
        self._messages = iter(())
        self._again.clear()
        self.end_pause()

    def add(self, chunk: Chunk) -> bool:
        """Add a chunk; return whether the lane must be submitted to a worker."""
        self.ahead -= 1
        if self.channel is None or self.leaving or chunk.end <= self._start:
            return False
        self.waiting.append(chunk)
        self.end = max(self.end, chunk.end)
        return self.wake()

    def tell(self, change: Change) -> bool:
        """Have a worker tell the program of a change; return whether the lane must be submitted to a worker."""
        self._changes.append(change)
        return self.wake()

    def wake(self) -> bool:
        """Return whether an idle lane has work, for which it must be submitted to a worker."""
        if self.busy or not (self._changes or (not self.leaving and (self.waiting or self._again))):
            return False
        self.busy = True
        return True

    @property
    def is_idle(self) -> bool:
        """Whether no worker has the lane or is about to take it."""
        return super().is_idle and not self._changes

    @property
    def store_is_due(self) -> bool:
        """Whether an offset is to be stored now."""
        if self.done is None or self.done == self.stored or self.is_refused:
            return False
        due = self.stored is None or self.unstored >= self._store_every
        return due or monotonic() >= self.store_again

    # ---- what workers do

    def take(self, *, changes_only: bool = False) -> Any | None:
        """Take the next message, batch or change; without one, the worker has left the lane."""
        if self._changes:
            return self._changes.popleft()
        if changes_only and not self._again:
            # Without this, the rest of a chunk would wait until another chunk wakes the lane.
            self._again.extend(islice(self._messages, 1))
        found = None if changes_only or self.leaving else self._next()
        if found is None:
            self.busy = False
            self._attention.wanted = True
        return found

    def _next(self) -> Any | None:
        if self._again:
            item = self._again.popleft()
            return self._together(item) if type(item) is Undecodable else item
        if self._batches:
            return StreamBatch(self._chunks(_MOST_ROWS), self._start) if self.waiting else None
        while True:
            for message in self._messages:
                return self._together(message) if type(message) is Undecodable else message
            if not self.waiting:
                return None
            self._current = self._chunks(_MOST_MESSAGES)
            self._messages = stored_in(self._current, self._start)

    def _together(self, first: Undecodable) -> StreamBatch:
        """The undecodable messages from one on that follow each other, which no handler gets; so many that others wait little."""
        found, size = [first], len(first.body)
        while len(found) < _MOST_MESSAGES and size < _MOST_TOGETHER:
            message = next(self._messages, None)
            if not isinstance(message, Undecodable):
                self._again.extend([] if message is None else [message])
                break
            found.append(message)
            size += len(message.body)
        return undecodable_part(self._current, found)

    def _chunks(self, most_rows: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        rows = size = 0
        while self.waiting and rows < most_rows and size < _MOST_BYTES:
            chunk = self.waiting.popleft()
            more = len(chunk.data)
            if may_have_batches(chunk):
                chunk, more = self._beginning(chunk)
            chunks.append(chunk)
            rows, size = rows + chunk.records, size + more
        self._attention.wanted = True
        return chunks

    def _beginning(self, chunk: Chunk) -> tuple[Chunk, int]:
        """As much of a chunk as may be decompressed at once, with its size then. The rest waits."""
        if size_of(chunk) > _MOST_BYTES:
            with suppress(CorruptChunk):  # what can be decoded of it is found later
                chunk, *rest = pieces_of(chunk, start=self._start)
                self.waiting.extendleft(reversed(rest))
        return chunk, size_of(chunk)

    def finish(self, message: Any, channel: Any) -> int:
        """Mark what was taken as handled; the worker goes on with what is next."""
        kind = type(message)
        if kind is Change:
            message.done = self._attention.wanted = True
        elif kind is StreamBatch:
            self._count(message.last, len(message), channel)
        else:
            self._count(message.offset, 1, channel)
        return 0

    def finish_before(self, batch: StreamBatch, offset: int, channel: Any) -> None:
        """Mark the messages of a batch before an offset as handled."""
        self._count(offset - 1, len(batch) - len(batch._since(offset)), channel)

    def _count(self, last: int, count: int, channel: Any) -> None:
        self.handled += count
        if self.channel is channel:
            self.done, self.is_beyond = last, False
            self.unstored += count
            if self.stored is None or self.unstored >= self._store_every:
                self._attention.wanted = True

    def why_undecodable(self, batch: StreamBatch) -> Exception | None:
        """Why no handler gets a batch that was taken: of single messages, only undecodable ones are a batch."""
        return None if self._batches else why_undecodable(batch)

    def put_back(self, message: Any, channel: Any) -> bool:
        """Put what was taken back to the front; return False if its assignment has ended."""
        if self.channel is not channel or self.leaving:
            return False
        self._again.appendleft(message)
        return True

    # ---- what others see

    @property
    def handled_to(self) -> int | None:
        """The last offset that is handled, or the one before the start, as far as the member knows."""
        handled = self._start - 1 if self.done is None else self.done
        return None if handled == -1 else handled

    @property
    def following(self) -> int | None:
        """The offset behind the handled messages; None while the lane has others."""
        if self.busy or self.waiting or self._again:
            return None
        return 0 if self.handled_to is None else self.handled_to + 1

    @property
    def is_drained(self) -> bool:
        """Whether this member has the stream, and no message is left in it, as far as it knows."""
        return (
            self.channel is not None and self.following is not None and self.end_of_messages <= self.following
        )

    @property
    def end_of_messages(self) -> int:
        """The end of the stream, without a gap behind the last message."""
        following = 0 if self.handled_to is None else self.handled_to + 1
        if self.is_beyond:
            return self.end
        return max(self.end, following) if self.end > self.empty_to else following


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How far a member is in a stream that the broker has assigned to it."""

    stream: str
    handled: int | None
    """The last offset that is handled, or the one before the start; None at the beginning of the stream."""
    stored: int | None
    """The last offset that the broker has stored for the group; None without one, and -1 for the place before the first message."""
    end: int
    """The end of the stream, a few seconds ago, without a gap behind the last message. Before RabbitMQ 4.3, it may be too small by a chunk."""
    attempts: int
    """Failed attempts since the start of the run."""

    @property
    def lag(self) -> int | None:
        """How many offsets are not handled: messages, and gaps between them. None if the stored offset is beyond the end."""
        following = 0 if self.handled is None else self.handled + 1
        return self.end - following if following <= self.end else None


@dataclass(frozen=True, slots=True)
class StreamGroupStatus:
    """How a member of a stream group is."""

    connected: bool
    """Whether it is a member of the group for every stream."""
    reason: str
    """Why it is not, or why a message cannot be parked now; otherwise empty."""
    streams: tuple[str, ...]
    """The streams that the members share, as far as this one knows them."""
    partitions: tuple[PartitionStatus, ...]
    """The streams that this member handles now."""
    handled: int
    """Messages handled or given up since the start of the run."""
    failed: int
    """Failed attempts since the start of the run."""

    @property
    def lag(self) -> int | None:
        """The lag of all partitions of this member together; None if that of one is."""
        lags = [each.lag for each in self.partitions]
        return None if None in lags else sum(each or 0 for each in lags)


def status_of(
    lanes: Sequence[StreamLane], why_not: str, waits: str = "", former: Sequence[StreamLane] = ()
) -> StreamGroupStatus:
    """The status of a member with these lanes, and totals with ``former`` ones; the caller holds their lock.

    A member that ``waits`` is connected.
    """
    return StreamGroupStatus(
        connected=not why_not,
        reason=why_not or waits,
        streams=tuple(lane.stream for lane in lanes),
        partitions=tuple(
            PartitionStatus(lane.stream, lane.handled_to, lane.stored, lane.end_of_messages, lane.failed)
            for lane in lanes
            if lane.channel is not None
        ),
        handled=sum(lane.handled for lane in (*lanes, *former)),
        failed=sum(lane.failed for lane in (*lanes, *former)),
    )
