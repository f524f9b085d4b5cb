"""What a handler of batches gets, and what it can raise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rabbit_chx.errors import CorruptStream, InvalidValue, MissingDependency
from rabbit_chx.messages.message import StreamMessage
from rabbit_chx.streams.messages.chunks import Chunk
from rabbit_chx.streams.messages.stored import Undecodable, stored_in

if TYPE_CHECKING:
    import pyarrow as pa


class StreamBatch:
    """Messages of one stream that follow each other. It is decoded when `messages` or `arrow` is called."""

    __slots__ = ("_chunks", "attempt", "first", "last", "stream")

    def __init__(self, chunks: Sequence[Chunk], first: int = 0, attempt: int = 1) -> None:
        """Combine chunks of one stream, in order, without the messages before ``first``."""
        self._chunks = tuple(chunks)
        self.stream: str = chunks[0].stream
        self.first: int = max(first, chunks[0].first_offset)
        """The offset of the first message."""
        self.last: int = chunks[-1].end - 1
        """The offset of the last message."""
        self.attempt: int = attempt
        """How many times this process has begun to handle the batch, from 1."""

    def __len__(self) -> int:
        end = self.last + 1
        return sum(
            max(0, min(chunk.end, end) - max(chunk.first_offset, self.first)) for chunk in self._chunks
        )

    def __repr__(self) -> str:
        return (
            f"<StreamBatch of {len(self)} messages, offsets {self.first} to {self.last} of {self.stream!r}>"
        )

    def messages(self) -> Iterator[StreamMessage]:
        """Yield the messages, in order."""
        for message in self.stored():
            if type(message) is Undecodable:
                raise message.error
            yield message

    def stored(self) -> Iterator[StreamMessage]:
        """Yield the messages, with `Undecodable` in place of an error."""
        return stored_in(self._chunks, self.first, self.last + 1)

    def around_undecodable(self) -> list[StreamBatch]:
        """Divide the batch around its first undecodable messages: before them, these alone, and after them."""
        stored = self.stored()
        found = next((each for each in stored if isinstance(each, Undecodable)), None)
        if found is None:
            return [self]
        before, rest = self.divided(found.offset) if found.offset > self.first else (None, self)
        assert rest is not None
        alone, after = rest.divided(undecodable_to(found, stored)[0] + 1)
        return [each for each in (before, alone, after) if each is not None]

    def arrow(self, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the messages as an Arrow batch.

        Args:
            columns: names from `COLUMNS`, by default all. Only these are decoded.
        """
        try:
            import pyarrow as pa

            from rabbit_chx.streams.messages.arrow.batch import chosen, record_batches, schema
        except ModuleNotFoundError as error:
            raise MissingDependency("Arrow batches need pyarrow: pip install 'rabbit-chx[arrow]'") from error
        names = chosen(columns)
        batches = list(record_batches(self._chunks, names, start=self.first, end=self.last + 1))
        if len(batches) == 1:
            return batches[0]
        (whole,) = pa.Table.from_batches(batches, schema(names)).combine_chunks().to_batches()
        return whole

    def divided(self, offset: int) -> tuple[StreamBatch, StreamBatch | None]:
        """Return the part before an offset, and the rest, if any."""
        if offset > self.last:
            return self, None
        before = StreamBatch([chunk for chunk in self._chunks if chunk.first_offset < offset], self.first)
        before.last = offset - 1
        return before, self.since(offset, 1)

    def since(self, offset: int, attempt: int) -> StreamBatch:
        """Return the part that begins at an offset."""
        chunks = [chunk for chunk in self._chunks if chunk.end > offset]
        rest = StreamBatch(chunks, max(offset, self.first), attempt)
        rest.last = self.last  # the last chunk may have more, in another part
        return rest


class BatchFailed(Exception):
    """Raised by a handler of batches: the messages before an offset are handled, and the one at the offset failed.

    >>> raise BatchFailed(message.offset) from error  # doctest: +SKIP
    """

    def __init__(self, offset: int) -> None:
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise InvalidValue("offset", offset, "the offset of the message that failed")
        super().__init__(offset)
        self.offset: int = offset

    def __str__(self) -> str:
        return f"the message at offset {self.offset} failed"


def why_undecodable(batch: StreamBatch) -> CorruptStream | MissingDependency | None:
    """Why the first message of a batch cannot be decoded, if it cannot be."""
    found = next(batch.stored(), None)
    return found.error if isinstance(found, Undecodable) else None


def undecodable_to(
    first: Undecodable, following: Iterator[StreamMessage]
) -> tuple[int, StreamMessage | None]:
    """The last offset of the undecodable messages that follow each other, and the message behind them, if any."""
    last = first.last
    for message in following:
        if not isinstance(message, Undecodable):
            return last, message
        last = message.last
    return last, None


def without_hint(error: CorruptStream | MissingDependency) -> CorruptStream | MissingDependency:
    """The error without its hint, which names a parameter of a reader."""
    if isinstance(error, CorruptStream):
        error.hint = ""
    return error


def failed_part(item: Any, error: Exception) -> tuple[Any, Any]:
    """What failed, and the rest: of a batch, the message that `BatchFailed` names, otherwise everything."""
    if not (isinstance(error, BatchFailed) and isinstance(item, StreamBatch)):
        return item, None
    if not item.first <= error.offset <= item.last:
        return item, None
    return item.divided(error.offset + 1)
