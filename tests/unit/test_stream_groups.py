"""Groups on streams without a broker: their parameters, batches, and the lanes of streams."""

from __future__ import annotations

import asyncio
import re
import socket
import sqlite3
import struct
import zlib
from contextlib import closing, nullcontext
from datetime import datetime
from functools import partial
from time import monotonic, sleep
from types import SimpleNamespace

import click
import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.base import urls
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.cli import _exit_code
from rabbit_chx.cli.ask.broker_access import BrokerAccess
from rabbit_chx.cli.stream_group import GroupOfStreams
from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.streams import AsyncStreamGroup, BatchFailed, StreamBatch, StreamGroup
from rabbit_chx.streams.group import offsets
from rabbit_chx.streams.group.assignments import Assignments
from rabbit_chx.streams.group.lanes import Attention, Change, StreamLane, status_of
from rabbit_chx.streams.group.member import StreamMember
from rabbit_chx.streams.group.places import Place, in_order
from rabbit_chx.streams.group.settings import check_release
from rabbit_chx.streams.group.workers import StreamWorkers
from rabbit_chx.streams.messages.chunks import HEADER, Chunk, parse_chunk
from rabbit_chx.streams.protocol.answers import ConsumerUpdate, StreamStats
from rabbit_chx.streams.protocol.requests import OffsetSpec
from rabbit_chx.topology import Management
from tests.faults.stream_group_member import of_guide
from tests.unit.test_docs import marked

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


SECURE = "rabbitmq-stream+tls://host"


@pytest.mark.parametrize(
    ("url", "amqp_url", "sent"),
    [
        ("rabbitmq-stream://host", "amqp://host:5673", True),
        ("rabbitmq-stream://host", "amqps://host", True),
        ("rabbitmq-stream://u:p@host", None, True),
        (SECURE, "amqps://host:5673", True),
        (SECURE, "amqps://u:p@elsewhere", False),
        (SECURE, "amqp://u:p@host", False),
        (["rabbitmq-stream://host", "rabbitmq-stream://other"], ["amqp://other", "amqp://host"], True),
    ],
)
def test_credentials_are_sent_to_park_only_where_the_streams_are(url, amqp_url, sent):
    """Security review 3, L7: they went to any host, also without TLS."""
    group = StreamGroup(url, stream="s", name="g", amqp_url=amqp_url, credentials=lambda: ("u", "p"))
    assert (group._connect_for_parking.keywords["credentials"] is not None) == sent


@pytest.mark.parametrize(
    ("url", "amqp_url"),
    [
        ("rabbitmq-stream://host", "amqp://elsewhere"),
        ("rabbitmq-stream://host", ["amqp://host", "amqps://elsewhere"]),
        (SECURE, "amqp://host"),
        (SECURE, "amqps://elsewhere"),
    ],
)
def test_credentials_for_a_parking_queue_elsewhere_are_refused(url, amqp_url):
    with pytest.raises(InvalidValue, match=r"invalid amqp_url: got '\w+:567\d', expected a host of url"):
        StreamGroup(url, stream="s", name="g", amqp_url=amqp_url, credentials=lambda: ("u", "p"))


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


async def coroutine(_):
    """Never awaited."""


def generator(_):
    yield


@pytest.mark.parametrize("name", ["start", "on_assigned", "on_revoked"])
def test_only_a_group_of_the_event_loop_awaits_what_it_calls(name):
    AsyncStreamGroup(**GIVEN, **{name: coroutine})
    with pytest.raises(
        InvalidValue,
        match=f"invalid {name}: got 'a coroutine function', expected a function. AsyncStreamGroup takes",
    ):
        StreamGroup(**GIVEN, **{name: coroutine})
    for kind in (StreamGroup, AsyncStreamGroup):
        with pytest.raises(InvalidValue, match=f"invalid {name}: got 'a generator function'"):
            kind(**GIVEN, **{name: generator})


def test_a_callback_of_a_thread_that_returns_a_coroutine_has_failed():
    settings = StreamGroup(**GIVEN, on_revoked=lambda stream: coroutine(stream))._settings  # noqa: PLW0108
    tell = StreamWorkers(print, settings)._handler
    with pytest.raises(InvalidValue, match="invalid result of on_revoked: got 'coroutine', expected"):
        tell(Change("events", assigned=False))


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"on_assigned": print}, "on_assigned"),
        ({"start": lambda _: None}, "start"),
        ({"on_assigned": print, "start": lambda _: None}, "on_assigned and start"),
    ],
)
def test_a_callback_that_does_not_return_in_time_is_named(given, names):
    settings = StreamGroup(**GIVEN, **given, timeouts=Timeouts(close=0.01))._settings
    assignments, it = Assignments(settings, StreamWorkers(print, settings)), lane()
    assignments.on_update(it, ConsumerUpdate(1, 0, active=True))
    sleep(0.02)
    with pytest.raises(
        StreamUnavailable, match=f"^{names} did not return within 0.01 s for stream 'events'$"
    ):
        assignments.do_due(SimpleNamespace(connection=Asked(), top_up=lambda _: None), it)


def test_a_stream_that_does_not_exist_is_named_with_its_virtual_host():
    connection = SimpleNamespace(url=SimpleNamespace(vhost="billing"))
    member = SimpleNamespace(_settings=StreamGroup(**GIVEN)._settings)
    with pytest.raises(StreamUnavailable, match="virtual host 'billing' has no stream 'events': it does not"):
        StreamMember._on_missing(member, connection, lane())


def test_a_handler_must_fit_the_class():
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


@pytest.mark.parametrize("options", [(), ("--reset", "first", "--yes")])
def test_the_command_refuses_earlier_releases_too(monkeypatch, capsys, options):
    closed = []
    connection = SimpleNamespace(release="3.10.8", close=lambda: closed.append(True))
    monkeypatch.setattr("rabbit_chx.cli.stream_group.connect", lambda *_, **__: connection)
    assert _exit_code(["group", "g", "--stream", "events", "-U", "amqp://127.0.0.1:1/", *options]) == 64
    assert "invalid broker release: got '3.10.8', expected 3.13 or later" in capsys.readouterr().err
    assert closed == [True]


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
    middle = failed.since(5, 2)
    assert (middle.first, middle.last, len(middle)) == (5, 12, 6)
    assert [each.offset for each in middle.messages()] == [*range(5, 10), 12]
    assert [each and (each.first, each.last) for each in failed.divided(9)] == [(3, 8), (9, 12)]


def test_a_batch_has_arrow_columns():
    pytest.importorskip("pyarrow")
    columns = StreamBatch([chunk(0, 20_000), chunk(20_000, 5)], first=1).arrow(["offset", "body"])
    assert columns["offset"].to_pylist() == list(range(1, 20_005))
    assert columns["body"][-1].as_py() == b"20004"


@pytest.mark.parametrize("offset", [-1, True, "5", None])
def test_only_an_offset_says_where_a_batch_failed(offset):
    with pytest.raises(InvalidValue, match="the offset of the message that failed"):
        BatchFailed(offset)


def test_the_example_of_the_guide_stores_each_message_once_whichever_batches_members_have(
    tmp_path, monkeypatch
):
    """A member commits late, after another one has begun with the same messages, which its batches divide in other places."""
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("orders.db")) as database:
        guide = marked("stream-groups.md", "test_each_message_is_stored_once")
        database.executescript("".join(re.findall(r"^# (CREATE TABLE .*;)$", guide, re.MULTILINE)))
        start, handle = of_guide()
        assert start("events") == 0
        for first, count in [(0, 10), (0, 5), (5, 10), (20, 5), (10, 5)]:
            handle(StreamBatch([chunk(first, count)]))
        stored = [offset for (offset,) in database.execute('SELECT "offset" FROM orders')]
    assert stored == [*range(15), *range(20, 25)]
    assert start("events") == 25


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


def test_the_rest_of_a_chunk_is_handled_after_the_broker_was_silent():
    it = lane()
    it.add(chunk(0, 3))
    it.finish(it.take(), it.channel)
    for _ in range(2):
        assert it.take(changes_only=True) is None
        assert it.wake()
    assert [it.take().offset for _ in range(2)] == [1, 2]
    assert it.take() is None
    assert not it.wake()


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


class Asked:
    """A connection that keeps the answers to the broker's questions."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bool]] = []
        self.stored = 0

    def query_offset(self, _group: str, _stream: str) -> int:
        return self.stored

    def store_offset(self, _group: str, _stream: str, offset: int) -> None:
        self.stored = offset

    def stats(self, _stream: str) -> StreamStats:
        return StreamStats(0, 0, 0)

    def answer_update(self, update: ConsumerUpdate, start: OffsetSpec | None) -> None:
        self.answers.append((update.correlation, start is not None))


@pytest.mark.parametrize("first", [True, False])
def test_each_question_of_the_broker_is_answered_in_turn(first):
    settings = StreamGroup(**GIVEN)._settings
    workers = StreamWorkers(print, settings)
    assignments, it, asked = Assignments(settings, workers), lane(), Asked()
    place = SimpleNamespace(connection=asked, top_up=lambda _: None)
    if first:
        it.end_assignment()
    for correlation, active in enumerate((first, not first, first)):
        assignments.on_update(it, ConsumerUpdate(correlation, 0, active))
    for _ in range(3):
        assignments.do_due(place, it)
    assert asked.answers == [(0, first), (1, not first), (2, first)]
    assert (it.channel is not None) == first


def test_the_end_of_a_stream_that_was_created_again_is_that_of_the_new_one():
    settings = StreamGroup(**GIVEN)._settings
    assignments, it, asked = Assignments(settings, StreamWorkers(print, settings)), lane(), Asked()
    it.end = 300
    it.end_assignment()
    assignments.on_update(it, ConsumerUpdate(1, 0, active=True))
    assignments.do_due(SimpleNamespace(connection=asked, top_up=lambda _: None), it)
    assert it.end == 1


def test_a_stored_offset_beyond_the_end_is_warned_of_and_the_lag_is_unknown(caplog):
    """Security review 3, L3: any reader can store one, and the group then handled nothing with a lag of 0."""
    settings = StreamGroup(**GIVEN)._settings
    assignments, it, asked = Assignments(settings, StreamWorkers(print, settings)), lane(), Asked()
    asked.stored, asked.has_stats, asked.timeout, asked.node = 10**9, True, 1.0, "n"
    asked.stats = lambda _: StreamStats(0, 4, 4)
    asked.metadata = lambda _: {"events": SimpleNamespace(leader="n")}
    it.end_assignment()
    assignments.on_update(it, ConsumerUpdate(1, 0, active=True))
    assignments.do_due(SimpleNamespace(connection=asked, top_up=lambda _: None), it)
    status = status_of([it], "")
    assert (status.partitions[0].stored, status.partitions[0].end) == (10**9, 5)
    assert status.partitions[0].lag is status.lag is None
    assert "the stored offset 1000000000 of stream 'events' is beyond its end, 5" in caplog.text
    it.add(chunk(10**9 + 1, 1))
    it.finish(it.take(), it.channel)
    assert status_of([it], "").lag == 0


def test_a_gap_behind_the_last_message_is_no_lag(monkeypatch):
    """Each stored offset is an entry of the stream that the broker does not deliver."""
    settings = StreamGroup(**GIVEN)._settings
    assignments, it, asked = Assignments(settings, StreamWorkers(print, settings)), lane(), Asked()
    place = SimpleNamespace(connection=asked, lanes={0: it})
    end, there, looked = 3, None, []
    monkeypatch.setattr(asked, "stats", lambda _: StreamStats(0, 0, end - 1))
    monkeypatch.setattr(
        "rabbit_chx.streams.group.assignments.first_chunk", lambda *given: looked.append(given[2]) or there
    )

    def lag() -> int:
        assignments.listen(place)
        return status_of([it], "").lag

    it.add(chunk(0, 3))
    while (message := it.take()) is not None:
        assert lag() == 3 - message.offset
        it.finish(message, it.channel)
    assert (lag(), looked) == (0, [])
    end = 5
    assert [lag() for _ in range(2)] == [0, 0]
    assert looked == [OffsetSpec.offset(3)]
    end, there = 7, chunk(6, 1)
    assert lag() == 4
    it.add(there)
    it.finish(it.take(), it.channel)
    assert lag() == 0


def test_a_member_that_is_stopping_tells_the_program_of_no_new_stream():
    told = []
    settings = StreamGroup(**GIVEN, on_assigned=told.append)._settings
    workers, it = StreamWorkers(print, settings), lane()
    it.end_assignment()
    workers.stopping.set()
    Assignments(settings, workers).on_update(it, ConsumerUpdate(1, 0, True))
    assert it.change is None
    assert not it.told


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


@pytest.mark.parametrize(
    ("given", "hint"),
    [({}, r"\. amqp_url= names another address$"), ({"amqp_url": "amqp://127.0.0.1:1"}, "")],
)
def test_the_error_of_parking_at_the_default_port_names_the_parameter_for_another(monkeypatch, given, hint):
    monkeypatch.setitem(urls._PORTS, (False, False), 1)
    group = StreamGroup(**GIVEN, on_failure="park", parking_queue="failed", **given)
    with pytest.raises(BrokerUnavailable, match=f"no broker answers at .*refused{hint}$"):
        group._connect_for_parking()


def test_members_that_are_not_seen_are_noted_without_a_full_stop_after_a_question(capsys):
    live = BrokerAccess("amqp://127.0.0.1", partial(Management.of, url="http://127.0.0.1:1"), {})
    group = GroupOfStreams(
        name="g",
        live=live,
        super_stream=None,
        exchange=None,
        stream="s",
        stream_port=None,
        reset=None,
        yes=False,
    )
    with click.Context(click.Command("group")):
        assert group.consumers(["s"]) is None
    assert "with the plugin rabbitmq_management? --node asks a node instead" in capsys.readouterr().err


def compressed(first: int, batches: int, size: int) -> Chunk:
    """A chunk of sub-entry batches with one message each, which has this size when it is decompressed."""
    plain = struct.pack(">I", size) + bytes(size)
    data = zlib.compress(plain, wbits=31)
    entry = struct.pack(">BHII", 0x90, 1, len(plain), len(data)) + data
    return Chunk("events", 0, batches, batches, 0, 1, first, memoryview(entry * batches))


def test_a_batch_is_limited_by_its_decompressed_bytes():
    it = lane(batches=True)
    it.assign(5, None)
    for first in range(8):
        it.add(compressed(first, 1, 3 << 20))
    it.add(compressed(8, 20, 3 << 20))
    it.add(chunk(28, 10))
    it.add(Chunk("events", 0, 2, 9, 0, 1, 38, compressed(0, 2, 9 << 20).data))  # not as many as it says
    it.add(chunk(47, 1))
    taken = iter(it.take, None)
    ranges = [(5, 7), (8, 12), (13, 17), (18, 22), (23, 27), (28, 46), (47, 47)]
    assert [(batch.first, batch.last) for batch in taken] == ranges


@pytest.mark.parametrize("parking", [{}, {"on_failure": "park", "parking_queue": "failed"}])
def test_a_broker_that_cannot_be_reached_is_tried_until_the_group_is_stopped(caplog, parking):
    group = StreamGroup(**GIVEN, **parking, amqp_url="amqp://127.0.0.1:1" if parking else None)

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


@pytest.mark.parametrize("stopped", [True, False], ids=["at a stop", "while it runs"])
def test_streams_whose_offsets_are_not_stored_leave_no_other_unstored(monkeypatch, stopped):
    monkeypatch.setattr(offsets, "_READ_BACK", 0.05)
    stored = {}

    class Dropping(Asked):
        is_open, has_unread, node = True, False, None

        def query_offset(self, _group: str, stream: str) -> int | None:
            return stored.get(stream)

        def store_offset(self, group: str, stream: str, offset: int) -> None:
            if stream in {"s1", "s3"} and group == "g":
                stored[stream] = offset

        def events(self, _seconds: float) -> list[object]:
            return []

        def fileno(self) -> int:
            return quiet.fileno()

        def close(self) -> None:
            """Do nothing."""

    group = StreamGroup(**GIVEN)
    member = group._new_member(StreamWorkers, print, batches=False)
    names = ["s0", "s1", "s2", "s3"]
    lanes = {name: StreamLane(name, batches=False, store_every=1, attention=Attention()) for name in names}
    for number, each in enumerate(lanes.values()):
        each.subscription = number
        each.assign(0, None)
        each.heard = monotonic()
        each.add(chunk(0, 1))
        each.finish(each.take(), each.channel)
        each.take()
    member._lanes = lanes
    place = Place(SimpleNamespace(release="4.3.6"), group._settings)
    place.connection = Dropping()
    place.lanes.update(enumerate(lanes.values()))
    place.top_up = lambda _: None
    member._places.append(place)
    if stopped:
        member.stop()
    quiet, other = socket.socketpair()
    told = "of group 'g' in streams 's0', 's2'; its log says why"
    with quiet, other, pytest.raises(StreamUnavailable, match=told):
        member.run()
    assert stored == {"s1": 0, "s3": 0}


def test_an_offset_that_the_broker_dropped_while_the_leader_moved_is_stored_again(monkeypatch):
    monkeypatch.setattr(offsets, "_STORE_AGAIN", 0.01)
    asked = Asked()
    assert offsets.wait_until_stored(asked, "g", "events", 7, before=None) is None
    assert asked.stored == 7


class Contested(Asked):
    """Another client stores an offset whenever this one has done so."""

    def store_offset(self, _group: str, _stream: str, offset: int) -> None:
        self.stored = 3


def test_a_member_goes_on_and_says_so_when_another_client_stores_its_offset(monkeypatch, caplog):
    """It ended for good, with "permission" (review 3, bug 12)."""
    monkeypatch.setattr(offsets, "_READ_BACK", 0.05)
    settings = StreamGroup(**GIVEN)._settings
    assignments, it = Assignments(settings, StreamWorkers(print, settings)), lane()
    place = SimpleNamespace(connection=Contested(), top_up=lambda _: None)
    it.add(chunk(0, 10))
    for _ in range(10):
        it.finish(it.take(), it.channel)
    assignments.settle(place, it)
    assert (
        "another client stores the group's offset in stream 'events', at last 3 instead of 9" in caplog.text
    )
    assert (it.stored, it.is_refused) == (3, False)
    it.store_again = 0.0
    assert it.store_is_due  # so that its own offset replaces the other one, as documented


def test_a_reset_that_another_client_undoes_fails(monkeypatch):
    monkeypatch.setattr(offsets, "_READ_BACK", 0.05)
    contested = Contested()
    contested.node = None
    group = offsets.GroupOffsets("g", lambda _: nullcontext(contested))
    told = "another client, such as a member that runs"
    with group, pytest.raises(StreamUnavailable, match=told) as raised:
        group.store("events", 7)
    assert raised.value.problem == "refused"
