"""What a handler of batches gets, and what it can raise."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from rabbit_chx.errors import CorruptStream, InvalidValue, MissingDependency
from rabbit_chx.messages.message import StreamMessage
from rabbit_chx.streams.messages.chunks import Chunk
from rabbit_chx.streams.messages.stored import Undecodable, stored_in, unpacked

if TYPE_CHECKING:
    import pyarrow as pa


class StreamBatch:
    """Messages of one stream that follow each other. It is decoded when `messages` or `arrow` is called."""

    __slots__ = ("_chunks", "_is_unpacked", "_undecodable", "attempt", "first", "last", "stream")

    def __init__(self, chunks: Sequence[Chunk], first: int = 0, attempt: int = 1) -> None:
        """Combine chunks of one stream, in order, without the messages before ``first``."""
        self._chunks = tuple(chunks)
        self._undecodable: Sequence[Undecodable] = ()
        """All messages, if it is known that none can be decoded."""
        self._is_unpacked = False
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
        for message in self._stored():
            if type(message) is Undecodable:
                raise message.error
            yield message

    def _stored(self) -> Iterator[StreamMessage]:
        """Yield the messages, with `Undecodable` in place of an error."""
        if self._undecodable:
            return iter(self._undecodable)
        groups = _growing(self._chunks) if self._is_unpacked else [self._chunks]
        return chain.from_iterable(stored_in(group, self.first, self.last + 1) for group in groups)

    def _unpacked(self) -> StreamBatch:
        """The same messages, of which parts are decoded in proportion to their size."""
        if self._is_unpacked:
            return self
        whole = StreamBatch(unpacked(self._chunks, self.first, self.last + 1), self.first, self.attempt)
        whole.last, whole._undecodable, whole._is_unpacked = self.last, self._undecodable, True
        return whole

    def _around_undecodable(self) -> list[StreamBatch]:
        """Divide the batch between messages that can be decoded and those that cannot be."""
        whole = self._unpacked()
        runs: list[tuple[int, list[Undecodable]]] = []
        for each in whole._stored():
            undecodable = isinstance(each, Undecodable)
            if not runs or undecodable != bool(runs[-1][1]):
                runs.append((each.offset, []))
            if isinstance(each, Undecodable):
                runs[-1][1].append(each)
        if not any(cannot for _, cannot in runs):
            return [self]
        lasts = [*(offset - 1 for offset, _ in runs[1:]), self.last]
        return [whole._part(first, last, cannot) for (first, cannot), last in zip(runs, lasts, strict=True)]

    def _part(self, first: int, last: int, undecodable: Sequence[Undecodable] = ()) -> StreamBatch:
        low = bisect_right(self._chunks, first, key=lambda chunk: chunk.end)
        high = bisect_right(self._chunks, last, key=lambda chunk: chunk.first_offset)
        part = StreamBatch(self._chunks[low:high], first)
        part.last = last  # the last chunk may have more, in another part
        part._is_unpacked = self._is_unpacked
        part._undecodable = [each for each in undecodable if first <= each.last and each.offset <= last]
        return part

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

    def _since(self, offset: int) -> StreamBatch:
        """Return the part that begins at an offset, for a first attempt."""
        return self._part(max(offset, self.first), self.last, self._undecodable)


def _growing(chunks: Sequence[Chunk]) -> Iterator[Sequence[Chunk]]:
    """One chunk, then two, then four: a handler that fails with a message has few of those behind it searched."""
    start, count = 0, 1
    while start < len(chunks):
        yield chunks[start : start + count]
        start, count = start + count, 2 * count


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


def undecodable_part(chunks: Sequence[Chunk], found: Sequence[Undecodable]) -> StreamBatch:
    """The batch of these messages, which follow each other in the chunks and cannot be decoded."""
    part = StreamBatch(chunks, found[0].offset)
    part.last, part._undecodable = found[-1].last, found
    return part


def why_undecodable(batch: StreamBatch) -> CorruptStream | MissingDependency | None:
    """Why the messages of a batch cannot be decoded, if that is known of all of them."""
    found = batch._undecodable
    return found[0].error if found else None


def without_hint(error: CorruptStream | MissingDependency) -> CorruptStream | MissingDependency:
    """The error without its hint, which names a parameter of a reader."""
    if isinstance(error, CorruptStream):
        error.hint = ""
    return error


def failed_part(item: Any, error: Exception) -> tuple[Any, Any]:
    """What failed, and the rest: of a batch, the message that `BatchFailed` names, otherwise everything."""
    if not (isinstance(error, BatchFailed) and isinstance(item, StreamBatch)):
        return item, None
    if not item.first <= error.offset < item.last:
        return item, None
    return item._part(item.first, error.offset, item._undecodable), item._since(error.offset + 1)
