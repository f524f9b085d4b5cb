"""Groups on streams without a broker: their parameters, batches and lanes."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from datetime import datetime
from time import sleep
from types import SimpleNamespace

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.broker.management_rows import StreamConsumer
from rabbit_chx.cli import _exit_code
from rabbit_chx.cli.stream_group import GroupOfStreams
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams import AsyncStreamGroup, BatchFailed, StreamBatch, StreamGroup
from rabbit_chx.streams.group.assignments import Assignments
from rabbit_chx.streams.group.batch import failed_part
from rabbit_chx.streams.group.lanes import Attention, Change, StreamLane
from rabbit_chx.streams.group.offsets import PartitionOffsets
from rabbit_chx.streams.group.places import in_order
from rabbit_chx.streams.group.settings import check_release
from rabbit_chx.streams.group.workers import StreamWorkers
from rabbit_chx.streams.messages.chunks import Chunk, parse_chunk
from rabbit_chx.streams.protocol.answers import ConsumerUpdate, StreamStats
from rabbit_chx.streams.protocol.requests import OffsetSpec
from tests.faults.stream_group_member import of_guide
from tests.stream_chunks import a_chunk, sized
from tests.unit.test_docs import marked

URL = "rabbitmq-stream://user:secret@127.0.0.1:1"
GIVEN = {"url": URL, "stream": "events", "name": "g"}


def chunk(first: int, count: int) -> Chunk:
    """A chunk of messages whose bodies are their offsets."""
    bodies = (b"%d" % offset for offset in range(first, first + count))
    return parse_chunk(a_chunk(map(sized, bodies), offset=first), "events")


def lane(*, batches: bool = False, store_every: int = 100) -> StreamLane:
    made = StreamLane("events", batches=batches, store_every=store_every, attention=Attention())
    made.assign(0, None)
    return made


class Asked:
    """A connection that keeps the answers to the broker's questions."""

    _heard, heartbeat = 0.0, 10.0

    def __init__(self) -> None:
        self.answers: list[tuple[int, bool]] = []
        self.stored = 0

    def query_offset(self, _group: str, _stream: str) -> int:
        return self.stored

    def store_offset(self, _group: str, _stream: str, offset: int) -> None:
        self.stored = offset

    def stats(self, _stream: str) -> StreamStats:
        return StreamStats(0, 0, 0)

    def _answer_update(self, update: ConsumerUpdate, start: OffsetSpec | None) -> None:
        self.answers.append((update.correlation, start is not None))


def assignments_of(**given) -> Assignments:
    """The assignments of a member with these parameters, whose workers have no threads."""
    settings = StreamGroup(**GIVEN, **given)._settings
    return Assignments(settings, StreamWorkers(print, settings))


def place_of(connection: Asked) -> SimpleNamespace:
    """The place of a connection, on which no chunks are asked for."""
    return SimpleNamespace(connection=connection, top_up=lambda _: None)


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
    """Once, they went to any host, also without TLS."""
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
def test_a_callback_that_does_not_return_in_time_is_named_and_costs_only_its_stream(given, names):
    assignments, it = assignments_of(**given, timeouts=Timeouts(close=0.01)), lane()
    assignments.on_update(it, ConsumerUpdate(1, 0, active=True))
    sleep(0.02)
    with pytest.raises(
        StreamUnavailable,
        match=f"^{names}, or the handler before, did not return within 0.01 s for stream 'events'$",
    ) as caught:
        assignments.do_due(place_of(Asked()), it)
    assert (caught.value.stream, caught.value.problem, caught.value.permanent) == ("events", "lost", False)


def test_a_handler_must_fit_the_class():
    with pytest.raises(InvalidValue, match="AsyncStreamGroup takes coroutine functions"):
        StreamGroup(**GIVEN).run(coroutine)
    with pytest.raises(InvalidValue, match="StreamGroup takes functions"):
        asyncio.run(AsyncStreamGroup(**GIVEN).run_batches(print))


@pytest.mark.parametrize("options", [(), ("--reset", "first", "--yes")])
def test_the_command_refuses_releases_before_3_13(monkeypatch, capsys, options):
    check_release("3.13.7")
    closed = []
    connection = SimpleNamespace(release="3.12.14", close=lambda: closed.append(True))
    monkeypatch.setattr("rabbit_chx.cli.stream_group.connect", lambda *_, **__: connection)
    assert _exit_code(["group", "g", "--stream", "events", "-U", "amqp://127.0.0.1:1/", *options]) == 64
    assert "invalid broker release: got '3.12.14', expected 3.13 or later" in capsys.readouterr().err
    assert closed == [True]


class Offsets:
    """The stored offsets, and whether a connection is open."""

    stored, is_open = 9, False

    def __enter__(self):
        self.is_open = True
        return self

    def __exit__(self, *_):
        self.is_open = False

    def read(self, stream):
        return PartitionOffsets(stream, 0, 10, self.stored, 0)

    def before(self, _stream, _position):
        return -1

    def store(self, _stream, offset):
        assert self.is_open
        self.stored = offset


@pytest.mark.parametrize("joined", [False, True])
def test_a_reset_is_not_connected_while_it_asks_and_looks_for_members_again(monkeypatch, capsys, joined):
    """The broker closes a connection without heartbeats, and a member may join meanwhile."""
    offsets, members = Offsets(), []

    def confirm(*_, **__):
        assert not offsets.is_open
        members.extend([StreamConsumer("events", "a", active=True)] * joined)
        return True

    monkeypatch.setattr(GroupOfStreams, "offsets", lambda _: offsets)
    monkeypatch.setattr(GroupOfStreams, "consumers", lambda *_: members)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("click.confirm", confirm)
    code = _exit_code(["group", "g", "--stream", "events", "-U", "amqp://127.0.0.1:1/", "--reset", "first"])
    assert (code, offsets.stored) == ((1, 9) if joined else (0, -1))
    assert ("Refused: group 'g' has members" in capsys.readouterr().err) is joined


def test_streams_are_joined_in_the_order_of_their_numbers():
    assert in_order(["o-10", "o-2", "b", "a", "o-1"]) == ["a", "b", "o-1", "o-2", "o-10"]


# ---- batches


def test_a_batch_is_cut_at_an_offset():
    batch = StreamBatch([chunk(0, 10), chunk(12, 5)], first=3)
    assert (batch.first, batch.last, len(batch)) == (3, 16, 12)
    assert [each.offset for each in batch.messages()] == [*range(3, 10), *range(12, 17)]
    rest = batch._since(12)
    assert (rest.first, rest.last, len(rest), rest.attempt) == (12, 16, 5, 1)
    failed, after = failed_part(batch, BatchFailed(12))
    assert (failed.first, failed.last, len(failed)) == (3, 12, 8)
    assert [each.body for each in failed.messages()][-1] == b"12"
    assert [each.offset for each in after.messages()] == [13, 14, 15, 16]
    assert failed_part(batch, BatchFailed(16)) == (batch, None)
    middle = failed._since(5)
    assert (middle.first, middle.last, len(middle)) == (5, 12, 6)
    assert [each.offset for each in middle.messages()] == [*range(5, 10), 12]
    parts = failed_part(failed, BatchFailed(8))
    assert [(each.first, each.last) for each in parts] == [(3, 8), (9, 12)]


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


def test_the_rest_of_a_chunk_is_handled_after_the_broker_was_silent():
    it = lane()
    it.add(chunk(0, 3))
    it.finish(it.take(), it.channel)
    assert not it.add(chunk(3, 1))  # a worker has it
    for _ in range(2):
        assert it.take(changes_only=True) is None
        assert it.wake()
    assert [it.take().offset for _ in range(3)] == [1, 2, 3]
    assert it.take() is None
    assert not it.wake()


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
