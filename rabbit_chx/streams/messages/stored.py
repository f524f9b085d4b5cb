"""The messages of chunks, one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice, repeat
from typing import Any, Final

import numpy as np

from rabbit_chx.base.text import described
from rabbit_chx.errors import CorruptChunk, CorruptStream, InvalidMessage, MissingDependency
from rabbit_chx.messages.message import DecodedLater, StreamMessage
from rabbit_chx.messages.message_fields import moment
from rabbit_chx.mirror.fields import MILLISECOND
from rabbit_chx.streams.messages.amqp10 import INTEGERS, MAX_ITEMS
from rabbit_chx.streams.messages.chunks import (
    Chunk,
    Records,
    entries_of,
    may_have_batches,
    pieces_of,
    records_of,
)
from rabbit_chx.streams.messages.message import (
    ANNOTATIONS,
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    PROPERTIES,
    VALUE,
    decode,
)
from rabbit_chx.streams.messages.parser import (
    BINARIES,
    BOOLEAN,
    FALSE,
    LISTS,
    MAPS,
    NULL,
    TEXTS,
    TIMESTAMP,
    TRUE,
    Encoded,
    Flags,
    Sections,
    Span,
    Values,
)
from rabbit_chx.streams.messages.sub_entries import SIZE
from rabbit_chx.working.settings import log

_FEW: Final = 12
"""With fewer messages, decoding one by one is faster."""
_MOST_ROWS: Final = 4_096
_MOST_BYTES: Final = 4 << 20
"""Further chunks are searched together with the first one up to these."""
_MOST_UNPACKED: Final = 32


class StoredMessage(DecodedLater, StreamMessage):
    """A message that is known to be decodable. Its properties are decoded on first access."""

    __slots__ = ("encoded",)

    def __init__(
        self,
        stored: bytes,
        body: bytes,
        routing_key: str,
        exchange: str,
        stream: str,
        offset: int,
        stream_timestamp: datetime | None,
    ) -> None:
        # Without the checks of a `Message`, which every message would pay for.
        self.encoded: bytes = stored
        self.body = body
        self.routing_key = routing_key
        self.exchange = exchange
        self.queue = stream
        self.offset = offset
        self.stream_timestamp = stream_timestamp
        self.redelivered = False
        self.attempt = 1

    def _decoded(self) -> Mapping[str, Any]:
        return decode(self.encoded, self.queue, self.offset)._properties


class Undecodable(StreamMessage):
    """An undecodable message or sub-entry batch, or the undecodable rest of a chunk, as stored."""

    __slots__ = ("error", "last")

    def __init__(
        self, stored: bytes, error: CorruptStream | MissingDependency, stream: str, offset: int, last: int
    ) -> None:
        super().__init__(stored, queue=stream, offset=offset)
        self.error: CorruptStream | MissingDependency = error
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
    """Yield each message with ``start <= offset < end``, in order, as soon as its chunk is there.

    Args:
        chunks: of one stream, in order.
        start: the first offset.
        end: the offset after the last one.
        max_items: how many items the lists, maps and arrays of a message may have.
        max_batch_bytes: how many bytes a compressed sub-entry batch may decompress to.
    """
    for chunk in chunks:
        for message in stored_in([chunk], start, end, max_items=max_items, max_batch_bytes=max_batch_bytes):
            if type(message) is Undecodable:
                raise message.error
            yield message


def stored_in(
    chunks: Sequence[Chunk],
    start: int = 0,
    end: float = math.inf,
    *,
    max_items: int = MAX_ITEMS,
    max_batch_bytes: int | None = None,
) -> Iterator[StreamMessage]:
    """Yield the messages of chunks as `messages_of` does, with `Undecodable` in place of an error."""
    left = chunks
    while left:
        group = _beginning(left)
        records = None
        if not may_have_batches(group[0]):
            with suppress(CorruptChunk, MissingDependency):
                records = records_of(*group, most_bytes=_MOST_BYTES, max_batch_bytes=max_batch_bytes)
        if records is None:
            group = group[:1]
            yield from _of_one(group[0], start, end, max_items, max_batch_bytes)
        else:
            group = group[: len(records.counts)]
            yield from _found(group, records, start, end, max_items)
        left = left[len(group) :]


def unpacked(chunks: Sequence[Chunk], start: int, end: int) -> list[Chunk]:
    """Chunks with the same messages, each with few of them and without compression, so that a part costs in proportion to its size.

    Entries that cannot be decompressed remain as they are.
    """
    found: list[Chunk] = []
    for chunk in chunks:
        try:
            found += [small for piece in pieces_of(chunk, None, start, end) for small in _unpacked(piece)]
        except CorruptChunk:  # its header and its entries differ
            found.append(chunk)
    return found


def _unpacked(piece: Chunk) -> Iterator[Chunk]:
    try:
        records = records_of(piece)
    except (CorruptChunk, MissingDependency):
        if piece.entries > 1:
            for entry in entries_of(piece):
                yield from _unpacked(entry)
        else:
            yield piece
        return
    messages = iter(records)
    for first in range(piece.first_offset, piece.end, _MOST_UNPACKED):
        few = [SIZE.pack(len(each)) + each for each in islice(messages, _MOST_UNPACKED)]
        data = memoryview(b"".join(few))
        yield piece._replace(entries=len(few), records=len(few), first_offset=first, data=data)


def _beginning(chunks: Sequence[Chunk]) -> Sequence[Chunk]:
    """The first chunks, so many that the processor's cache holds them; one with sub-entry batches is alone."""
    rows = size = count = 0
    for chunk in chunks:
        rows, size = rows + chunk.records, size + len(chunk.data)
        if count and (may_have_batches(chunk) or rows > _MOST_ROWS or size > _MOST_BYTES):
            break
        count += 1
        if may_have_batches(chunk):
            break
    return chunks[:count]


def _of_one(
    chunk: Chunk, start: int, end: float, max_items: int, max_batch_bytes: int | None
) -> Iterator[StreamMessage]:
    following = max(start, chunk.first_offset)
    try:
        for piece in pieces_of(chunk, max_batch_bytes, start, end):
            yield from _of_piece(piece, start, end, max_items, max_batch_bytes)
            following = max(following, piece.end)
    except CorruptChunk as error:  # its header and its entries differ
        if following < end:
            last = max(following, chunk.end - 1)
            yield Undecodable(bytes(chunk.data), error, chunk.stream, following, last)


def _of_piece(
    piece: Chunk, start: int, end: float, max_items: int, max_batch_bytes: int | None
) -> Iterator[StreamMessage]:
    """Yield the messages of a piece of a chunk, with `Undecodable` in place of each entry that cannot be decoded."""
    try:
        records = records_of(piece, max_batch_bytes=max_batch_bytes)
    except (CorruptChunk, MissingDependency) as error:
        if piece.entries > 1:
            for entry in entries_of(piece):
                if entry.end > start and entry.first_offset < end:
                    yield from _of_piece(entry, start, end, max_items, max_batch_bytes)
        elif piece.records:
            first = max(start, piece.first_offset)
            yield Undecodable(bytes(piece.data), error, piece.stream, first, piece.end - 1)
    else:
        yield from _found([piece], records, start, end, max_items)


def _found(
    chunks: Sequence[Chunk], records: Records, start: int, end: float, max_items: int
) -> Iterator[StreamMessage]:
    """Yield the messages of records whose offset is in the range."""
    data, spans = records.data, _spans(records, max_items)
    for chunk, count in zip(chunks, records.counts, strict=True):
        stream, time = chunk.stream, moment(chunk.timestamp_ms, MILLISECOND)
        for offset, each in enumerate(islice(spans, count), chunk.first_offset):
            if not start <= offset < end:
                continue
            at, stop, body, body_stop, key, key_stop, exchange, exchange_stop = each
            if body_stop < 0:
                yield _decoded(data[at:stop], chunk, offset, max_items)
                continue
            try:
                routing_key, of = data[key:key_stop].decode(), data[exchange:exchange_stop].decode()
            except UnicodeDecodeError:
                yield _decoded(data[at:stop], chunk, offset, max_items)
                continue
            yield StoredMessage(data[at:stop], data[body:body_stop], routing_key, of, stream, offset, time)


def _spans(records: Records, max_items: int) -> Iterator[tuple[int, ...]]:
    """Where each message is, its body, routing key and exchange. The body ends at -1 if the message must be decoded."""
    if len(records.starts) >= _FEW:
        try:
            quick = Quick(records, min(max_items, MAX_ITEMS))
        except Exception:  # noqa: BLE001 - the slower path decides what is valid
            log.warning("the messages of a chunk are decoded one by one, because of a defect", exc_info=True)
        else:
            spans = quick.body, quick.key, quick.exchange
            columns = (each for span in spans for each in (span.start, span.stop))
            return zip(*(each.tolist() for each in (records.starts, records.stops, *columns)), strict=True)
    nowhere = repeat(0), repeat(-1), *(repeat(0) for _ in range(4))
    return zip(records.starts.tolist(), records.stops.tolist(), *nowhere, strict=False)


def _decoded(stored: bytes, chunk: Chunk, offset: int, max_items: int) -> StreamMessage:
    try:
        return decode(stored, chunk.stream, offset, chunk.timestamp_ms, max_items=max_items)
    except InvalidMessage as error:
        return Undecodable(stored, error, chunk.stream, offset, offset)
    except Exception as error:  # noqa: BLE001 - no message that anybody can store ends its readers by a defect
        why = InvalidMessage(f"decoding failed: {described(error)}", chunk.stream, offset)
        return Undecodable(stored, why, chunk.stream, offset, offset)


_ITEMS: Final = (*TEXTS, *BINARIES, NULL, TRUE, FALSE, BOOLEAN, *INTEGERS, TIMESTAMP, 0x72, 0x82, 0x98)
"""Constructors of items that can always be decoded, if they end within their list or map."""
_IS_ITEM: Final[Flags] = np.isin(np.arange(256), _ITEMS)
_KEY, _EXCHANGE = b"x-routing-key", b"x-exchange"


class Quick:
    """What was found in the messages of some chunks. ``body.stop`` is -1 for those that `decode` must decode.

    Only the structure is checked, with NumPy: that every value ends where it must, and has a known constructor. Messages with anything
    unusual, such as a list as a header, are left to `decode`, which is the readable definition of what is valid.
    """

    def __init__(self, records: Records, max_items: int) -> None:
        starts, stops = records.starts, records.stops
        data = np.frombuffer(records.data, np.uint8)
        self.encoded: Encoded = Encoded(data, len(starts))
        self.body: Span = Span(np.zeros(len(starts), np.int64), np.full(len(starts), -1, np.int64))
        self.key: Span = Span(*np.zeros((2, len(starts)), np.int64))
        self.exchange: Span = Span(*np.zeros((2, len(starts)), np.int64))
        sections = Sections(self.encoded, starts, stops)
        self.body.put(sections.bodies())
        self._lists(sections.read(HEADER, LISTS))
        self._maps(sections.read(ANNOTATIONS, MAPS), {_KEY: self.key, _EXCHANGE: self.exchange})
        self._lists(sections.read(PROPERTIES, LISTS))
        self._maps(sections.read(APPLICATION_PROPERTIES, MAPS), {})
        self.encoded.put_once(self.body, sections.read(DATA, BINARIES))
        self.encoded.put_once(self.body, sections.read(VALUE, (*BINARIES, *TEXTS)))
        # A byte besides the body counts as less than two items.
        besides = (stops - starts) - (self.body.stop - self.body.start)
        simple = self.encoded.simple & (sections.at == stops) & (2 * besides <= max_items)
        self.body.stop[~simple] = -1

    def _lists(self, values: Values) -> None:
        for items in self.encoded.lists(values):
            self._check(items)

    def _maps(self, values: Values, wanted: Mapping[bytes, Span]) -> None:
        for names, items in self.encoded.maps(values):
            self.encoded.only(names, TEXTS)
            self._check(items)
            for name, span in wanted.items():
                same = self.encoded.are(names, name)
                if same.any():
                    span.put(self.encoded.only(items.of(same), TEXTS))

    def _check(self, items: Values) -> None:
        known = _IS_ITEM[items.code]
        if not known.all():
            self.encoded.give_up(items.rows[~known])
