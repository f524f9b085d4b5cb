"""Where a stream ends, asked on a replica that knows the end before it has the chunks."""

from __future__ import annotations

from typing import Self

import pytest

from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams import ends
from rabbit_chx.streams.ends import Bounds, bounds, offset_at
from rabbit_chx.streams.group.offsets import GroupOffsets
from rabbit_chx.streams.protocol.answers import StreamStats
from rabbit_chx.streams.protocol.requests import OffsetSpec
from tests.stream_chunks import a_chunk, sized

END = 200


class Replica:
    """A node with the beginning of a stream, which has one message in each chunk. It gets another chunk during each request."""

    has_stats, timeout, node = True, 60.0, None

    def __init__(self, copied: int, *, copies: bool = True, knows_offsets: bool = True) -> None:
        self.copied = copied
        self.copies = copies
        self.knows_offsets = knows_offsets
        self.at = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def stats(self, _: str) -> StreamStats:
        return StreamStats(0, END - 1, END - 1 if self.knows_offsets else None, self.copied - 1)

    def _subscribe(self, _: str, start: OffsetSpec, *, credit: int) -> int:
        assert credit == 1
        offset = start.value - 1000 if start.kind == OffsetSpec.TIMESTAMP else start.value
        self.at = min(offset, self.copied)
        if self.copies and self.copied < END:
            self.copied += 1
        return 0

    def _unsubscribe(self, _: int) -> list[bytes]:
        there = self.at < self.copied
        return [a_chunk([sized(b"x")], offset=self.at, time=1000 + self.at)] if there else []

    def query_offset(self, _group: str, _stream: str) -> int:
        return 149


@pytest.fixture(autouse=True)
def at_once(monkeypatch) -> None:
    monkeypatch.setattr(ends, "_PAUSE", 0.0)


@pytest.mark.parametrize("offset", [100, 160, END - 1, END])
def test_the_offset_at_a_time_is_found_by_a_replica_that_catches_up(offset) -> None:
    assert offset_at(Replica(150), "s", 1000 + offset) == offset


@pytest.mark.parametrize("knows_offsets", [True, False])
def test_a_replica_that_catches_up_knows_the_end(knows_offsets) -> None:
    assert bounds(Replica(150, knows_offsets=knows_offsets), "s") == Bounds(0, END)


def test_the_lag_of_a_group_is_that_of_the_whole_stream_on_a_replica_that_catches_up() -> None:
    with GroupOffsets("g", lambda _: Replica(140)) as group:
        assert group.read("s").lag == END - 150


def test_a_replica_that_does_not_catch_up_is_asked_only_for_what_it_has() -> None:
    replica = Replica(150, copies=False)
    replica.timeout = 0.0
    assert offset_at(replica, "s", 1100) == 100
    with pytest.raises(StreamUnavailable, match="has not yet copied stream 's' up to offset 199") as raised:
        offset_at(replica, "s", 1160)
    assert not raised.value.permanent


def test_a_message_that_is_stored_during_the_question_is_not_skipped(monkeypatch) -> None:
    """Once, the end was asked for behind it."""

    def stored(*given: object) -> Bounds:
        replica.copied = END
        return bounds(*given)

    replica = Replica(END - 1, copies=False)
    monkeypatch.setattr(replica, "stats", lambda _: StreamStats(0, replica.copied - 1, replica.copied - 1))
    monkeypatch.setattr(ends, "bounds", stored)
    assert offset_at(replica, "s", 1000 + END - 1) == END - 1
