"""How much work stored bytes cost their readers: in proportion to the decompressed bytes, however they are arranged (security review 3, L5)."""

from __future__ import annotations

import gzip

import pytest

from rabbit_chx.streams import StreamBatch
from rabbit_chx.streams.group.batch import why_undecodable
from rabbit_chx.streams.group.lanes import Attention, StreamLane
from rabbit_chx.streams.messages import stored
from rabbit_chx.streams.messages.chunks import Chunk, parse_chunk
from tests.stream_chunks import a_batch, a_chunk, sized

CUT = b"\0\x53\x75"
COUNT = 4_000
MOST = 40
"""Messages that may be searched for one, at the price of a few when they are searched together."""


def alternating() -> Chunk:
    """A sub-entry batch of about 100 bytes: every second message is undecodable."""
    plain = (sized(b"x") + sized(CUT)) * (COUNT // 2)
    return parse_chunk(a_chunk([a_batch(1, COUNT, gzip.compress(plain), len(plain))], records=COUNT), "s")


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
    lane = StreamLane("s", batches=False, store_every=100, attention=Attention())
    lane.assign(0, None)
    lane.add(alternating())
    bodies = []
    while (item := lane.take()) is not None:
        if isinstance(item, StreamBatch):
            assert lane.why_undecodable(item)
            (item,) = item.stored()
        bodies.append(item.body)
        lane.finish(item, lane.channel)
    assert bodies == [b"x", CUT] * (COUNT // 2)
    assert sum(searched) == COUNT


def test_a_batch_is_divided_around_undecodable_messages_at_once(searched) -> None:
    parts = StreamBatch([alternating()]).around_undecodable()
    assert [(each.first, each.last) for each in parts] == [(offset, offset) for offset in range(COUNT)]
    assert [bool(why_undecodable(each)) for each in parts] == [False, True] * (COUNT // 2)
    assert [next(each.stored()).body for each in parts] == [b"x", CUT] * (COUNT // 2)
    assert sum(searched) <= MOST * COUNT


def test_a_batch_whose_messages_fail_one_after_the_other_is_not_decompressed_for_each(searched) -> None:
    plain = sized(b"x") * COUNT
    chunk = parse_chunk(a_chunk([a_batch(1, COUNT, gzip.compress(plain), len(plain))], records=COUNT), "s")
    batch = StreamBatch([chunk]).unpacked()
    assert len(batch) == COUNT
    del searched[:]
    for offset in range(COUNT - 1):
        failed, rest = batch.divided(offset + 1)
        assert [each.offset for each in failed.stored()] == [offset]
        assert rest is not None
        batch = rest
    assert len(batch) == 1
    assert sum(searched) <= MOST * COUNT


def test_a_batch_is_the_same_when_it_is_unpacked() -> None:
    pieces = [
        *(sized(b"a"), a_batch(1, 2, b"not gzip", 100), a_batch(0, 2, sized(b"b") * 2, 0), sized(CUT)),
        a_batch(1, 600, gzip.compress(sized(b"c") * 600), 3_000),
    ]
    batch = StreamBatch([parse_chunk(a_chunk(pieces, records=606, offset=7), "s")], 8)
    unpacked = batch.unpacked()
    assert len(unpacked._chunks) > 3
    assert (unpacked.first, unpacked.last, len(unpacked)) == (8, 612, 605)
    for found in (batch, unpacked):
        assert [(each.offset, each.body) for each in found.stored()] == [
            (8, pieces[1]), (10, b"b"), (11, b"b"), (12, CUT), *((offset, b"c") for offset in range(13, 613))
        ]  # fmt: skip
