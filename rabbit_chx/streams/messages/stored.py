"""The messages of chunks, one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rabbit_chx.message import StreamMessage
from rabbit_chx.streams.messages.amqp10 import MAX_ITEMS
from rabbit_chx.streams.messages.chunks import Chunk, pieces_of, records_of
from rabbit_chx.streams.messages.message import decode


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
    for piece in (piece for chunk in chunks for piece in pieces_of(chunk, max_batch_bytes)):
        if piece.end <= start or piece.first_offset >= end:
            continue
        for offset, stored in enumerate(
            records_of(piece, max_batch_bytes=max_batch_bytes), piece.first_offset
        ):
            if start <= offset < end:
                yield decode(stored, piece.stream, offset, piece.timestamp_ms, max_items=max_items)
