"""How much work stored bytes cost their readers: in proportion to the decompressed bytes, however they are arranged."""

from __future__ import annotations

import gzip
import struct
import sys
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from rabbit_chx.streams import BatchFailed, StreamBatch
from rabbit_chx.streams.group.batch import failed_part, why_undecodable
from rabbit_chx.streams.messages import amqp10, stored
from rabbit_chx.streams.messages.chunks import Chunk, parse_chunk
from rabbit_chx.streams.messages.message import decode, row_of
from tests.stream_chunks import a_batch, a_chunk, gzipped, sized
from tests.stream_forgeries import BODY, a_map, text
from tests.unit.test_stream_groups import lane

CUT = b"\0\x53\x75"
COUNT, FEW = 4_000, 1_000
SIZE_OF_BODY = 4
MOST = 40
"""Messages that may be searched for one, at the price of a few when they are searched together."""


def alternating() -> Chunk:
    """A sub-entry batch of about 100 bytes: every second message is undecodable."""
    return parse_chunk(a_chunk([gzipped(*[b"x", CUT] * (COUNT // 2))], records=COUNT), "s")


@pytest.fixture
def searched(monkeypatch) -> list[int]:
    """How many messages each search has found."""
    found: list[int] = []
    search = stored.records_of

    def counting(*chunks: Chunk, **limits: int):
        records = search(*chunks, **limits)
        found.append(len(records.starts))
        return records

    monkeypatch.setattr(stored, "records_of", counting)
    return found


def test_undecodable_messages_between_others_are_searched_for_once(searched) -> None:
    """Each of them had the whole batch decompressed and searched several times: minutes of CPU for 100 bytes."""
    it = lane()
    it.add(alternating())
    bodies = []
    while (item := it.take()) is not None:
        if isinstance(item, StreamBatch):
            assert it.why_undecodable(item)
            (item,) = item._stored()
        bodies.append(item.body)
        it.finish(item, it.channel)
    assert bodies == [b"x", CUT] * (COUNT // 2)
    assert sum(searched) == COUNT


def test_a_batch_is_divided_around_undecodable_messages_at_once(searched) -> None:
    parts = StreamBatch([alternating()])._around_undecodable()
    assert [(each.first, each.last) for each in parts] == [(offset, offset) for offset in range(COUNT)]
    assert [bool(why_undecodable(each)) for each in parts] == [False, True] * (COUNT // 2)
    assert [next(each._stored()).body for each in parts] == [b"x", CUT] * (COUNT // 2)
    assert sum(searched) <= MOST * COUNT


@pytest.mark.parametrize(("compressed", "every"), [(True, 1), (False, 1), (False, 100)])
def test_a_handler_that_fails_with_many_messages_of_a_batch_has_few_searched_for_each(
    searched, compressed, every
) -> None:
    """Each failure decompressed the batch, and searched all messages behind it to divide them; the next attempt, up to 4,096."""
    entries = [gzipped(*[b"x"] * FEW)] if compressed else [sized(b"x")] * FEW
    rest: Any = StreamBatch([parse_chunk(a_chunk(entries, records=FEW), "s")])
    handled = []
    while rest is not None:
        messages = [each.offset for each in islice(rest.messages(), every)]
        failed, rest = failed_part(rest._unpacked(), BatchFailed(messages[-1]))
        handled += messages
        assert (failed.first, failed.last) == (messages[0], messages[-1])
        assert failed._since(messages[-1]).first == messages[-1]
    assert handled == [*range(FEW)]
    assert sum(searched) <= MOST * FEW


def test_a_batch_is_the_same_when_it_is_unpacked() -> None:
    pieces = [
        *(sized(b"a"), a_batch(1, 2, b"not gzip", 100), a_batch(0, 2, sized(b"b") * 2, 0), sized(CUT)),
        gzipped(*[b"c"] * 600),
    ]
    batch = StreamBatch([parse_chunk(a_chunk(pieces, records=606, offset=7), "s")], 8)
    unpacked = batch._unpacked()
    assert len(unpacked._chunks) > 3
    assert (unpacked.first, unpacked.last, len(unpacked)) == (8, 612, 605)
    for found in (batch, unpacked):
        assert [(each.offset, each.body) for each in found._stored()] == [
            (8, pieces[1]), (10, b"b"), (11, b"b"), (12, CUT), *((offset, b"c") for offset in range(13, 613))
        ]  # fmt: skip


MANY = 10_000
A_LIST = b"\xd0" + struct.pack(">II", MANY + 4, MANY) + b"\x42" * MANY
IN_BODY, IN_SEQUENCE = b"\0\x53\x77" + A_LIST, b"\0\x53\x76" + A_LIST
IN_DELIVERY, IN_FOOTER = a_map(0x71, {b"l": A_LIST}), a_map(0x78, {b"l": A_LIST})
KEY = a_map(0x72, {b"l": A_LIST, b"x-routing-key": text(b"k")})
IN_HEADER, IN_PROPERTIES = b"\0\x53\x70" + A_LIST, b"\0\x53\x73" + A_LIST


@pytest.fixture
def items(monkeypatch) -> list[int]:
    """How many items of lists, maps and arrays were decoded."""
    counts: list[int] = []
    take = amqp10.Budget.take

    def counting(budget: amqp10.Budget, count: int) -> None:
        counts.append(count)
        take(budget, count)

    monkeypatch.setattr(amqp10.Budget, "take", counting)
    return counts


@pytest.mark.parametrize(
    ("message", "columns", "expected"),
    [
        pytest.param(KEY + IN_BODY, ["routing_key"], {"routing_key": "k"}, id="a list as a body"),
        pytest.param(KEY + IN_SEQUENCE, ["message_id"], {"message_id": None}, id="a sequence as a body"),
        pytest.param(KEY + BODY, ["body"], {"body": b"x"}, id="a list as a header"),
        pytest.param(KEY + BODY, ["routing_key", "body"], {"routing_key": "k", "body": b"x"}, id="a list next to a key"),
        pytest.param(IN_HEADER + IN_PROPERTIES + BODY, ["headers"], {"headers": {}}, id="lists of properties"),
    ],
)  # fmt: skip
def test_what_no_column_needs_is_skipped(message, columns, expected, items) -> None:
    found = row_of(message, "s", 0, columns=columns)
    assert {name: found[name] for name in expected} == expected
    assert sum(items) < 10
    row_of(message, "s", 0)
    assert sum(items) >= MANY


@pytest.mark.parametrize(
    "message", [IN_DELIVERY + BODY, BODY + IN_FOOTER, BODY + IN_BODY, BODY + IN_SEQUENCE]
)
def test_what_no_message_shows_is_skipped(message, items) -> None:
    assert decode(message, "s", 0).body == b"x"
    assert sum(items) == 0


@pytest.mark.parametrize(
    ("compression", "codec", "most_bytes", "most_messages"),
    [pytest.param(1, "gzip", 1_000, 200, id="gzip"), pytest.param(4, "zstd", 30_000, 2_500, id="zstd")],
)
def test_a_stored_byte_becomes_as_many_bytes_and_messages_as_the_documentation_says(
    compression, codec, most_bytes, most_messages
) -> None:
    """SECURITY.md, "How much a stored byte may cost": no reader refuses such batches."""

    def stored_with(count: int, plain: bytes) -> int:
        data = gzip.compress(plain) if codec == "gzip" else bytes(pa.compress(plain, codec=codec))
        batch = a_batch(compression, count, data, len(plain))
        assert len(stored.records_of(parse_chunk(a_chunk([batch], records=count), "s")).starts) == count
        return len(data)

    body = (16 << 20) - len(sized(CUT)) - len(b"\xb0") - SIZE_OF_BODY
    plain = sized(CUT + b"\xb0" + struct.pack(">I", body) + bytes(body))
    assert len(plain) == 16 << 20
    assert len(plain) / stored_with(1, plain) == pytest.approx(most_bytes, rel=0.1)
    assert 65_535 / stored_with(65_535, sized(b"") * 65_535) == pytest.approx(most_messages, rel=0.2)


VALUES = {
    "booleans": b"\x42",
    "empty lists": b"\x45",
    "empty lists with a size": b"\xc0\x01\0",
    "lists of one": b"\xc0\x02\x01\x41",
    "empty maps": b"\xc1\x01\0",
    "arrays of one": b"\xe0\x03\x01\x50\x07",
    "small integers": b"\x50\x07",
    "empty texts": b"\xa1\0",
    "texts": b"\xa1\x01x",
    "bytes": b"\xa0\x01x",
    "floats": b"\x72\x3f\x80\0\1",
    "times": b"\x83\0\0\1\x7f\1\2\3\4",
    "described": b"\0\x41\x41",
}


def calls(function: Any, *given: Any) -> int:
    """How many functions a function calls, of Python and of C."""
    count = 0

    def profile(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        function(*given)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", VALUES)
def test_the_work_for_a_list_is_in_proportion_to_its_bytes(name: str) -> None:
    """Booleans took ten calls a byte, and empty lists eleven."""
    items = VALUES[name] * MANY
    message = b"\0\x53\x77\xd0" + struct.pack(">II", len(items) + 4, MANY) + items
    per_byte = calls(decode, message, "s", 0) / len(message)
    assert per_byte < (0.1 if name == "booleans" else 10)
