"""Groups on streams without a broker: their parameters, batches, and the lanes of streams."""

from __future__ import annotations

import asyncio
import struct
import zlib
from datetime import datetime

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams import AsyncStreamGroup, BatchFailed, StreamBatch, StreamGroup
from rabbit_chx.streams.group.lanes import Attention, Change, StreamLane
from rabbit_chx.streams.group.places import in_order
from rabbit_chx.streams.group.settings import check_release
from rabbit_chx.streams.messages.chunks import HEADER, Chunk, parse_chunk
from rabbit_chx.timeouts import Timeouts

URL = "rabbitmq-stream://user:secret@127.0.0.1:1"
GIVEN = {"url": URL, "stream": "events", "name": "g"}


def chunk(first: int, count: int) -> Chunk:
    """A chunk of messages whose bodies are their offsets."""
    entries = b"".join(
        struct.pack(">I", len(body)) + body
        for body in (b"%d" % offset for offset in range(first, first + count))
    )
    header = HEADER.pack(0x50, 0, count, count, 0, 1, first, zlib.crc32(entries), len(entries), 0, 0)
    return parse_chunk(header + entries, "events")


def lane(*, batches: bool = False, store_every: int = 100) -> StreamLane:
    made = StreamLane("events", batches=batches, store_every=store_every, attention=Attention())
    made.assign(0, None)
    return made


# ---- parameters


@pytest.mark.parametrize("kind", [StreamGroup, AsyncStreamGroup])
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"stream": None},
            r"invalid source of a stream group: got \[\], expected one of super_stream, exchange",
        ),
        ({"exchange": "x"}, r"got \['exchange', 'stream'\]"),
        ({"name": ""}, "invalid group name: got '', expected text of 1 to 255 bytes"),
        ({"name": "ü" * 128}, "invalid group name"),
        ({"start": "earliest"}, "invalid start: got 'earliest', expected 'first', 'last', 'next'"),
        ({"start": -1}, "invalid start: got -1"),
        ({"start": True}, "invalid start: got True"),
        ({"start": datetime(2026, 1, 1)}, "an aware datetime"),  # noqa: DTZ001
        ({"store_every": 0}, "invalid store_every: got 0"),
        ({"store_seconds": -1}, "invalid store_seconds: got -1"),
        ({"credit": 1}, "invalid credit: got 1, expected an integer from 2 to 65535"),
        ({"on_assigned": "f"}, "invalid on_assigned: got 'f', expected a function"),
        ({"on_failure": "dead-letter"}, "invalid on_failure: got 'dead-letter', expected 'stop' or 'park'"),
        ({"on_failure": "park"}, "invalid parking_queue: got None"),
        ({"attempts": 0}, "invalid attempts: got 0"),
        ({"timeouts": Timeouts(connect=5)}, "invalid connect timeout: got 5"),
        ({"url": "http://host"}, "invalid broker URL"),
    ],
)
def test_an_invalid_parameter_is_refused_before_anything_connects(kind, changed, text):
    with pytest.raises(InvalidValue, match=text):
        kind(**{**GIVEN, **changed})


def test_a_handler_must_fit_the_class():
    async def coroutine(_):
        """Never awaited."""

    with pytest.raises(InvalidValue, match="AsyncStreamGroup takes coroutine functions"):
        StreamGroup(**GIVEN).run(coroutine)
    with pytest.raises(InvalidValue, match="StreamGroup takes functions"):
        asyncio.run(AsyncStreamGroup(**GIVEN).run_batches(print))


def test_a_stopped_group_returns_at_once():
    group = StreamGroup(**GIVEN)
    assert (group.status.connected, group.status.reason) == (False, "it is not running")
    group.stop()
    group.run(print)


@pytest.mark.parametrize("version", ["3.10.25", "3.11.28", "3.12.14"])
def test_earlier_releases_are_refused_with_the_reason(version):
    with pytest.raises(
        InvalidValue, match=r"expected 3\.13 or later\. Earlier releases have no single active"
    ):
        check_release(version)
    check_release("3.13.7")


def test_streams_are_joined_in_the_order_of_their_numbers():
    assert in_order(["o-10", "o-2", "b", "a", "o-1"]) == ["a", "b", "o-1", "o-2", "o-10"]


# ---- batches


def test_a_batch_is_cut_at_an_offset():
    batch = StreamBatch([chunk(0, 10), chunk(12, 5)], first=3)
    assert (batch.first, batch.last, len(batch)) == (3, 16, 12)
    assert [each.offset for each in batch.messages()] == [*range(3, 10), *range(12, 17)]
    rest = batch.since(12, 2)
    assert (rest.first, rest.last, len(rest), rest.attempt) == (12, 16, 5, 2)
    failed, after = batch.divided(13)
    assert (failed.first, failed.last, len(failed)) == (3, 12, 8)
    assert [each.body for each in failed.messages()][-1] == b"12"
    assert [each.offset for each in after.messages()] == [13, 14, 15, 16]
    assert batch.divided(17) == (batch, None)


def test_a_batch_has_arrow_columns():
    pytest.importorskip("pyarrow")
    columns = StreamBatch([chunk(0, 20_000), chunk(20_000, 5)], first=1).arrow(["offset", "body"])
    assert columns["offset"].to_pylist() == list(range(1, 20_005))
    assert columns["body"][-1].as_py() == b"20004"


@pytest.mark.parametrize("offset", [-1, True, "5", None])
def test_only_an_offset_says_where_a_batch_failed(offset):
    with pytest.raises(InvalidValue, match="the offset of the message that failed"):
        BatchFailed(offset)


# ---- lanes


def test_a_lane_hands_out_messages_in_order_and_counts_the_handled_ones():
    it = lane(store_every=2)
    assert it.add(chunk(0, 2))
    assert not it.add(chunk(5, 1))  # a worker has it
    channel = it.channel
    for offset in (0, 1, 5):
        message = it.take()
        assert message.offset == offset
        it.finish(message, channel)
        assert it.handled_to == offset
    assert it.take() is None
    assert it.is_idle


def test_messages_before_the_start_of_an_assignment_are_left_out():
    it = lane()
    it.assign(7, 6)
    assert not it.add(chunk(0, 5))
    assert it.add(chunk(5, 5))
    assert it.take().offset == 7


def test_what_is_handled_after_an_assignment_has_ended_does_not_count():
    it = lane()
    it.add(chunk(0, 2))
    channel, message = it.channel, it.take()
    it.end_assignment()
    it.assign(0, None)
    it.finish(message, channel)
    assert it.done is None
    assert it.handled == 1
    assert not it.put_back(message, channel)


def test_a_revoked_lane_starts_nothing_and_tells_the_program_last():
    it = lane()
    it.add(chunk(0, 3))
    message = it.take()
    it.revoke()
    it.tell(Change("events", assigned=False))
    assert not it.is_idle
    it.finish(message, it.channel)
    assert it.take().assigned is False
    assert it.take() is None
    assert it.is_idle
    assert it.done == 0


def test_a_paused_lane_waits_for_the_next_attempt_unless_it_is_revoked():
    it = lane()
    it.add(chunk(0, 2))
    channel, message = it.channel, it.take()
    assert it.pause(message, channel) == (True, False)
    assert it.is_idle
    assert it.resume(message, channel)
    assert it.take() is message
    it.pause(message, channel)
    it.revoke()
    assert not it.resume(message, channel)


def test_batches_contain_what_has_arrived():
    it = lane(batches=True)
    for first in (0, 10, 20):
        it.add(chunk(first, 10))
    batch = it.take()
    assert (batch.first, batch.last, len(batch)) == (0, 29, 30)
    it.finish_before(batch, 5, it.channel)
    assert (it.done, it.handled) == (4, 5)


def test_a_broker_that_cannot_be_reached_is_tried_until_the_group_is_stopped(caplog):
    group = StreamGroup(**GIVEN)

    def stop(record):
        group.stop()
        return True

    caplog.handler.addFilter(stop)
    try:
        group.run(print)
    finally:
        caplog.handler.removeFilter(stop)
    assert "trying again" in caplog.text
    assert StreamUnavailable.__name__ not in caplog.text
    assert "secret" not in caplog.text
