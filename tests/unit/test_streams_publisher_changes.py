"""`StreamPublisher` while it is opened, closed or stopped, while its streams change, and while its password is written: nothing is lost in silence."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from rabbit_chx.errors import (
    BrokerUnavailable,
    InvalidValue,
    PublishFailed,
    RabbitChxError,
    StreamUnavailable,
)
from rabbit_chx.streams import AsyncStreamPublisher, StreamPublisher, Timeouts
from rabbit_chx.streams.partitions import Partitions
from rabbit_chx.streams.publishing import outlet, routes
from rabbit_chx.streams.publishing.lots import Lot, LotOutbox
from rabbit_chx.streams.publishing.pipeline import StreamPipeline
from tests.patience import PATIENCE, wait_until, wait_until_async
from tests.unit import stream_servers
from tests.unit.stream_servers import FIRST, Connection

servers = stream_servers.servers


async def test_tasks_that_open_a_publisher_at_once_share_one_connection(servers) -> None:
    publisher = AsyncStreamPublisher(FIRST, "events", name="job")
    await asyncio.gather(*(publisher.open() for _ in range(20)))
    await publisher.publish(b"a")
    await publisher.close()
    assert publisher.totals.connections == len(servers.opened) == 1


def test_messages_for_a_stream_that_is_added_get_ids_after_its_last_one(servers, monkeypatch) -> None:
    last = {"events-2": 5_000}
    _, answers = stream_servers.delayed(monkeypatch, "_declare_publisher", "events-2")
    monkeypatch.setattr(Connection, "query_publisher_sequence", lambda _, __, stream: last.get(stream, 0))
    monkeypatch.setattr(routes, "_LOOK", 0.05)
    with StreamPublisher(FIRST, super_stream="events", name="job") as publisher:
        publisher.publish(b"a", "k")
        servers.streams = 3
        wait_until(lambda: len(publisher._pipeline.outboxes) == 3, "the stream is used")
        futures = [publisher.submit(b"b", str(number)) for number in range(100)]
        wait_until(lambda: publisher.totals.confirmed > 50, "those of the other streams are confirmed")
        answers.set()
        for future in futures:
            future.result(PATIENCE)
        assert (publisher.totals.confirmed, publisher.totals.duplicates) == (101, 0)
    own = [number for number in servers.stored if number > 5_000]
    assert len(servers.stored) == 101
    assert sorted(own) == list(range(5_001, 5_001 + len(own)))
    assert own


@pytest.mark.parametrize("closed", [False, True])
def test_a_batch_that_is_accepted_in_part_names_the_rows_of_the_rest(
    servers, monkeypatch, closed: bool
) -> None:
    accept, calls = StreamPipeline.accept, iter(range(9))

    def once(pipeline: StreamPipeline, *given: Any, **more: Any) -> int:
        if next(calls) == 1:
            if not closed:
                raise BrokerUnavailable("no broker")
            pipeline.close(None)
        return accept(pipeline, *given, **more)

    monkeypatch.setattr(StreamPipeline, "accept", once)
    keys = [str(number) for number in range(2_500)]
    with (
        StreamPublisher(FIRST, "events") as publisher,
        pytest.raises(PublishFailed, match="1500 of 2500 messages were not confirmed") as caught,
    ):
        publisher.publish_many([b"a"] * 2_500, keys)
    failures = caught.value.failures
    assert [each.row for each in failures] == list(range(1_000, 2_500))
    assert [each.routing_key for each in failures] == keys[1_000:]
    assert not caught.value.may_have_arrived
    assert failures[0].reply == ("the publisher is closed" if closed else "no broker")
    assert failures[0].stream == "events"
    assert caught.value.totals.confirmed == len(servers.stored) == 1_000


@pytest.mark.parametrize("rows", [5, 1_500, 2_500])
async def test_a_batch_of_a_task_that_finds_no_room_fails_unsent(servers, rows: int) -> None:
    async with AsyncStreamPublisher(
        FIRST, "events", max_in_flight=1, timeouts=Timeouts(close=0.1)
    ) as publisher:
        servers.silent = True
        first = asyncio.create_task(publisher.publish(b"first"))
        await wait_until_async(lambda: servers.stored)
        with pytest.raises(PublishFailed) as caught:
            await publisher.publish_many([b"a"] * rows, timeout=0.02)
        assert [each.row for each in caught.value.failures] == list(range(rows))
        assert not caught.value.may_have_arrived
        servers.silent = False
        servers.tell()
        await first
    totals = publisher.totals
    assert (totals.published, totals.confirmed) == (1, 1)


def test_an_idle_connection_that_stays_ends_an_outage(servers, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(outlet, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with StreamPublisher(FIRST, "events", name="job", timeouts=Timeouts(reconnect=5)) as publisher:
        (one,) = publisher._pipeline._outlets.values()
        servers.close_connections()
        wait_until(lambda: one.outbox.trouble, "the loss is noticed")
        publisher.sequence()
        now[0] += 60
        servers.tell()
        wait_until(lambda: one._failing_since == float("inf"), "the connection counts as one that works")
        servers.silent = True
        sent = publisher.submit(b"a")
        wait_until(lambda: servers.stored, "it is sent")
        servers.silent = False
        servers.close_connections()
        sent.result(PATIENCE)
        assert publisher.totals.resent == 1
        size = len(next(iter(servers.stored.values())))
        assert publisher.totals.bytes == 2 * size


def test_the_broker_is_asked_for_changes_before_it_misses_heartbeats(servers, monkeypatch) -> None:
    asked, streams = [0], Connection.partitions

    def partitions(*given: Any, **options: Any) -> list[str]:
        asked[0] += 1
        return streams(*given, **options)

    monkeypatch.setattr(routes, "_LOOK", 3600.0)
    monkeypatch.setattr(Connection, "heartbeat", 0.05)
    monkeypatch.setattr(Connection, "partitions", partitions)
    with StreamPublisher(FIRST, super_stream="events"):
        wait_until(lambda: asked[0] >= 3, "it asks again")


def test_routes_that_nothing_explains_are_an_error_only_if_they_stay(servers, monkeypatch) -> None:
    """They contradict each other while `apply` binds one stream after the other."""
    looks, failing, noted, note = [0], {2, 4, 5}, [], routes.Routes._note

    def holds(*_: object) -> bool:
        looks[0] += 1
        if looks[0] in failing:
            raise InvalidValue("exchange 'events' of StreamPublisher", "routes", "others")
        return True

    def remember(own: routes.Routes, error: RabbitChxError | None) -> None:
        noted.append((looks[0], error and type(error)))
        note(own, error)

    monkeypatch.setattr(Partitions, "holds", holds)
    monkeypatch.setattr(routes.Routes, "_note", remember)
    monkeypatch.setattr(routes, "_LOOK", 0.01)
    monkeypatch.setattr(routes, "_LOOK_AGAIN", 0.01)
    with StreamPublisher(FIRST, super_stream="events") as publisher:
        wait_until(lambda: looks[0] > 6, "it looks again")
        assert noted[:5] == [(0, None), (1, None), (3, None), (5, InvalidValue), (6, None)]
        publisher.publish(b"a", "k")


@pytest.mark.parametrize("streams", [1, 3])
def test_a_call_that_waits_for_room_holds_up_no_change_of_the_streams(
    servers, monkeypatch, streams: int
) -> None:
    """It is routed again as soon as the stream that it waits for has room, or is removed."""
    began, lost, waits = time.monotonic(), threading.Event(), threading.Event()
    declared, wait_for_space = Connection._declare_publisher, LotOutbox._wait_for_space

    def declare(connection: Connection, stream: str, name: str | None) -> int:
        if stream == "events-1" and lost.is_set():
            raise StreamUnavailable("the connection was lost", "lost")
        return declared(connection, stream, name)

    def wait(*given: Any, **more: Any) -> bool:
        waits.set()
        return wait_for_space(*given, **more)

    monkeypatch.setattr(outlet, "time", SimpleNamespace(monotonic=lambda: began))
    monkeypatch.setattr(routes, "_LOOK", 0.05)
    monkeypatch.setattr(Connection, "_declare_publisher", declare)
    monkeypatch.setattr(LotOutbox, "_wait_for_space", wait)
    timeouts = Timeouts(confirm=0.1, reconnect=1_000)
    with (
        ThreadPoolExecutor() as pool,
        StreamPublisher(FIRST, super_stream="events", max_in_flight=1, timeouts=timeouts) as publisher,
    ):
        outlets = publisher._pipeline._outlets
        lost.set()
        servers.close_connections()
        wait_until(lambda: outlets["events-1"].outbox.trouble, "the loss is noticed")
        first = publisher.submit(b"first", "0")
        waiting = pool.submit(publisher.publish, b"second", "0")  # a third stream takes this key
        wait_until(waits.is_set, "the second one waits for room")
        servers.streams = streams
        wait_until(lambda: len(publisher._pipeline._outlets) == streams, "the streams are used")
        publisher.publish(b"other", "15", timeout=PATIENCE)
        lost.clear()
        if streams == 1:
            with pytest.raises(PublishFailed, match="its stream was removed"):
                first.result(PATIENCE)
        waiting.result(PATIENCE)
        first.exception(PATIENCE)
        found = {stream: own.outbox.totals() for stream, own in publisher._pipeline._outlets.items()}
        assert {stream: own.confirmed for stream, own in found.items()} == (
            {"events-0": 2} if streams == 1 else {"events-0": 1, "events-1": 1, "events-2": 1}
        )


def test_a_message_that_is_accepted_when_the_streams_begin_to_change_is_one_of_those_before(
    servers, monkeypatch
) -> None:
    settling, overtaken, put = threading.Event(), [], LotOutbox.put
    monkeypatch.setattr(routes, "_LOOK", 0.05)
    with StreamPublisher(FIRST, super_stream="events") as publisher:
        pipeline = publisher._pipeline
        before, settle = pipeline._routes.current, pipeline._wait_until_settled

        def put_late(*given: Any) -> bool:
            servers.streams = 3
            wait_until(lambda: pipeline._routes.current is not before, "the streams change")
            overtaken.append(settling.wait(0.2))
            return put(*given)

        monkeypatch.setattr(LotOutbox, "put", put_late)
        monkeypatch.setattr(
            pipeline, "_wait_until_settled", lambda deadline: settling.set() or settle(deadline)
        )
        publisher.publish(b"a", "k")
        wait_until(settling.is_set, "the messages before the change are confirmed")
    assert overtaken == [False]


def test_a_call_is_routed_again_if_its_stream_was_removed_before_it_was_looked_up(
    servers, monkeypatch
) -> None:
    divide = Lot.divide

    def divide_late(lot: Lot, streams: Any) -> None:
        divide(lot, streams)
        servers.streams = 1
        wait_until(lambda: len(publisher._pipeline._outlets) == 1, "a change")

    monkeypatch.setattr(routes, "_LOOK", 0.05)
    monkeypatch.setattr(Lot, "divide", divide_late)
    with StreamPublisher(FIRST, super_stream="events") as publisher:
        publisher.publish_many([b"a"] * 10, list("0123456789"))
        assert publisher.totals.confirmed == 10


def test_a_call_waits_for_a_change_also_after_a_check_that_failed(monkeypatch) -> None:
    before, after = (
        SimpleNamespace(streams=[name], holds=lambda *_, name=name: name == "b") for name in "ab"
    )
    answers = iter([before, RabbitChxError("it is gone"), after])
    at_once, changing, settled = threading.Event(), threading.Event(), threading.Event()
    waits = iter([at_once, settled])
    at_once.set()

    def find(*_: object) -> Any:
        answer = next(answers)
        if isinstance(answer, RabbitChxError):
            raise answer
        return answer

    def settle() -> None:
        wait = next(waits)
        if wait is settled:
            changing.set()
        wait.wait(PATIENCE)

    monkeypatch.setattr(routes, "_LOOK", 0.01)
    connection: Any = SimpleNamespace(is_open=True, heartbeat=0, close=lambda: None)
    found = routes.Routes("events", lambda _: connection, find, settle, lambda _: None)
    found.start()
    assert changing.wait(PATIENCE)
    assert found.known(deadline=0) is None
    settled.set()
    wait_until(lambda: found.known(deadline=0) is after, "the streams are known")
    found.stop(PATIENCE)


def test_a_stream_that_was_removed_leaves_no_error(servers, monkeypatch) -> None:
    monkeypatch.setattr(routes, "_LOOK", 0.05)
    servers.streams = 3
    with StreamPublisher(FIRST, super_stream="events") as publisher:
        bulk = publisher.bulk()
        removed = publisher._pipeline._outlets["events-2"]
        removed._give_up(StreamUnavailable("no such stream", "no such stream", "events-2"))
        assert publisher.error
        servers.streams = 2
        wait_until(lambda: len(publisher._pipeline._outlets) == 2, "a change")
        assert publisher.error is bulk.error is None
        publisher.publish(b"a", "k")


def test_no_call_is_accepted_after_a_stop_whatever_the_streams_do(servers, monkeypatch) -> None:
    publisher = StreamPublisher(FIRST, super_stream="events")
    with ThreadPoolExecutor() as pool:
        opening, answers = stream_servers.opened_without_streams(publisher, pool, monkeypatch)
        waiting = pool.submit(publisher.publish, b"a", "k")
        publisher._stop_accepting()
        for call in (waiting, opening):
            with pytest.raises(BrokerUnavailable, match="accepts no more messages"):
                call.result(PATIENCE)
        answers.set()
    assert not servers.stored


def test_a_forked_process_waits_for_no_lock_of_the_publisher(servers, monkeypatch) -> None:
    with StreamPublisher(FIRST, super_stream="events") as publisher, ThreadPoolExecutor() as pool:
        servers.silent = True
        sent = publisher.submit(b"a", "k")
        pipeline = publisher._pipeline
        with ExitStack() as held, monkeypatch.context() as forked:
            for each in (pipeline._routes, *pipeline.outboxes):
                held.enter_context(each._changed)
            forked.setattr(pipeline._guard, "_process", -1)
            for call in (publisher._stop_accepting, sent.cancel):
                with pytest.raises(InvalidValue, match=r"Call open\(\) after the fork"):
                    pool.submit(call).result(PATIENCE)
        servers.silent = False
        servers.tell()
        sent.result(PATIENCE)


def test_a_stream_that_is_added_has_the_time_to_reconnect(servers, monkeypatch) -> None:
    declared, failing = Connection._declare_publisher, iter([True, True, False])

    def lost(connection: Connection, stream: str, name: str | None) -> int:
        if stream == "events-2" and next(failing):
            raise StreamUnavailable("the connection was lost", "lost")
        return declared(connection, stream, name)

    monkeypatch.setattr(Connection, "_declare_publisher", lost)
    monkeypatch.setattr(routes, "_LOOK", 0.05)
    with StreamPublisher(FIRST, super_stream="events") as publisher:
        servers.streams = 3
        wait_until(lambda: len(publisher._pipeline.outboxes) == 3, "a change")
        assert publisher.publish_many([b"a"] * 30, map(str, range(30))).confirmed == 30


def test_a_broker_that_takes_nothing_is_not_tried_again(servers, monkeypatch) -> None:
    """Under a disk alarm, data fills the sockets, and writing takes as long as it may."""
    now = [0.0]

    def full(*_: object, timeout: float) -> None:
        now[0] += timeout + 0.1
        raise StreamUnavailable("the connection was lost", "lost")

    monkeypatch.setattr(outlet, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Connection, "_publish", full)
    with (
        StreamPublisher(FIRST, "events", timeouts=Timeouts(confirm=3, reconnect=60)) as publisher,
        pytest.raises(PublishFailed, match=r"no confirm of 1 message for stream 'events' within 3 seconds"),
    ):
        publisher.publish(b"a")
    assert len(servers.opened) == 1
