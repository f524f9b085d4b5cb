"""Chunks: recorded from brokers, built, and damaged."""

from __future__ import annotations

import gzip
import pickle
import struct
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from rabbit_chx.errors import CorruptChunk
from rabbit_chx.streams.messages import sub_entries
from rabbit_chx.streams.messages.arrow.batch import record_batches
from rabbit_chx.streams.messages.chunks import parse_chunk, records_of
from tests.stream_chunks import RECORDED, a_batch, a_chunk, gzipped, sized


@pytest.mark.parametrize(
    "one", [one for one in RECORDED if one.publisher in {"sub-entries", "filtered"}], ids=str
)
def test_records_of_sub_entry_batches_keep_their_order(one) -> None:
    assert [record.decode() for record in records_of(parse_chunk(one.chunk, "s"))] == one.messages


@pytest.mark.parametrize("count", [0, 1, 31, 32, 100])
@pytest.mark.parametrize("equal", [True, False])
def test_records_of_equal_and_different_lengths_are_found(count: int, equal: bool) -> None:
    bodies = [b"x" * (5 if equal else number) for number in range(count)]
    assert list(records_of(parse_chunk(a_chunk(map(sized, bodies)), "s"))) == bodies


@pytest.mark.parametrize("kind", [1, 2])
def test_tracking_chunks_have_no_records(kind: int) -> None:
    assert not list(records_of(parse_chunk(a_chunk([b"anything"], kind=kind, records=0), "s")))


COMPRESSED = {
    "none": (0, bytes),
    "gzip": (1, gzip.compress),
    "lz4": (3, lambda data: _by_arrow(data, "lz4")),
    "zstd": (4, lambda data: _by_arrow(data, "zstd")),
}


def _by_arrow(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("codec", COMPRESSED)
def test_sub_entry_batches_are_decompressed(codec: str) -> None:
    number, compress = COMPRESSED[codec]
    bodies = [b"body %d" % place for place in range(50)]
    plain = b"".join(map(sized, bodies))
    chunk = a_chunk(
        [sized(b"before"), a_batch(number, 50, compress(plain), len(plain)), sized(b"after")], records=52
    )
    assert list(records_of(parse_chunk(chunk, "s"))) == [b"before", *bodies, b"after"]


def test_snappy_is_not_decompressed_beyond_the_announced_size(monkeypatch) -> None:
    pieces = []

    class StreamDecompressor:
        def decompress(self, data: bytes) -> bytes:
            pieces.append(len(data))
            return bytes(20 * len(data))

    monkeypatch.setitem(sys.modules, "snappy", SimpleNamespace(StreamDecompressor=StreamDecompressor))
    chunk = parse_chunk(a_chunk([a_batch(2, 1, bytes(10**7), 2_000_000)], records=1), "s")
    with pytest.raises(CorruptChunk, match="decompresses to more than 2000000 bytes"):
        records_of(chunk)
    assert sum(pieces) < 200_000


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
@pytest.mark.parametrize(("stored", "allowed"), [(14, 16), (1 << 20, 24), (8 << 20, 24)])
def test_a_chunk_that_announces_too_much_for_its_size_is_not_decompressed(
    compression: int, stored: int, allowed: int
) -> None:
    batch = a_batch(compression, 1, bytes(stored - 11), (allowed << 20) + 1 + 250 * 11)
    with pytest.raises(CorruptChunk, match=f"decompress to more than {allowed << 20} bytes"):
        records_of(parse_chunk(a_chunk([batch]), "s"))


def test_the_limit_counts_all_batches_of_a_chunk_and_those_of_no_other_chunk(monkeypatch) -> None:
    monkeypatch.setattr(sub_entries, "_MOST_DECOMPRESSED", 1 << 20)
    batch = gzipped(bytes(600_000))
    one = parse_chunk(a_chunk([batch]), "s")
    assert records_of(one, one).counts == [1, 1]
    with pytest.raises(
        CorruptChunk, match=r"more than 1048576 bytes; StreamReader\(max_batch_bytes=...\) changes"
    ):
        records_of(parse_chunk(a_chunk([batch, batch]), "s"))


GOOD = a_chunk([sized(b"one"), sized(b"two")], offset=7)
DAMAGED = {
    "too short for a header": (GOOD[:47], "47 bytes, fewer than the 48 of a header"),
    "another version": (b"\x51" + GOOD[1:], "expected 0x50"),
    "unknown type": (GOOD[:1] + b"\x03" + GOOD[2:], "the type is 3"),
    "an invalid offset": (a_chunk([sized(b"a")], offset=2**64 - 1), "expected less than 2"),
    "cut": (GOOD[:-1], "13 bytes follow the header, expected 14"),
    "too long": (GOOD + b"x", "15 bytes follow the header, expected 14"),
    "a changed byte": (GOOD[:-1] + b"X", "checksum"),
    "more entries than data": (a_chunk([sized(b"a")], entries=2, records=2), "1 entries are missing"),
    "fewer entries than data": (a_chunk([sized(b"a"), sized(b"b")], entries=1, records=1), "5 bytes follow"),
    "a message beyond the end": (a_chunk([struct.pack(">I", 9) + b"a"]), "9 bytes exceeds the 1 remaining"),
    "another number of records": (
        a_chunk([sized(b"a")], records=2, offset=7),
        "corrupt chunk at offset 7 of stream 'orders': the chunk has 1 message, expected 2",
    ),
    "half a batch": (a_chunk([b"\x80\0\1\0"]), "incomplete"),
    "a batch beyond the end": (
        a_chunk([struct.pack(">BHII", 0x80, 1, 5, 500)]),
        "500 bytes exceeds the 0 remaining",
    ),
    "an unknown compression": (a_chunk([a_batch(5, 1, b"x", 1)]), "unknown compression 5"),
    "invalid gzip": (a_chunk([a_batch(1, 1, b"xxxx", 5)]), "not valid gzip"),
    "invalid lz4": (a_chunk([a_batch(3, 1, b"xxxxxxxx", 5)]), "not valid lz4"),
    "invalid zstd": (a_chunk([a_batch(4, 1, b"xxxxxxxx", 5)]), "not valid zstd"),
    "a decompression bomb": (
        a_chunk([a_batch(1, 1, gzip.compress(bytes(10**7)), 5)]),
        "decompresses to more than 5 bytes",
    ),
    "less data than announced": (
        a_chunk([a_batch(1, 1, gzip.compress(b"abc"), 5)]),
        "to 3 bytes, expected 5",
    ),
    "a batch that is not full": (a_chunk([a_batch(0, 1, sized(b"a") + b"b", 6)]), "do not fill"),
    "a batch within a batch": (a_chunk([a_batch(0, 1, a_batch(0, 1, sized(b"a"), 5), 16)]), "do not fill"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_chunks_are_refused_with_the_stream(name: str) -> None:
    data, reason = DAMAGED[name]
    with pytest.raises(CorruptChunk, match=reason) as caught:
        records_of(parse_chunk(data, "orders"))
    assert caught.value.stream == "orders"
    assert "stream 'orders'" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@given(
    st.binary(min_size=48, max_size=48),
    st.sampled_from([one for one in RECORDED if one.publisher == "sub-entries"]),
)
def test_random_headers_are_read_or_refused(header: bytes, one) -> None:
    """The checksum does not cover the header."""
    for places in (slice(2, 8), slice(8, 32), slice(1, 32)):
        changed = bytearray(one.chunk)
        changed[places] = header[places]
        try:
            batches = list(record_batches([parse_chunk(changed, "s")]))
        except CorruptChunk:
            continue
        assert sum(batch.num_rows for batch in batches) in {0, len(one.messages)}
