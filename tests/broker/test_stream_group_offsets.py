"""Groups on streams: where members start, and which offsets they store."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.streams import StreamGroup
from rabbit_chx.streams.ends import bounds
from tests.broker.stream_scene import fill
from tests.broker.test_stream_groups import Seen, handle_all
from tests.members import running
from tests.patience import PATIENCE, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.since_4_0]


def test_a_group_goes_on_behind_its_stored_offset_and_another_group_begins_anew(
    stream_url, stream_connection, stream, caplog
):
    caplog.set_level("INFO")
    fill(stream_connection, stream, range(1, 101))
    assert handle_all(StreamGroup(stream_url, stream=stream, name="g"), 100) == list(range(100))
    assert "group 'g': joined for 1 stream" in caplog.messages
    assert stream_connection.query_offset("g", stream) == 99
    fill(stream_connection, stream, range(101, 111))
    again = handle_all(StreamGroup(stream_url, stream=stream, name="g"), 10)
    assert len(again) == 10
    assert min(again) > 99
    assert len(handle_all(StreamGroup(stream_url, stream=stream, name="other"), 110)) == 110


@pytest.mark.one_release
@pytest.mark.parametrize("start", ["next", "last", 40, "time"])
def test_a_new_group_starts_where_it_is_told(stream_url, stream_connection, stream, start):
    for chunk in (range(1, 41), range(41, 51)):
        fill(stream_connection, stream, chunk)
    given = {"time": datetime.now(UTC) + timedelta(hours=1)}.get(start, start)
    seen = Seen()
    group = StreamGroup(stream_url, stream=stream, name="g", start=given)
    with running(group, seen.by(0)):
        wait_until(lambda: group.status.partitions)
        # The broker resolves a future time to the end of the stream when the request arrives; a test cannot observe that moment.
        numbers = count(51)
        wait_until(
            lambda: fill(stream_connection, stream, [next(numbers)]) or max(seen.offsets, default=0) >= 59
        )
    if start in {"next", "time"}:
        assert min(seen.offsets) >= 50
    else:
        assert min(seen.offsets) == {"last": 40}.get(start, start)


@pytest.mark.parametrize("start", ["next", "time"])
def test_a_new_group_on_an_empty_stream_loses_nothing_if_its_first_member_ends(
    stream_url, stream_connection, stream, start
):
    given = {"time": datetime.now(UTC) + timedelta(hours=1)}.get(start, start)
    group = StreamGroup(stream_url, stream=stream, name="g", start=given)
    with running(group, print):
        wait_until(lambda: group.status.partitions)
        assert group.status.partitions[0].handled is None
    fill(stream_connection, stream, range(1, 11))
    again = StreamGroup(stream_url, stream=stream, name="g", start=given)
    assert len(handle_all(again, 10)) == 10


@pytest.mark.parametrize("start", ["first", "last", "next", 3])
def test_a_group_whose_offset_retention_removed_goes_on_with_the_oldest_message(
    stream_url, stream_connection, stream, start, caplog
):
    stream_connection.delete(stream)
    stream_connection.create(stream, {"max-length-bytes": "40000", "stream-max-segment-size-bytes": "10000"})
    fill(stream_connection, stream, range(1, 6))
    handle_all(StreamGroup(stream_url, stream=stream, name="g", start="first"), 5)

    def forgotten():
        fill(stream_connection, stream, range(6, 16), size=1000)
        return stream_connection.query_offset("g", stream) is None

    wait_until(forgotten)
    again = handle_all(StreamGroup(stream_url, stream=stream, name="g", start=start), 10)
    assert min(again) <= bounds(stream_connection, stream).first + 2  # offsets have gaps
    assert "retention has removed its offset" in caplog.text


@pytest.mark.one_release
@pytest.mark.parametrize("start", [11, lambda name: 11])
def test_a_start_beyond_the_end_is_an_error_and_skips_nothing(stream_url, stream_connection, stream, start):
    fill(stream_connection, stream, range(1, 11))
    with (
        pytest.raises(InvalidValue, match=r"at most 10, .* deleted and created again"),
        running(StreamGroup(stream_url, stream=stream, name="g", start=start), print) as thread,
    ):
        wait_until(lambda: not thread.is_alive())


@pytest.mark.one_release
def test_a_function_decides_instead_of_the_stored_offset(stream_url, stream_connection, stream):
    fill(stream_connection, stream, range(1, 101))
    group = StreamGroup(stream_url, stream=stream, name="g", start=lambda name: 90)
    assert min(handle_all(group, 10)) == 90
    group = StreamGroup(stream_url, stream=stream, name="g", start=lambda name: None)
    assert handle_all(group, 100) == list(range(100))


@pytest.mark.one_release
def test_offsets_are_stored_while_the_group_runs(stream_url, stream_connection, stream):
    group = StreamGroup(stream_url, stream=stream, name="g", store_every=10, store_seconds=3600, heartbeat=3)
    fill(stream_connection, stream, range(1, 26))
    seen = Seen()
    with running(group, seen.by(0)):
        # Fewer than ten messages may be missing; the first store depends on what is handled by then.
        wait_until(lambda: len(seen.all) == 25 and (stream_connection.query_offset("g", stream) or 0) >= 15)
        assert bounds(stream_connection, stream).end > 25  # the stored offsets
        member = group._member
        before = member._listen_again
        wait_until(lambda: member._listen_again > before)
        wait_until(lambda: group.status.lag == 0)
    assert stream_connection.query_offset("g", stream) == 24


@pytest.mark.one_release
def test_a_stop_waits_for_the_handler_and_stores_what_it_handled(stream_url, stream_connection, stream):
    begun, goes_on = threading.Event(), threading.Event()

    def handle(message):
        if message.offset == 1:
            begun.set()
            assert goes_on.wait(PATIENCE)

    fill(stream_connection, stream, range(1, 4))
    group = StreamGroup(stream_url, stream=stream, name="g", timeouts=Timeouts(close=PATIENCE))
    with running(group, handle) as thread:
        wait_until(begun.is_set, "the handler begins")
        group.stop()
        thread.join(0.3)
        assert thread.is_alive()
        goes_on.set()
    assert stream_connection.query_offset("g", stream) == 1
