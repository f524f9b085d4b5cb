"""The messages of chunks, one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rabbit_chx.errors import CorruptChunk, CorruptStream, InvalidMessage
from rabbit_chx.message import StreamMessage
from rabbit_chx.streams.messages.amqp10 import MAX_ITEMS
from rabbit_chx.streams.messages.chunks import Chunk, pieces_of, records_of
from rabbit_chx.streams.messages.message import decode


class Undecodable(StreamMessage):
    """An undecodable message, or the undecodable rest of a chunk, as stored."""

    __slots__ = ("error", "last")

    def __init__(self, stored: bytes, error: CorruptStream, offset: int, last: int) -> None:
        super().__init__(stored, queue=error.stream, offset=offset)
        self.error: CorruptStream = error
        self.last: int = last
        """The offset of the last message in it."""


def messages_of(
    chunks: Iterable[Chunk],
    start: int = 0,
    end: float = math.inf,
    *,
    max_items: int = MAX_ITEMS,
    max_batch_bytes: int | None = None,
) -> Iterator[StreamMessage]:
    """Yield each message with ``start <= offset < end``, in order.

    Args:
        chunks: of one stream, in order.
        start: the first offset.
        end: the offset after the last one.
        max_items: how many items the lists, maps and arrays of a message may have.
        max_batch_bytes: how many bytes a compressed sub-entry batch may decompress to.
    """
    for chunk in chunks:
        for message in stored_in(chunk, start, end, max_items=max_items, max_batch_bytes=max_batch_bytes):
            if type(message) is Undecodable:
                raise message.error
            yield message


def stored_in(
    chunk: Chunk,
    start: int = 0,
    end: float = math.inf,
    *,
    max_items: int = MAX_ITEMS,
    max_batch_bytes: int | None = None,
) -> Iterator[StreamMessage]:
    """Yield the messages of a chunk as `messages_of` does, with `Undecodable` in place of an error."""
    following = max(start, chunk.first_offset)
    try:
        for piece in pieces_of(chunk, max_batch_bytes):
            if piece.end <= start or piece.first_offset >= end:
                continue
            records = records_of(piece, max_batch_bytes=max_batch_bytes)
            for offset, stored in enumerate(records, piece.first_offset):
                if start <= offset < end:
                    following = offset + 1
                    try:
                        message = decode(
                            stored, chunk.stream, offset, chunk.timestamp_ms, max_items=max_items
                        )
                    except InvalidMessage as error:
                        message = Undecodable(stored, error, offset, offset)
                    yield message
    except CorruptChunk as error:
        if following < end:
            yield Undecodable(bytes(chunk.data), error, following, max(following, chunk.end - 1))
