"""Groups on streams: how members share streams and hand them over."""

from __future__ import annotations

import asyncio
import threading
import uuid
from contextlib import ExitStack

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import AsyncStreamGroup, Reject, StreamGroup, StreamUnavailable, connect
from rabbit_chx.streams.group import member as group_member
from rabbit_chx.streams.protocol.requests import OffsetSpec
from tests.broker.stream_scene import fill
from tests.members import running
from tests.patience import PATIENCE, wait_until
from tests.queues import STREAM, a_channel, delete_exchange
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.since_4_0]

PARTITIONS = 6


@pytest.fixture
def streams_of(broker):
    """Makes exchanges with streams: a consistent-hash exchange, or a super stream."""
    made = {}

    def make(kind: str = "exchange", count: int = PARTITIONS) -> str:
        name = f"group-{uuid.uuid4().hex[:8]}"
        made[name] = [f"{name}-{number}" for number in range(count)]
        with a_channel(broker) as channel:
            channel.exchange_declare(
                name, {"exchange": "x-consistent-hash"}.get(kind, "direct"), durable=True
            )
            for number, stream in enumerate(made[name]):
                key = "1" if kind == "exchange" else str(number)
                channel.queue_declare(stream, durable=True, arguments=STREAM)
                channel.queue_bind(stream, name, key, {"x-stream-partition-order": number})
        return name

    yield make
    with a_channel(broker) as channel:
        for name, streams in made.items():
            delete_exchange(channel, name, streams)


class Seen:
    """What handlers have handled, in order, and the members that they belong to."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int, int]] = []

    def by(self, member: int):
        return lambda message: self.all.append((message.queue, message.offset, member))

    @property
    def offsets(self) -> list[int]:
        return [offset for _, offset, _ in self.all]


def publish(broker, exchange: str, rows: range) -> None:
    with Publisher(broker.url, exchange) as publisher:
        publisher.publish_many([b"%d" % row for row in rows], [f"key-{row % 50}" for row in rows])


def handle_all(group, count: int) -> list[int]:
    """Run a group until it has handled this many messages; their offsets."""
    seen = Seen()
    with running(group, seen.by(0)):
        wait_until(lambda: len(seen.all) >= count)
    return seen.offsets


# ---- sharing


def test_members_share_the_streams_of_an_exchange_and_take_over(broker, stream_url, streams_of):
    exchange, seen = streams_of(), Seen()
    first, second = (StreamGroup(stream_url, exchange=exchange, name="billing") for _ in range(2))
    publish(broker, exchange, range(500))

    def held(group):
        return {partition.stream for partition in group.status.partitions}

    with running(first, seen.by(1)):
        wait_until(lambda: len(seen.all) == 500)
        with running(second, seen.by(2)):
            wait_until(lambda: len(held(first)) == len(held(second)) == PARTITIONS // 2)
            assert not held(first) & held(second)
            publish(broker, exchange, range(500, 1000))
            wait_until(lambda: len(seen.all) == 1000)
        wait_until(lambda: len(held(first)) == PARTITIONS)
        publish(broker, exchange, range(1000, 1500))
        wait_until(lambda: len(seen.all) == 1500)
        wait_until(lambda: first.status.lag == 0)
        assert first.status.connected
    handled = [(stream, offset) for stream, offset, _ in seen.all]
    assert len(set(handled)) == 1500  # a hand-over repeats nothing
    for number in range(PARTITIONS):
        offsets = [offset for stream, offset in handled if stream == f"{exchange}-{number}"]
        assert offsets == sorted(offsets)
    assert {member for *_, member in seen.all} == {1, 2}
    assert not first.status.connected


def test_members_that_start_at_the_same_moment_have_equal_shares(stream_url, streams_of):
    name, members = streams_of("super stream", 12), 4
    groups = [StreamGroup(stream_url, super_stream=name, name="g") for _ in range(members)]

    def shares():
        return {frozenset(each.stream for each in group.status.partitions) for group in groups}

    equal = {frozenset(f"{name}-{number}" for number in range(at, 12, members)) for at in range(members)}
    with ExitStack() as stack:
        for group in groups:
            stack.enter_context(running(group, print))
        wait_until(lambda: shares() == equal, lambda: f"equal shares, not {shares()}")


def test_a_member_that_hangs_while_it_joins_delays_the_others_only(
    broker, stream_url, streams_of, monkeypatch
):
    monkeypatch.setattr("rabbit_chx.streams.group.places._PATIENCE", 0.5)
    name = streams_of("super stream", 2)
    with connect(stream_url) as hanging:
        properties = {"single-active-consumer": "true", "name": "g (joining)"}
        hanging._subscribe(f"{name}-0", OffsetSpec.next(), credit=0, properties=properties)
        group = StreamGroup(stream_url, super_stream=name, name="g")
        with running(group, print):
            wait_until(lambda: len(group.status.partitions) == 2)


def test_a_super_stream_is_shared_too_and_the_program_is_told(broker, stream_url, streams_of):
    name, told = streams_of("super stream", 4), []
    options = {
        "super_stream": name,
        "name": "g",
        "on_assigned": lambda stream: told.append(("+", stream)),
        "on_revoked": lambda stream: told.append(("-", stream)),
    }
    first, second = StreamGroup(stream_url, **options), StreamGroup(stream_url, **options)
    with running(first, print):
        wait_until(lambda: len(told) == 4)
        assert {*told} == {("+", f"{name}-{number}") for number in range(4)}
        with running(second, print):
            wait_until(lambda: len(told) == 8)
            given = {stream for sign, stream in told if sign == "-"}
            assert len(given) == 2
            assert all(told.index(("-", stream)) < told.index(("+", stream), 4) for stream in given)
    for _, stream in told:
        signs = "".join(sign for sign, each in told if each == stream)
        assert "++" not in signs
        assert "--" not in signs


def test_members_continue_when_the_first_stream_is_deleted(broker, stream_url, streams_of):
    name, seen = streams_of("super stream", 3), Seen()
    members = [StreamGroup(stream_url, super_stream=name, name="g") for _ in range(2)]
    left = (f"{name}-1", f"{name}-2")
    with running(members[0], seen.by(0)), running(members[1], seen.by(1)):
        wait_until(lambda: all(each.status.connected for each in members))
        with a_channel(broker) as channel:
            channel.queue_delete(f"{name}-0")
        wait_until(lambda: all(each.status.connected and each.status.streams == left for each in members))
        with Publisher(broker.url, name) as publisher:
            publisher.publish_many([b"x"] * 100, ["1", "2"] * 50)
        wait_until(lambda: len({*seen.all}) == 100)
    assert {stream for stream, *_ in seen.all} == {*left}


# ---- a handler that does not return


def test_a_stream_is_handed_over_although_a_handler_hangs(
    stream_url, stream_connection, streams_of, broker, caplog, monkeypatch
):
    monkeypatch.setattr("rabbit_chx.streams.group.assignments._MOST_SECONDS", 1.0)
    exchange, seen, release = streams_of(count=2), Seen(), threading.Event()
    hanging: list[str] = []
    publish(broker, exchange, range(200))

    def hang(message):
        hanging.append(message.queue)
        release.wait(PATIENCE)

    first, second = (StreamGroup(stream_url, exchange=exchange, name="g") for _ in range(2))
    with running(first, hang):
        wait_until(lambda: len(hanging) == 2)
        with running(second, seen.by(2)):
            wait_until(lambda: seen.all)
            assert len(first.status.partitions) == 1
            release.set()
    assert "although the handler did not return within 1 s" in caplog.text


# ---- an event loop


async def test_the_handler_of_an_event_loop_is_awaited(broker, stream_url, streams_of):
    exchange, seen, told = streams_of(), [], []
    publish(broker, exchange, range(500))

    async def start(stream):
        await asyncio.sleep(0)
        return "first"

    done = asyncio.Event()

    async def handle(message):
        await asyncio.sleep(0)
        seen.append((message.queue, message.offset))
        if len(seen) == 500:
            done.set()

    group = AsyncStreamGroup(stream_url, exchange=exchange, name="g", start=start, on_assigned=told.append)
    async with group.running(handle):
        await asyncio.wait_for(done.wait(), PATIENCE)
    assert len(set(seen)) == 500
    assert sorted(told) == [f"{exchange}-{number}" for number in range(PARTITIONS)]


@pytest.mark.one_release
def test_the_error_of_a_handler_in_an_event_loop_ends_the_run(stream_url, stream_connection, stream):
    fill(stream_connection, stream, range(1, 11))

    async def handle(batch):
        raise Reject("no")

    with pytest.raises(Reject):
        asyncio.run(AsyncStreamGroup(stream_url, stream=stream, name="g").run_batches(handle))
    assert stream_connection.query_offset("g", stream) is None


# ---- refusals


@pytest.mark.one_release
def test_a_missing_stream_or_exchange_is_an_error(stream_url, broker):
    with pytest.raises(StreamUnavailable, match="no stream 'none'"):
        StreamGroup(stream_url, stream="none", name="g").run(print)
    with pytest.raises(StreamUnavailable, match="has no super stream or other exchange 'none'"):
        StreamGroup(stream_url, exchange="none", name="g").run(print)
    with pytest.raises(InvalidValue, match="an exchange to which a stream is bound"):
        StreamGroup(stream_url, exchange="amq.topic", name="g").run(print)


@pytest.mark.one_release
def test_a_missing_parking_queue_is_an_error(broker, stream_url, stream):
    options = {"on_failure": "park", "parking_queue": "none", "amqp_url": broker.url}
    with pytest.raises(InvalidValue, match="invalid parking_queue: got 'none'"):
        StreamGroup(stream_url, stream=stream, name="g", **options).run(print)


def test_reading_is_the_only_permission_that_a_member_needs(broker, stream_connection, streams_of):
    exchange, port = streams_of(count=2), BrokerUrl.for_streams(broker.stream_url).port
    publish(broker, exchange, range(10))
    with a_user(broker, "", "", f"^{exchange}(-[01])?$") as user:
        url = BrokerUrl.for_streams(user.url, port=port)
        assert len(handle_all(StreamGroup(url, exchange=exchange, name="g"), 10)) == 10
    stored = [stream_connection.query_offset("g", f"{exchange}-{number}") for number in range(2)]
    assert sum(last + 1 for last in stored if last is not None) == 10


def test_what_is_left_in_an_unbound_stream_is_handled_by_another_member(
    broker, stream_url, streams_of, monkeypatch
):
    monkeypatch.setattr(group_member, "_LOOK_EVERY", 0.1)
    exchange, seen, stopped = streams_of(count=2), Seen(), threading.Event()
    first, second = (StreamGroup(stream_url, exchange=exchange, name="billing") for _ in range(2))
    publish(broker, exchange, range(400))
    unbound = f"{exchange}-0"

    def slowly(message):
        seen.all.append((message.queue, message.offset, 1))
        if message.queue == unbound:
            stopped.wait(PATIENCE)

    with running(first, slowly):
        wait_until(lambda: len({stream for stream, _, _ in seen.all}) == 2)
        with running(second, seen.by(2)):
            wait_until(lambda: [each.stream for each in second.status.partitions] == [f"{exchange}-1"])
            with a_channel(broker) as channel:
                channel.queue_unbind(unbound, exchange, "1", {"x-stream-partition-order": 0})
            wait_until(lambda: all(each._member._given_up == {unbound} for each in (first, second)))
            first.stop()
            stopped.set()
            wait_until(lambda: len(set(seen.all)) == 400, lambda: f"all messages: {second.status}")
            wait_until(lambda: second.status.streams == (f"{exchange}-1",), "the stream is left")
            assert second.status.connected
