"""Ranges of one reader, and where a stream ends, on a stream in memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count, islice
from types import SimpleNamespace

import pytest

from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.streams import StreamReader, Timeouts, ends, reader as module
from rabbit_chx.streams.ends import Bounds, bounds, offset_at
from rabbit_chx.streams.group.offsets import GroupOffsets
from rabbit_chx.streams.protocol.answers import StreamStats
from rabbit_chx.streams.protocol.requests import OffsetSpec
from tests.stream_chunks import a_chunk, sized

END = 200
URL = "rabbitmq-stream://host"


class Connection:
    """A connection to a stream of ``END`` messages, one in each chunk, that delivers as a broker does."""

    is_open = has_stats = True
    timeout = 60
    node = None
    time = 1_000
    """When the first message was stored; the others follow in milliseconds."""
    lost = False
    _is_receiving = False
    arrives_after = 0
    """How often nothing but a part of a chunk has arrived."""
    copied = END
    """The end of what the node has."""
    gets = 0
    """How many more chunks the node gets during each request."""
    committed = END
    """The end of the stream, behind a gap if that is later."""
    reports_last = knows_offsets = True
    first = 0

    def __init__(self) -> None:
        self.subscriptions = 0
        self.next: dict[int, int] = {}
        self.delivered: deque[tuple[int, bytes]] = deque()

    def stats(self, _: str) -> StreamStats:
        last = self.committed - 1 if self.copied == END else self.copied - 1
        last_chunk = last if self.reports_last else None
        committed_offset = self.committed - 1 if self.knows_offsets else None
        return StreamStats(self.first, self.committed - 1, committed_offset, last_chunk)

    def _subscribe(self, _: str, start: OffsetSpec, *, credit: int) -> int:
        self.subscriptions += 1
        number = max(self.next, default=0) + 1
        offset = start.value - self.time if start.kind == OffsetSpec.TIMESTAMP else start.value
        self.next[number] = min(offset, self.copied)
        self.copied = min(self.copied + self.gets, END)
        self._credit(number, credit)
        return number

    def _credit(self, number: int, chunks: int) -> None:
        first = self.next[number]
        self.next[number] = min(first + chunks, self.copied)
        for offset in range(first, self.next[number]):
            stored = a_chunk([sized(b"%d" % offset)], offset=offset, time=self.time + offset)
            self.delivered.append((number, stored))

    def _chunks(self, _: float) -> Iterator[tuple[int, bytes]]:
        self.arrives_after -= 1
        self._is_receiving = self.arrives_after > 0
        while not self._is_receiving and self.delivered:
            if self.lost:
                self.lost = False
                self.delivered.clear()
                raise StreamUnavailable("lost", "lost")
            yield self.delivered.popleft()

    def close(self) -> None:
        """Another connection is the same one."""

    def _unsubscribe(self, number: int, **_: object) -> list[bytes]:
        del self.next[number]
        found = [data for of, data in self.delivered if of == number]
        self.delivered = deque(each for each in self.delivered if each[0] != number)
        return found


@pytest.fixture
def connection(monkeypatch) -> Connection:
    connection = Connection()
    monkeypatch.setattr(module, "connect_until", lambda *_, **__: connection)
    return connection


@pytest.fixture
def reader(connection: Connection) -> StreamReader:
    reader = StreamReader(URL, "s", timeouts=Timeouts(connect=60, reconnect=60))
    reader.open()
    return reader


def offsets(reader: StreamReader, start: int, end: int) -> list[int]:
    return [message.offset for message in reader.messages(start, end)]


def test_a_range_does_not_continue_after_another_one_began(reader, connection) -> None:
    outer = reader.messages(0, END)
    assert [next(outer).offset for _ in range(12)] == list(range(12))
    assert offsets(reader, 20, 23) == [20, 21, 22]
    with pytest.raises(InvalidValue, match="offsets 12 to 200 cannot be read after another range"):
        next(outer)
    assert not connection.next


def test_a_range_whose_last_chunk_was_taken_ends_after_another_one_began(reader, connection) -> None:
    outer = reader.messages(0, 3)
    assert [next(outer).offset for _ in range(3)] == [0, 1, 2]
    assert offsets(reader, 20, 23) == [20, 21, 22]
    assert [*outer] == []
    assert not connection.next


@pytest.mark.parametrize("pieces", [5, 1_000, 2_000])
def test_a_chunk_that_arrives_slowly_is_waited_for_and_not_asked_for_again(
    reader, connection, pieces
) -> None:
    connection.arrives_after = pieces
    with pytest.raises(StreamUnavailable, match="sent no chunk") if pieces == 2_000 else nullcontext():
        assert [chunk.first_offset for chunk in reader._over_one_connection(0, 3)] == [0, 1, 2]
    assert connection.subscriptions == 1


def test_a_range_on_a_replica_that_catches_up_ends_with_its_last_message(
    reader, connection, monkeypatch
) -> None:
    """The leader tells a replica how far the stream is committed before it sends the chunks."""

    def first_chunk(*given: object) -> object:
        asked.append(given)
        if len(asked) == 3:
            connection.copied = END
            connection._credit(1, END - 150)
        return there(*given)

    asked: list[object] = []
    connection.copied, there = 150, module.first_chunk
    monkeypatch.setattr(module, "first_chunk", first_chunk)
    assert offsets(reader, 100, END) == list(range(100, END))


def test_a_replica_that_does_not_catch_up_is_given_up(reader, connection) -> None:
    connection.copied = 150
    range_ = reader._over_one_connection(140, END)
    with pytest.raises(StreamUnavailable, match=r"sent no chunk .*; the next offset is 150$") as raised:
        list(range_)
    assert not raised.value.permanent


@pytest.mark.parametrize("reports_last", [True, False])
def test_a_range_may_end_with_a_gap(reader, connection, reports_last) -> None:
    connection.committed, connection.reports_last = END + 5, reports_last
    assert offsets(reader, END - 3, END + 5) == list(range(END - 3, END))


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("more", [0, 2])
def test_a_gap_that_retention_removes_at_the_end_of_a_stream_is_no_loss(
    reader, connection, monkeypatch, lost, more
) -> None:
    """Each stored offset of a group is an entry of the stream."""
    monkeypatch.setattr(reader._backoff, "failed", lambda: 0.0)
    connection.committed = END + 5
    chunks = reader._arriving(END - 1, math.inf)
    assert [chunk and chunk.first_offset for chunk in islice(chunks, 2)] == [END - 1, None]
    connection.committed, connection.lost = END + 20, lost
    connection.first = following = END + 5 + more
    connection.delivered.append((1, a_chunk([sized(b"x")], offset=following)))
    if more:
        with pytest.raises(StreamUnavailable, match="begins at offset 207, so offsets 205 to 206 are lost"):
            next(chunks)
    else:
        chunk = next(chunks)
        assert (chunk and chunk.first_offset) == (None if lost else following)


def test_an_abandoned_range_does_not_keep_others_from_beginning(reader, connection) -> None:
    kept = reader.messages(0, END)
    next(kept)
    assert offsets(reader, 0, END) == list(range(END))
    kept.close()
    next(reader.messages(0, END))
    assert offsets(reader, 5, END) == list(range(5, END))
    assert not connection.next


@pytest.mark.parametrize("created_again", [False, True])
def test_a_stream_that_was_created_again_is_not_read_from_the_place_in_the_old_one(
    reader, connection, created_again
) -> None:
    range_ = reader.messages(0, END)
    assert [next(range_).offset for _ in range(50)] == list(range(50))
    connection.lost = True
    if created_again:
        connection.time += 1
        with pytest.raises(StreamUnavailable, match=r"'s' was deleted and created again after .* offset 49"):
            next(range_)
    else:
        assert [message.offset for message in range_] == list(range(50, END))


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (1_700_000_000.5, r"\. Of seconds: int\(seconds \* 1000\)"),
        (-5, ""),
        (2**63, ""),
        (True, ""),
        ("1", ""),
    ],
)
def test_a_time_is_a_datetime_or_milliseconds(reader, given, hint) -> None:
    expected = r"an aware datetime, or milliseconds since 1970 as an integer from 0 to 2\^63 - 1"
    with pytest.raises(InvalidValue, match=f"^invalid time: got {given!r}, expected {expected}{hint}$"):
        reader.offset_at(given)


def test_a_stop_ends_the_wait_for_a_node_that_lags_behind(reader, connection, monkeypatch) -> None:
    asked = []

    def stats(_: str) -> StreamStats:
        asked.append(True)
        if len(asked) == 3:
            reader.stop()
        return StreamStats(0, END - 1, END - 1)

    monkeypatch.setattr(connection, "stats", stats)
    assert list(reader.follow(END + 5)) == []
    assert len(asked) == 4  # the last time for what may follow


def test_a_reader_that_is_stopped_while_it_waits_to_connect_does_not_connect(
    reader, connection, monkeypatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        tried.append(True)
        raise StreamUnavailable("the connection was lost", "lost")

    def sleep(_: float) -> None:
        reader.stop()

    tried: list[bool] = []
    monkeypatch.setattr(connection, "stats", lost)
    monkeypatch.setattr(reader._backoff, "failed", lambda: 0.01)
    clock = SimpleNamespace(monotonic=count(step=0.006).__next__, sleep=sleep)
    monkeypatch.setattr(module, "time", clock)
    assert list(reader.follow(0)) == []
    assert len(tried) == 1


# ---- where a stream ends


@pytest.fixture
def replica(connection, monkeypatch) -> Connection:
    """A node that has the beginning of the stream."""
    monkeypatch.setattr(ends, "_PAUSE", 0.0)
    connection.copied, connection.gets = 150, 1
    return connection


@pytest.mark.parametrize("offset", [100, 160, END - 1, END])
def test_the_offset_at_a_time_is_found_by_a_replica_that_catches_up(replica, offset) -> None:
    assert offset_at(replica, "s", 1000 + offset) == offset


@pytest.mark.parametrize("knows_offsets", [True, False])
def test_a_replica_that_catches_up_knows_the_end(replica, knows_offsets) -> None:
    replica.knows_offsets = knows_offsets
    assert bounds(replica, "s") == Bounds(0, END)


def test_the_lag_of_a_group_is_that_of_the_whole_stream_on_a_replica_that_catches_up(replica) -> None:
    replica.copied, replica.query_offset = 140, lambda *_: 149
    with GroupOffsets("g", lambda _: nullcontext(replica)) as group:
        assert group.read("s").lag == END - 150


def test_a_replica_that_does_not_catch_up_is_asked_only_for_what_it_has(replica) -> None:
    replica.gets, replica.timeout = 0, 0.0
    assert offset_at(replica, "s", 1100) == 100
    with pytest.raises(StreamUnavailable, match="has not yet copied stream 's' up to offset 199") as raised:
        offset_at(replica, "s", 1160)
    assert not raised.value.permanent


def test_a_message_that_is_stored_during_the_question_is_not_skipped(replica, monkeypatch) -> None:
    """Once, the end was asked for behind it."""

    def stored(*given: object) -> Bounds:
        replica.copied = replica.committed = END
        return bounds(*given)

    replica.copied = replica.committed = END - 1
    replica.gets, replica.reports_last = 0, False
    monkeypatch.setattr(ends, "bounds", stored)
    assert offset_at(replica, "s", 1000 + END - 1) == END - 1
