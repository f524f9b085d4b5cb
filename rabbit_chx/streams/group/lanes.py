"""The state of each stream of a member, its *lane*: the chunks in order, and how far their messages are handled.

A lane outlives its connection, so that one message is never handled twice at the same time. This module does no IO; its
caller holds the lock of the workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import monotonic
from typing import Any, Final

from rabbit_chx.message import StreamMessage
from rabbit_chx.streams.group.batch import StreamBatch
from rabbit_chx.streams.messages.chunks import Chunk
from rabbit_chx.streams.messages.stored import Undecodable, stored_in
from rabbit_chx.streams.protocol.answers import ConsumerUpdate

_MOST_ROWS: Final = 16_384
_MOST_MESSAGES: Final = 2_048
_MOST_BYTES: Final = 8 << 20
"""A batch, and what is searched for messages at once, ends after the chunk that reaches one of these."""


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
        """What the program's function ``start`` returned."""
        self.done = False
        """Whether the program has been told."""


class StreamLane:
    """One stream of a member."""

    def __init__(self, stream: str, *, batches: bool, store_every: int, attention: Attention) -> None:
        self.stream: Final = stream
        self.channel: object | None = None
        """Identifies the assignment, while the stream is assigned to this member."""
        self.subscription: int | None = None
        """The number of the subscription on its connection, if any."""
        self.ahead = 0
        """How many chunks the broker may send."""
        self.update: ConsumerUpdate | None = None
        """The broker's question that is not answered yet."""
        self.answer_by = 0.0
        self.change: Change | None = None
        """What the program must be told before the question is answered."""
        self.told = False
        """Whether the program knows that the stream is assigned."""
        self.leaving = False
        """Whether no further message may be started."""
        self.heard = 0.0
        """The time of the last sign that the broker still knows the connection."""
        self.done: int | None = None
        """The offset up to which everything is handled, if anything is in this assignment."""
        self.stored: int | None = None
        """The offset that the broker stores, as far as the member knows."""
        self.checked = False
        """Whether a stored offset was read back in this assignment."""
        self.unstored = 0
        """How many messages were handled since the last store."""
        self.store_again = 0.0
        self.end = 0
        """The end of the stream, as far as the member knows."""
        self.handled = 0
        self.failed = 0
        self._batches = batches
        self._store_every = store_every
        self._attention = attention
        self._start = 0
        self.waiting: deque[Chunk] = deque()
        self._messages: Iterator[StreamMessage] = iter(())
        self._again: deque[Any] = deque()
        """The messages or batches that are next because they were put back."""
        self._changes: deque[Change] = deque()
        self._busy = False
        """Whether a worker has the lane or is about to take it; only one may."""
        self._paused = False
        """Whether a busy lane waits for the next attempt at a message."""

    # ---- what the member does

    def assign(self, start: int, stored: int | None) -> None:
        """Begin an assignment, whose first message has this offset or a later one."""
        self._drop()
        self.channel, self.leaving, self._start = object(), False, start
        self.done, self.stored, self.unstored, self.checked = None, stored, 0, False

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
        if self._paused:
            self._paused = self._busy = False

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
        if self._busy or not (self._changes or (not self.leaving and (self.waiting or self._again))):
            return False
        self._busy = True
        return True

    @property
    def is_idle(self) -> bool:
        """Whether no worker has the lane or is about to take it."""
        return (self._paused or not self._busy) and not self._changes

    @property
    def store_is_due(self) -> bool:
        """Whether an offset is to be stored now."""
        if self.done is None or self.done == self.stored:
            return False
        due = self.stored is None or self.unstored >= self._store_every
        return due or monotonic() >= self.store_again

    # ---- what workers do

    def take(self, *, changes_only: bool = False) -> Any | None:
        """Take the next message, batch or change; without one, the worker has left the lane."""
        if self._changes:
            return self._changes.popleft()
        found = None if changes_only or self.leaving else self._next()
        if found is None:
            self._busy = False
            self._attention.wanted = True
        return found

    def _next(self) -> Any | None:
        if self._again:
            return self._again.popleft()
        if self._batches:
            return StreamBatch(self._chunks(_MOST_ROWS), self._start) if self.waiting else None
        while True:
            for message in self._messages:
                return message
            if not self.waiting:
                return None
            self._messages = stored_in(self._chunks(_MOST_MESSAGES), self._start)

    def _chunks(self, most_rows: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        rows = size = 0
        while self.waiting and rows < most_rows and size < _MOST_BYTES:
            chunk = self.waiting.popleft()
            chunks.append(chunk)
            rows, size = rows + chunk.records, size + len(chunk.data)
        self._attention.wanted = True
        return chunks

    def leave(self) -> None:
        """Mark that the worker has left the lane."""
        self._busy = False

    abandon = leave

    def finish(self, message: Any, channel: Any, *, counted: bool = True) -> int:
        """Mark what was taken as handled; the worker goes on with what is next."""
        if type(message) is Change:
            message.done = self._attention.wanted = True
            return 0
        if self._batches:
            last, count = message.last, len(message)
        else:
            last, count = message.last if type(message) is Undecodable else message.offset, 1
        self._count(last, count if counted else 0, channel)
        return 0

    def finish_before(self, batch: StreamBatch, offset: int, channel: Any) -> None:
        """Mark the messages of a batch before an offset as handled."""
        if offset > batch.first:
            self._count(offset - 1, len(batch) - len(batch.since(offset, 1)), channel)

    def _count(self, last: int, count: int, channel: Any) -> None:
        self.handled += count
        if self.channel is channel:
            self.done = last
            self.unstored += count
            if self.stored is None or self.unstored >= self._store_every:
                self._attention.wanted = True

    def put_back(self, message: Any, channel: Any) -> bool:
        """Put what was taken back to the front; return False if its assignment has ended."""
        if self.channel is not channel or self.leaving:
            return False
        self._again.appendleft(message)
        return True

    def pause(self, message: Any, channel: Any) -> tuple[bool, bool]:
        """Put what was taken back to the front, and pause the lane."""
        self._paused = self.put_back(message, channel)
        return self._paused, not self._paused

    def resume(self, message: Any, channel: Any) -> bool:  # noqa: ARG002 - the first one
        """Continue with the lane."""
        if self.channel is not channel or not self._paused:
            return False
        self._paused = False
        return True

    def is_full_behind(self, message: Any) -> bool:  # noqa: ARG002 - only of keys
        """Whether the next attempt at a message must not wait."""
        return False

    def to_acknowledge(self) -> list[tuple[int, bool]]:
        """Nothing: offsets are stored."""
        return []

    # ---- what others see

    @property
    def handled_to(self) -> int | None:
        """The last offset that the group has handled, as far as the member knows."""
        handled = self.stored if self.done is None else self.done
        return None if handled == -1 else handled
