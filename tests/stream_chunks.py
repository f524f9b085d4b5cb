"""Chunks for tests: recorded from real brokers, and built here."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rabbit_chx.streams.messages.chunks import Chunk, records_of
from tests.stream_messages import decode, sized


@dataclass(frozen=True)
class Recorded:
    release: str
    publisher: str
    messages: list[str]
    """The names of the messages in `tests.stream_messages`, or their bodies."""
    chunk: bytes

    def __str__(self) -> str:
        return f"{self.release} {self.publisher} {' '.join(self.messages[:1])}"


def _recorded(line: str) -> Recorded:
    fields = json.loads(line)
    return Recorded(**fields | {"chunk": base64.b64decode(fields["chunk"])})


RECORDED = [
    _recorded(line)
    for line in (Path(__file__).parent / "vectors/stream_chunks.jsonl").read_text().splitlines()
]


def a_batch(compression: int, count: int, data: bytes, uncompressed: int) -> bytes:
    """Build a sub-entry batch."""
    return struct.pack(">BHII", 0x80 | compression << 4, count, uncompressed, len(data)) + data


def gzipped(*messages: bytes) -> bytes:
    """Build a sub-entry batch of these messages."""
    plain = b"".join(map(sized, messages))
    return a_batch(1, len(messages), gzip.compress(plain), len(plain))


def a_chunk(
    pieces: Iterable[bytes],
    *,
    entries: int | None = None,
    records: int | None = None,
    kind: int = 0,
    offset: int = 0,
    time: int = 0,
) -> bytes:
    """Build a chunk of these entries, with a valid checksum."""
    pieces = list(pieces)
    data = b"".join(pieces)
    entries = len(pieces) if entries is None else entries
    records = entries if records is None else records
    header = (0x50, kind, entries, records, time, 1, offset, zlib.crc32(data), len(data), 0, 0)
    return struct.pack(">BbHIqQQIIII", *header) + data


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(milliseconds: int | None) -> datetime | None:
    """Convert milliseconds to the value that Arrow returns."""
    try:
        return None if milliseconds is None else EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def expected_rows(chunk: Chunk) -> list[dict[str, Any]]:
    """Decode the messages of a chunk one by one to rows."""
    rows = []
    for place, record in enumerate(records_of(chunk)):
        offset = chunk.first_offset + place
        row = asdict(decode(record, chunk.stream, offset))
        stored = {"stream": chunk.stream, "offset": offset, "stream_timestamp": moment(chunk.timestamp_ms)}
        rows.append(row | stored)
    return rows
