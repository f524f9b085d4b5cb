"""Bounds and ranges of offsets: holes, empty streams, retention, deletion and lost connections."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.streams import StreamReader, Timeouts, connect
from rabbit_chx.streams.ends import Bounds
from tests.broker.privileges import release_of
from tests.broker.stream_scene import a_stream, delete_completely, fill, message, refused, settle
from tests.patience import PATIENCE, wait_until
from tests.stream_forgeries import a_sub_batch, publish_entry

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

SMALL_SEGMENTS = {"max_length_bytes": "200000", "stream_max_segment_size_bytes": "50000"}


@pytest.fixture
def reader(stream_url, stream):
    with StreamReader(stream_url, stream) as reader:
        yield reader


def numbers(reader, start, end):
    return [int(found.body[:10]) for found in reader.messages(start, end)]


def store_offsets(connection, stream, count=3):
    """Make holes: each stored offset occupies an offset of the stream."""
    for number in range(count):
        connection.store_offset(f"reader-{number}", stream, number)
        wait_until(
            lambda name=f"reader-{number}": connection.query_offset(name, stream) is not None,
            "a stored offset",
        )


def test_an_empty_stream_has_no_messages(reader):
    assert reader.bounds() == Bounds(0, 0)
    assert numbers(reader, 0, 0) == []
    assert reader.offset_at(0) == 0


def test_a_range_yields_its_messages_and_no_others(reader, stream_connection, stream):
    for start in range(0, 100, 10):
        fill(stream_connection, stream, range(start, start + 10))
    publisher = stream_connection._declare_publisher(stream)
    publish_entry(
        stream_connection, publisher, 1, a_sub_batch([message(number) for number in range(100, 120)])
    )
    assert settle(stream_connection, 1) == {}
    assert reader.bounds() == Bounds(0, 120)
    for start, end in [(0, 120), (0, 1), (5, 5), (5, 47), (99, 101), (105, 110), (119, 120)]:
        assert numbers(reader, start, end) == list(range(start, end))
    assert [message.offset for message in reader.messages(95, 105)] == list(range(95, 105))


def test_holes_are_skipped(reader, broker, stream_connection, stream):
    fill(stream_connection, stream, range(10))
    store_offsets(stream_connection, stream)
    end = reader.bounds().end
    assert end >= (11 if release_of(broker) >= (3, 11) else 10)  # 3.10 reports only the last message
    assert numbers(reader, 0, end) == list(range(10))
    assert numbers(reader, 10, end) == []
    fill(stream_connection, stream, range(10, 20))
    found = reader.bounds()
    assert found.end > 20
    assert numbers(reader, 0, found.end) == list(range(20))
    assert numbers(reader, end, found.end) == list(range(10, 20))


def test_a_stream_of_holes_has_no_messages(reader, stream_connection, stream):
    store_offsets(stream_connection, stream, 1)
    found = reader.bounds()
    assert numbers(reader, found.first, found.end) == []


def test_offset_at_returns_the_first_chunk_at_or_after_a_time(reader, stream_connection, stream):
    for start in (0, 10, 20):
        now = time.monotonic()
        wait_until(lambda now=now: time.monotonic() > now + 0.002, "the next millisecond")
        fill(stream_connection, stream, range(start, start + 10))
    # The broker may divide messages that arrive together into several chunks, and has a clock of its own.
    chunks = [(chunk.timestamp_ms, chunk.first_offset) for chunk in reader._chunks(0, 30)]
    assert len({timestamp for timestamp, _ in chunks}) >= 3

    def expected(when):
        return next((first for timestamp, first in chunks if timestamp >= when), 30)

    assert reader.offset_at(0) == 0
    for stored, _ in chunks:
        assert [reader.offset_at(stored + more) for more in (0, 1)] == [
            expected(stored),
            expected(stored + 1),
        ]
        moment = datetime.fromtimestamp(stored / 1000, UTC)
        assert reader.offset_at(moment) == expected(stored)
        assert reader.offset_at(moment + timedelta(microseconds=1)) == expected(stored + 1)
    with pytest.raises(InvalidValue, match="expected an aware datetime"):
        reader.offset_at(datetime(2026, 1, 1))  # noqa: DTZ001 - which is refused


@pytest.mark.parametrize("asked", [(-1, 5), (3, 2), (0.5, 2), (0, None)])
def test_invalid_ranges_are_refused(reader, asked):
    with pytest.raises(InvalidValue, match="invalid range of offsets"):
        list(reader.messages(*asked))


def test_a_missing_stream_and_an_invalid_credit_are_refused(stream_url, stream):
    missing = "virtual host '/' has no stream 'nothing': it does not exist, or is a queue of"
    with refused("no such stream", missing):
        StreamReader(stream_url, "nothing").open()
    with pytest.raises(InvalidValue, match="invalid credit: got 1, expected an integer from 2"):
        StreamReader(stream_url, stream, credit=1)


def test_reading_offsets_that_retention_removed_is_an_error_with_the_first_offset(
    stream_url, stream_connection
):
    with a_stream(stream_connection, **SMALL_SEGMENTS) as stream, StreamReader(stream_url, stream) as reader:
        fill(stream_connection, stream, range(10))
        starts = count(10, 10)

        def removed() -> bool:
            start = next(starts)
            fill(stream_connection, stream, range(start, start + 10), size=1000)
            return reader.bounds().first > 10

        wait_until(removed, "the broker removes segments", pause=0)
        sent, first = next(starts), reader.bounds().first
        with refused("truncated", "so offsets 10 to") as caught:
            list(reader.messages(10, sent))
        assert f"so offsets 10 to {caught.value.first - 1} are lost" in str(caught.value)
        # The broker may remove more segments at any time, but never the last one.
        assert first <= caught.value.first < sent
        assert numbers(reader, sent - 10, sent) == list(range(sent - 10, sent))


def test_a_deleted_or_recreated_stream_is_an_error(stream_url, stream_connection, stream, monkeypatch):
    for start in range(0, 60, 10):
        fill(stream_connection, stream, range(start, start + 10), size=2000)
    with StreamReader(stream_url, stream, credit=2) as reader:
        chunks = reader._chunks(0, 60)
        next(chunks)
        delete_completely(stream_connection, stream)
        own = reader._link.connection
        # Until the broker has told this connection as well, it may send all chunks.
        wait_until(lambda: own.metadata([stream]) and own._moved, "the broker tells the reader")
        with refused("no such stream"):
            list(chunks)
    stream_connection.create(stream)
    with StreamReader(stream_url, stream) as reader:
        # For the missing offsets; as a parameter, it would also be the limit for opening the connection.
        monkeypatch.setattr(reader, "_timeouts", Timeouts(connect=1))
        with refused(
            "beyond the end", "offsets 20 to 60 are beyond the end of stream .*, which is 0"
        ) as caught:
            list(reader._chunks(20, 60))
        assert caught.value.end == 0


def test_following_goes_on_at_the_end_and_ends_when_stopped(stream_url, stream_connection, stream):
    fill(stream_connection, stream, range(10))
    with StreamReader(stream_url, stream) as reader:
        following = reader.follow(5)
        assert [next(following).offset for _ in range(5)] == [5, 6, 7, 8, 9]
        writer = threading.Timer(0.5, fill_elsewhere, [stream_url, stream, range(10, 30)])
        writer.start()
        assert [int(next(following).body[:10]) for _ in range(15)] == list(range(10, 25))
        writer.join()
        threading.Timer(0.5, reader.stop).start()
        rest = [message.offset for message in following]
        assert rest == list(range(25, 25 + len(rest)))
        assert list(reader.follow(0)) == []
        reader.close()
        reader.open()
        assert [message.offset for message in reader.follow(27, timeout=0)] == [27, 28, 29]


def fill_elsewhere(url, stream, numbers):
    with connect(url) as connection:
        fill(connection, stream, numbers)


def test_following_replaces_lost_connections_while_the_stream_is_quiet(broker, stream_url, stream):
    fill_elsewhere(stream_url, stream, range(5))
    with StreamReader(stream_url, stream, timeouts=Timeouts(reconnect=10)) as reader:
        following = reader.follow(0)
        found = [next(following).offset for _ in range(5)]
        for first in (5, 10):
            broker.ctl("close_all_connections", "closed by the operator")
            fill_elsewhere(stream_url, stream, range(first, first + 5))
            found += [next(following).offset for _ in range(5)]
        reader.stop()
    assert found == list(range(15))


def test_following_a_deleted_stream_or_from_beyond_the_end_is_an_error(
    stream_url, stream_connection, stream, monkeypatch
):
    with StreamReader(stream_url, stream) as reader:
        # For the missing offsets; as a parameter, it would also be the limit for opening the connection.
        monkeypatch.setattr(reader, "_timeouts", Timeouts(connect=0.5))
        with refused("beyond the end"):
            next(reader.follow(7))
        for start in (-1, 0.5):
            with pytest.raises(InvalidValue, match="invalid start of follow"):
                reader.follow(start)
        with pytest.raises(InvalidValue, match="invalid timeout of follow"):
            reader.follow(0, timeout=-1)
        following = reader.follow(0, timeout=PATIENCE)
        stream_connection.delete(stream)
        with refused("no such stream"):
            next(following)


FOLLOW = """
import sys
from rabbit_chx.streams import StreamReader
with StreamReader(sys.argv[1], sys.argv[2]) as reader:
    for message in reader.follow(0):
        print(message.offset, flush=True)
"""


def test_following_ends_with_ctrl_c(broker, stream_connection, stream):
    fill(stream_connection, stream, range(1))
    program = subprocess.Popen(
        [sys.executable, "-c", FOLLOW, broker.stream_url, stream],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout.readline() == "0\n"
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=PATIENCE)
    assert (program.returncode, out) == (-signal.SIGINT, "")
    assert err.count("Traceback") == 1, err
    assert err.rstrip().endswith("KeyboardInterrupt")
