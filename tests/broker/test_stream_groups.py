"""Groups on streams: how members share streams, where they go on, and what happens when a handler fails."""

from __future__ import annotations

import asyncio
import threading
import uuid
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import (
    AsyncStreamGroup,
    Reject,
    StreamGroup,
    StreamUnavailable,
    connect,
)
from rabbit_chx.streams.ends import bounds
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.requests import OffsetSpec
from tests.broker.stream_scene import fill
from tests.faults.proxy import Proxy
from tests.patience import PATIENCE, wait_until
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.since_4_0]

PARTITIONS = 6


@pytest.fixture
def streams_of(broker):
    """An exchange with streams: a consistent-hash exchange, and a super stream."""
    made = []

    def make(kind: str = "exchange", count: int = PARTITIONS) -> str:
        name = f"group-{uuid.uuid4().hex[:8]}"
        with broker.connection() as connection:
            channel = connection.channel()
            channel.exchange_declare(
                name, {"exchange": "x-consistent-hash"}.get(kind, "direct"), durable=True
            )
            for number in range(count):
                add(channel, name, number, "1" if kind == "exchange" else str(number))
        made.append(name)
        return name

    def add(channel, name, number, key):
        channel.queue_declare(f"{name}-{number}", durable=True, arguments={"x-queue-type": "stream"})
        arguments = {"x-stream-partition-order": number}
        channel.queue_bind(f"{name}-{number}", name, key, arguments)
        made.append(f"{name}-{number}")

    make.add = add
    yield make
    with broker.connection() as connection:
        channel = connection.channel()
        for name in made:
            channel.exchange_delete(name)
            channel.queue_delete(name)


class Seen:
    """What handlers have handled, in order, and the members that they belong to."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int, int]] = []

    def by(self, member: int):
        return lambda message: self.all.append((message.queue, message.offset, member))

    @property
    def offsets(self) -> list[int]:
        return [offset for _, offset, _ in self.all]

    def in_order(self) -> bool:
        """Whether the first sights of each stream are in order."""
        last: dict[str, int] = {}
        seen = set()
        for stream, offset, _ in self.all:
            if (stream, offset) not in seen and offset < last.get(stream, -1):
                return False
            seen.add((stream, offset))
            last[stream] = max(offset, last.get(stream, -1))
        return True


@contextmanager
def running(group, handler, run="run"):
    """Run a group in a thread, and raise its error at the end."""
    errors = []

    def work():
        try:
            getattr(group, run)(handler)
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        group.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


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
    assert len(set(seen.all)) == 1500  # a hand-over repeats nothing
    assert seen.in_order()
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
        hanging.subscribe(f"{name}-0", OffsetSpec.next(), credit=0, properties=properties)
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


def test_a_single_stream_goes_to_the_next_member_when_the_first_ends(stream_url, stream_connection, stream):
    seen = Seen()
    first, second = (StreamGroup(stream_url, stream=stream, name="g") for _ in range(2))
    fill(stream_connection, stream, range(1, 101))
    with running(second, seen.by(2)) as late:
        with running(first, seen.by(1)):
            wait_until(lambda: len(seen.all) == 100)
            assert late.is_alive()
        fill(stream_connection, stream, range(101, 201))
        wait_until(lambda: len(seen.all) == 200)
    assert sorted(seen.offsets)[:100] == list(range(100))
    assert len({*seen.offsets}) == 200


def test_streams_that_are_bound_later_are_found(broker, stream_url, streams_of, monkeypatch):
    monkeypatch.setattr("rabbit_chx.streams.group.member._LOOK_EVERY", 0.5)
    exchange, seen = streams_of(count=1), Seen()
    group = StreamGroup(stream_url, exchange=exchange, name="g")
    with running(group, seen.by(0)):
        wait_until(lambda: group.status.connected)
        with broker.connection() as connection:
            streams_of.add(connection.channel(), exchange, 1, "1")
        publish(broker, exchange, range(200))
        wait_until(lambda: len(seen.all) == 200)
    assert {stream for stream, *_ in seen.all} == {f"{exchange}-0", f"{exchange}-1"}


# ---- where a group starts


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


@pytest.mark.parametrize("start", ["next", "last", 40, "time", "function"])
def test_a_new_group_starts_where_it_is_told(stream_url, stream_connection, stream, start):
    fill(stream_connection, stream, range(1, 51))
    given = {"time": datetime.now(UTC) + timedelta(hours=1), "function": lambda name: 45}.get(start, start)
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
    elif start == "last":
        assert min(seen.offsets) <= 49
    else:
        assert min(seen.offsets) == {"function": 45}.get(start, start)


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


@pytest.mark.parametrize("start", [11, lambda name: 11])
def test_a_start_beyond_the_end_is_an_error_and_skips_nothing(stream_url, stream_connection, stream, start):
    fill(stream_connection, stream, range(1, 11))
    with (
        pytest.raises(InvalidValue, match=r"at most 10, .* deleted and created again"),
        running(StreamGroup(stream_url, stream=stream, name="g", start=start), print) as thread,
    ):
        wait_until(lambda: not thread.is_alive())


def test_a_function_decides_instead_of_the_stored_offset(stream_url, stream_connection, stream):
    fill(stream_connection, stream, range(1, 101))
    group = StreamGroup(stream_url, stream=stream, name="g", start=lambda name: 90)
    assert min(handle_all(group, 10)) == 90
    group = StreamGroup(stream_url, stream=stream, name="g", start=lambda name: None)
    assert handle_all(group, 100) == list(range(100))


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


# ---- batches


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


@pytest.mark.long
def test_streams_whose_offsets_the_broker_drops_leave_no_other_unstored(
    broker, stream_url, stream_connection, streams_of, monkeypatch
):
    """Trials 3, service 8: those behind the first one were not stored, and the error named only that one."""
    exchange, seen, dropped = streams_of(count=4), Seen(), set()
    names = [f"{exchange}-{number}" for number in range(4)]
    store_offset = StreamConnection.store_offset

    def store(connection, group, stream, offset):
        if stream not in dropped:
            store_offset(connection, group, stream, offset)

    def stored():
        return {name: stream_connection.query_offset("g", name) for name in names}

    monkeypatch.setattr(StreamConnection, "store_offset", store)
    monkeypatch.setattr("rabbit_chx.streams.group.offsets._READ_BACK", 2.0)

    def run():
        with running(StreamGroup(stream_url, exchange=exchange, name="g", store_seconds=1e6), seen.by(0)):
            publish(broker, exchange, range(200))
            wait_until(lambda: len(seen.all) == 200 and None not in stored().values(), "200 are stored")
            before.update(stored())
            dropped.update({names[0], names[2]})
            publish(broker, exchange, range(200))
            wait_until(lambda: len(seen.all) == 400, "400 are handled")

    before = {}
    with pytest.raises(StreamUnavailable, match=f"of group 'g' in streams '{names[0]}', '{names[2]}'"):
        run()
    handled = {stream: offset for stream, offset, _ in seen.all}
    assert stored() == {name: (before if name in dropped else handled)[name] for name in names}


def test_a_batch_has_its_messages_as_arrow_columns(stream_url, stream_connection, stream):
    pytest.importorskip("pyarrow")
    fill(stream_connection, stream, range(1, 3001))
    bodies, spans = [], []

    def handle(batch):
        columns = batch.arrow(["body", "offset"])
        assert len(batch) == columns.num_rows
        assert columns["offset"][0].as_py() == batch.first
        spans.append((batch.first, batch.last))
        bodies.extend(columns["body"].to_pylist())

    group = StreamGroup(stream_url, stream=stream, name="g", start=10)
    with running(group, handle, "run_batches"):
        wait_until(lambda: len(bodies) == 2990)
    assert bodies == [b"%010d" % number for number in range(11, 3001)]
    assert spans[0][0] == 10
    assert [first for first, _ in spans[1:]] == [last + 1 for _, last in spans[:-1]]


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


def test_the_handler_of_an_event_loop_is_awaited(broker, stream_url, streams_of):
    exchange, seen, told = streams_of(), [], []
    publish(broker, exchange, range(500))

    async def start(stream):
        await asyncio.sleep(0)
        return "first"

    async def main():
        done = asyncio.Event()

        async def handle(message):
            await asyncio.sleep(0)
            seen.append((message.queue, message.offset))
            if len(seen) == 500:
                done.set()

        group = AsyncStreamGroup(
            stream_url, exchange=exchange, name="g", start=start, on_assigned=told.append
        )
        async with group.running(handle):
            await asyncio.wait_for(done.wait(), PATIENCE)

    asyncio.run(main())
    assert len(set(seen)) == 500
    assert sorted(told) == [f"{exchange}-{number}" for number in range(PARTITIONS)]


def test_the_error_of_a_handler_in_an_event_loop_ends_the_run(stream_url, stream_connection, stream):
    fill(stream_connection, stream, range(1, 11))

    async def handle(batch):
        raise Reject("no")

    with pytest.raises(Reject):
        asyncio.run(AsyncStreamGroup(stream_url, stream=stream, name="g").run_batches(handle))
    assert stream_connection.query_offset("g", stream) is None


# ---- refusals


def test_a_missing_stream_or_exchange_is_an_error(stream_url, broker):
    with pytest.raises(StreamUnavailable, match="no stream 'none'"):
        StreamGroup(stream_url, stream="none", name="g").run(print)
    with pytest.raises(StreamUnavailable, match="has no super stream or other exchange 'none'"):
        StreamGroup(stream_url, exchange="none", name="g").run(print)
    with pytest.raises(InvalidValue, match="an exchange to which a stream is bound"):
        StreamGroup(stream_url, exchange="amq.topic", name="g").run(print)


def test_a_missing_parking_queue_is_an_error(broker, stream_url, stream):
    options = {"on_failure": "park", "parking_queue": "none", "amqp_url": broker.url}
    with pytest.raises(InvalidValue, match="invalid parking_queue: got 'none'"):
        StreamGroup(stream_url, stream=stream, name="g", **options).run(print)


def test_a_lost_connection_is_replaced(broker, stream_connection, stream):
    seen = Seen()
    fill(stream_connection, stream, range(1, 11))
    with Proxy(broker.stream_url) as proxy:
        group = StreamGroup(proxy.url, stream=stream, name="g")
        with running(group, seen.by(0)):
            wait_until(lambda: len(seen.all) == 10)
            proxy.cut()
            fill(stream_connection, stream, range(11, 21))
            wait_until(lambda: max(seen.offsets) >= 19)
    assert {*range(10)} <= {*seen.offsets}
    assert seen.in_order()


def test_reading_is_the_only_permission_that_a_member_needs(broker, stream_connection, streams_of):
    exchange, port = streams_of(count=2), BrokerUrl.for_streams(broker.stream_url).port
    publish(broker, exchange, range(10))
    with a_user(broker, "", "", f"^{exchange}(-[01])?$") as user:
        url = BrokerUrl.for_streams(user.url, port=port)
        assert len(handle_all(StreamGroup(url, exchange=exchange, name="g"), 10)) == 10
    stored = [stream_connection.query_offset("g", f"{exchange}-{number}") for number in range(2)]
    assert sum(last + 1 for last in stored if last is not None) == 10
