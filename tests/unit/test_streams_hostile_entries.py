"""Stored entries that cost their readers much more than their publisher: peak memory, and what readers say."""

from __future__ import annotations

import gzip
import struct
import sys
import zlib
from pathlib import Path
from random import Random

import pytest

from rabbit_chx.errors import CorruptChunk, InvalidMessage, InvalidValue, MissingDependency
from rabbit_chx.streams import StreamBatch, StreamReader
from rabbit_chx.streams.group.batch import why_undecodable
from rabbit_chx.streams.messages.chunks import Chunk, parse_chunk, pieces_of
from rabbit_chx.streams.messages.message import decode
from rabbit_chx.streams.messages.stored import stored_in
from tests.programs import ran
from tests.stream_chunks import a_batch, a_chunk, gzipped, sized

MOST_MEGABYTES = 200
EMPTY = a_batch(1, 65_535, gzip.compress(bytes(4 * 65_535)), 4 * 65_535)


def compressed(message: bytes) -> bytes:
    return a_chunk([gzipped(message)])


def a_list(items: bytes, count: int) -> bytes:
    return b"\0\x53\x77" + b"\xd0" + struct.pack(">II", len(items) + 4, count) + items


def megabytes(count: int, batches: int = 1) -> bytes:
    """Batches with one message each, whose body has this many MiB and compresses to 1/240 at best."""
    body = count << 20
    head = struct.pack(">I", body + 8) + b"\0\x53\x75\xb0" + struct.pack(">I", body)
    zipped = zlib.compressobj(wbits=31)
    random = Random(1).randbytes(body // 240)
    zeros, rest = divmod(body - len(random), 1 << 20)
    parts = [head, random, *[bytes(1 << 20)] * zeros, bytes(rest)]
    stored = b"".join([*map(zipped.compress, parts), zipped.flush()])
    return a_chunk([a_batch(1, 1, stored, len(head) + body)] * batches, records=batches)


def repeated(message: bytes, size: int) -> bytes:
    """One batch of copies of a message, with this many bytes."""
    count = size // len(sized(message))
    return a_chunk([gzipped(*[message] * count)], records=count)


def a_map(section: int, *items: bytes) -> bytes:
    joined = b"".join(items)
    return b"\0\x53%c\xd1" % section + struct.pack(">II", len(joined) + 4, 2 * len(items)) + joined


MANY = 8_000_000
ALLOWED = (16 << 20) - 100_000
"""Not quite the bytes that a batch may always decompress to."""
BOOLEANS = a_list(b"\x42" * 98_000, 98_000)
DENSE = (
    a_map(0x72, *(b"\xa1\x01%c\xa0\0" % name for name in range(1, 65)))
    + a_map(0x74, *(b"\xa1\x02x%c\x83" % name + b"\x7f" + bytes(7) for name in range(1, 65)))
    + b"\0\x53\x75\xa0\0"
)
"""A message with as many headers as are decoded together, each of which takes many times its size."""
HOSTILE = {
    "a list of 8 million nulls": lambda: compressed(a_list(b"\x40" * MANY, MANY)),
    "an array of 8 million bytes": lambda: compressed(
        b"\0\x53\x77\xf0" + struct.pack(">IIB", MANY + 5, MANY, 0x50) + bytes(MANY)
    ),
    "lists of empty lists": lambda: compressed(a_list((b"\xc0\xff\xfe" + b"\x45" * 254) * 30_000, 30_000)),
    "headers of 4 million names": lambda: compressed(
        b"\0\x53\x74\xd1" + struct.pack(">II", MANY + 4, MANY) + b"\x40" * MANY
    ),
    "a text of 15 MiB in a list": lambda: compressed(
        a_list(b"\xb1" + struct.pack(">I", 15 << 20) + b"\x01" * (15 << 20), 1)
    ),
    "many lists of 98,000 booleans": lambda: repeated(BOOLEANS, ALLOWED),
    "many lists of control characters": lambda: repeated(
        a_list(b"\xb1" + struct.pack(">I", 90_000) + b"\x01" * 90_000, 1), ALLOWED
    ),
    "many messages of many headers": lambda: repeated(DENSE, ALLOWED),
    "a body of 250 MiB": lambda: megabytes(250),
    "4 bodies of 23 MiB": lambda: megabytes(23, 4),
    "20 bodies of 5 MiB": lambda: megabytes(5, 20),
    "500 batches of 65,535 empty messages": lambda: a_chunk([EMPTY] * 500, records=500 * 65_535),
    "more batches than in the header": lambda: a_chunk([EMPTY] * 500, records=1),
}
READ = """
import sys
from pathlib import Path
from rabbit_chx.errors import CorruptStream
from rabbit_chx.streams import StreamReader
from rabbit_chx.streams.messages.arrow import batch
from rabbit_chx.streams.messages.chunks import parse_chunk
from tests.programs import peak

way, divisor, *files = sys.argv[1:]
batch._MOST_OF_HEADERS //= int(divisor)
reader = StreamReader("rabbitmq-stream://h", "s")
chunks = [parse_chunk(Path(file).read_bytes(), "s") for file in files]


def found(chunk):
    reader._chunks = lambda start, end: iter([chunk])
    if way == "messages":
        return sum(1 for _ in zip(range(70_000), reader.messages(0, chunk.end)))
    columns = ["offset", "headers", "body"]
    return sum(batch.num_rows for batch in reader.read(0, min(chunk.end, 500_000), columns=columns))


*usual, hostile = chunks
for chunk in usual:
    found(chunk)
before = peak(reset=True)
try:
    print(found(hostile), "messages")
except CorruptStream as error:
    print(error)
print((peak() - before) >> 20)
"""
EXPECTED = {
    "many lists of 98,000 booleans": dict.fromkeys(("messages", "read"), "170 messages"),
    "many lists of control characters": dict.fromkeys(("messages", "read"), "185 messages"),
    "many messages of many headers": dict.fromkeys(("messages", "read"), "14073 messages"),
    "a body of 250 MiB": dict.fromkeys(("messages", "read"), "decompress to more than 25165824 bytes"),
    "4 bodies of 23 MiB": dict.fromkeys(("messages", "read"), "4 messages"),
    "20 bodies of 5 MiB": dict.fromkeys(("messages", "read"), "20 messages"),
    "500 batches of 65,535 empty messages": {"messages": "70000 messages", "read": "500000 messages"},
    "more batches than in the header": dict.fromkeys(("messages", "read"), "messages, expected 1"),
}


def read(way: str, folder: Path, *chunks: bytes, divisor: int = 1) -> tuple[str, int]:
    """What a process says that reads chunks, and by how many MiB the last one made it grow."""
    files = [folder / str(number) for number in range(len(chunks))]
    for file, chunk in zip(files, chunks, strict=True):
        file.write_bytes(chunk)
    ended = ran([sys.executable, "-c", READ, way, str(divisor), *map(str, files)], timeout=500)
    assert not ended.returncode, ended.stderr
    *_, said, grown = ended.stdout.splitlines()
    return said, int(grown)


SLOW = {
    ("many lists of 98,000 booleans", "messages"),
    ("many lists of 98,000 booleans", "read"),
    ("many messages of many headers", "read"),
}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=[pytest.mark.long] * ((name, way) in SLOW))
        for name in HOSTILE
        for way in ("messages", "read")
    ],
)
def test_hostile_entries_cost_a_reader_little_memory(name: str, way: str, tmp_path: Path) -> None:
    hostile = HOSTILE[name]()
    assert len(hostile) < 4_000_000
    said, grown = read(way, tmp_path, hostile)
    assert EXPECTED.get(name, {}).get(way, "have more than 150000 items") in said
    assert grown < MOST_MEGABYTES


@pytest.mark.parametrize(("message", "count"), [(BOOLEANS, 21), (DENSE, 1769)], ids=["booleans", "headers"])
def test_messages_of_many_items_are_converted_a_few_at_a_time(message, count, tmp_path: Path) -> None:
    """A sixteenth of the limit divides a chunk of 2 MiB, which would cost more than 40 MiB otherwise."""
    usual = a_chunk(
        [sized(a_list(b"\x42", 1)), sized(DENSE)]
    )  # the reader then has imported all that it needs
    said, grown = read("read", tmp_path, usual, repeated(message, 2 << 20), divisor=16)
    assert said == f"{count} messages"
    assert grown < 30


def test_the_pieces_of_a_chunk_are_its_entries_in_order() -> None:
    chunk = parse_chunk(a_chunk([EMPTY, sized(b"x"), EMPTY, EMPTY], records=3 * 65_535 + 1, offset=7), "s")
    found = [(one.first_offset - 7, one.records, one.entries) for one in pieces_of(chunk)]
    assert found == [(0, 65_536, 2), (65_536, 65_535, 1), (131_071, 65_535, 1)]
    assert b"".join(bytes(one.data) for one in pieces_of(chunk)) == bytes(chunk.data)


@pytest.mark.parametrize("records", [3 * 65_535 - 1, 3 * 65_535 + 1])
def test_a_header_with_another_number_of_messages_is_refused(records: int) -> None:
    with pytest.raises(CorruptChunk, match="196605 messages, expected"):
        list(pieces_of(parse_chunk(a_chunk([EMPTY] * 3, records=records), "s")))


def test_every_message_that_amqp_0_9_1_can_carry_is_read() -> None:
    """Its headers fit into a frame of 131,072 bytes, in which an item takes a byte at least."""
    nulls = b"\xd0" + struct.pack(">II", 131_076, 131_072) + b"\x40" * 131_072
    text = b"\xb1" + struct.pack(">I", 131_072) + b"\x01" * 131_072
    for value in (nulls, text):
        assert decode(a_map(0x72, b"\xa3\x03x-h" + value), "s", 0).headers.keys() == {"x-h"}
    body = b"\0\x53\x77\xb1" + struct.pack(">I", 8 << 20) + b"x" * (8 << 20)
    assert len(decode(body, "s", 0).body) == 8 << 20


def test_a_reader_may_accept_more_items() -> None:
    message = a_list(b"\x40" * 200_000, 200_000)
    with pytest.raises(
        InvalidMessage, match=r"more than 150000 items of 32 bytes; StreamReader\(max_items=...\) changes"
    ):
        decode(message, "s", 0)
    assert decode(message, "s", 0, max_items=200_000).body.startswith(b"[null,null")


def reader_of(chunk: Chunk, max_batch_bytes: int | None = None) -> StreamReader:
    reader = StreamReader("rabbitmq-stream://h", "s", max_batch_bytes=max_batch_bytes)
    reader._chunks = lambda start, end: iter([chunk])
    return reader


@pytest.mark.parametrize("way", ["messages", "read"])
def test_a_reader_may_accept_larger_batches_or_only_smaller_ones(way: str) -> None:
    chunk = parse_chunk(megabytes(25, 2), "s")

    def found(limit: int | None) -> int:
        if way == "messages":
            return sum(len(message.body) for message in reader_of(chunk, limit).messages(0, 2))
        batches = reader_of(chunk, limit).read(0, 2, columns=["body"])
        return sum(len(body) for batch in batches for body in batch["body"].to_pylist())

    assert found(26 << 20) == 2 * 25 << 20
    for limit, shown in ((None, 24 << 20), (1_000, 1_000)):
        with pytest.raises(
            CorruptChunk, match=rf"more than {shown} bytes; StreamReader\(max_batch_bytes=...\)"
        ):
            found(limit)


def test_a_small_limit_admits_a_chunk_of_many_small_batches() -> None:
    chunk = parse_chunk(a_chunk([gzipped(bytes(900))] * 5), "s")
    assert [len(message.body) for message in reader_of(chunk, 1_000).messages(0, 5)] == [900] * 5


JUNK = a_batch(1, 2, b"not gzip" * 1_000, 100)
GOOD = gzipped(b"a", b"a")
MIXED = [GOOD, JUNK, sized(b"b"), JUNK, a_batch(7, 1, b"", 0), GOOD]


def test_each_undecodable_batch_is_a_message_of_its_own() -> None:
    """Once, a group that parks parked the whole chunk, which the broker refused for its size."""
    chunk = parse_chunk(a_chunk(MIXED, records=10, offset=7), "s")
    found = [(each.offset, each.body, getattr(each, "last", None)) for each in stored_in([chunk])]
    good = [(7, b"a", None), (8, b"a", None), (11, b"b", None), (15, b"a", None), (16, b"a", None)]
    junk = [(9, JUNK, 10), (12, JUNK, 13), (14, MIXED[4], 14)]
    assert found == sorted(good + junk)


def test_the_messages_around_an_undecodable_batch_are_read_both_ways() -> None:
    batch = StreamBatch([parse_chunk(a_chunk(MIXED, records=10, offset=7), "s")])
    bodies, undecodable = [], []
    left = [batch]
    while left:
        part, *left = left
        if len(parts := part._around_undecodable()) > 1:
            left = [*parts, *left]
        elif why_undecodable(part):
            undecodable.append((part.first, part.last))
        else:
            assert part.arrow(["body"])["body"].to_pylist() == [each.body for each in part.messages()]
            bodies += [(each.offset, each.body) for each in part.messages()]
    assert bodies == [(7, b"a"), (8, b"a"), (11, b"b"), (15, b"a"), (16, b"a")]
    assert [offset for first, last in undecodable for offset in range(first, last + 1)] == [9, 10, 12, 13, 14]


def test_a_batch_without_messages_is_left_out_whatever_is_in_it() -> None:
    chunk = parse_chunk(a_chunk([a_batch(1, 0, b"junk", 9), sized(b"x")], records=1), "s")
    assert [each.body for each in stored_in([chunk])] == [b"x"]
    assert StreamBatch([chunk]).arrow(["body"])["body"].to_pylist() == [b"x"]


def test_a_compression_without_its_library_is_undecodable(monkeypatch) -> None:
    """Any publisher can choose the compression, so it must not end a group that parks."""
    monkeypatch.setitem(sys.modules, "snappy", None)
    chunk = parse_chunk(a_chunk([sized(b"x"), a_batch(2, 1, b"junk", 9), sized(b"y")], records=3), "s")
    x, undecodable, y = stored_in([chunk])
    assert (x.body, y.body) == (b"x", b"y")
    assert [part.first for part in StreamBatch([chunk])._around_undecodable()] == [0, 1, 2]
    assert StreamBatch([chunk])._around_undecodable()[0].arrow(["body"])["body"].to_pylist() == [b"x"]
    assert isinstance(undecodable.error, MissingDependency)
    with pytest.raises(MissingDependency, match=r"snappy.*pip install python-snappy"):
        list(reader_of(chunk).messages(0, 3))


@pytest.mark.parametrize("limit", [0, -1, 1 << 32])
def test_a_limit_that_no_batch_can_have_is_refused(limit: int) -> None:
    with pytest.raises(InvalidValue, match="max_batch_bytes"):
        StreamReader("rabbitmq-stream://h", "s", max_batch_bytes=limit)
