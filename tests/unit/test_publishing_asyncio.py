"""The publisher for asyncio: the same calls, which suspend their task and leave the loop free."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pika import spec

from rabbit_chx.errors import BrokerUnavailable, InvalidValue, PublishFailed
from rabbit_chx.publishing import AsyncPublisher, Timeouts
from tests.amqp_server import AmqpServer, confirm_all
from tests.patience import wait_until_async
from tests.unit.test_publishing_calls import PATIENCE, TIMEOUTS, Script, let_arrive


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[tuple[AsyncPublisher, Script]]:
    """A publisher, and the broker that it publishes to."""
    script = Script()
    with AmqpServer(script) as server:
        async with (
            asyncio.timeout(PATIENCE),
            AsyncPublisher(server.url, "x", timeouts=TIMEOUTS, **options) as publisher,
        ):
            opening = asyncio.create_task(publisher.publish(b"opening"))
            await wait_until_async(lambda: publisher.totals.published)
            await asyncio.to_thread(script.send, spec.Basic.Ack(1), 1)
            await opening
            yield publisher, script
            if script.late.is_set():
                script.confirm_late()


async def test_each_task_learns_the_outcome_of_its_own_message() -> None:
    async with opened(max_in_flight=50) as (publisher, _):
        bodies = [b"no" if row % 10 == 3 else b"yes" for row in range(500)]
        found = await asyncio.gather(*map(publisher.publish, bodies), return_exceptions=True)
        assert [isinstance(each, PublishFailed) for each in found] == [body == b"no" for body in bodies]
    assert publisher.totals.confirmed == 1 + 450


async def test_the_outcomes_of_many_messages_wake_the_loop_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as (publisher, script):
        tasks = [asyncio.create_task(publisher.publish(b"late")) for _ in range(200)]
        await wait_until_async(lambda: len(script.bodies) == len(tasks))
        loop, calls = asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", lambda *call: calls.append(call) or wake(*call))
            script.confirm_late()
            while publisher.totals.pending:  # the loop is busy with something else
                time.sleep(0.001)  # noqa: ASYNC251
            await asyncio.gather(*tasks)
        assert 1 <= len(calls) <= len(tasks) / 10


async def test_the_loop_runs_while_a_task_waits_for_room() -> None:
    async with opened(max_in_flight=1) as (publisher, script):
        late = asyncio.create_task(publisher.publish(b"late"))
        await wait_until_async(script.late.is_set)
        with pytest.raises(PublishFailed, match="too many messages were in flight") as caught:
            await publisher.publish(b"yes", timeout=0.05)
        assert not caught.value.may_have_arrived
        waiting = asyncio.create_task(publisher.publish(b"yes"))
        turns = 0
        while turns <= 20:  # in a tenth of a second, unless the machine has halted
            turns, began = 0, time.monotonic()
            while time.monotonic() - began < 0.1:
                await asyncio.sleep(0)
                turns += 1
        script.send(spec.Basic.Ack(0, multiple=True), 1)
        await asyncio.gather(late, waiting)


async def test_a_call_that_finds_room_does_not_overtake_those_that_wait_for_it() -> None:
    async with opened(max_in_flight=1) as (publisher, script):
        late = asyncio.create_task(publisher.publish(b"late"))
        await wait_until_async(script.late.is_set)
        first = asyncio.create_task(publisher.publish(b"first"))
        await asyncio.sleep(0.01)
        script.send(spec.Basic.Ack(0, multiple=True), 1)
        while publisher.totals.pending:  # the loop is busy, so the first one does not see the room yet
            time.sleep(0.001)  # noqa: ASYNC251
        await asyncio.gather(publisher.publish(b"second"), late, first)
        assert script.bodies == [b"late", b"first", b"second"]


async def test_a_call_behind_others_that_wait_for_room_ends_in_time() -> None:
    text = "too many messages were in flight for 0.05 seconds"

    async with opened(max_in_flight=1) as (publisher, script):
        late = asyncio.create_task(publisher.publish(b"late"))
        await wait_until_async(script.late.is_set)
        patient = asyncio.create_task(publisher.publish(b"yes"))
        await asyncio.sleep(0.01)
        for call in (publisher.publish, lambda body, **more: publisher.publish_many([body, body], **more)):
            with pytest.raises(PublishFailed, match=text) as caught:
                await asyncio.wait_for(call(b"no", timeout=0.05), PATIENCE / 4)
        assert [failure.row for failure in caught.value.failures] == [0, 1]
        script.send(spec.Basic.Ack(0, multiple=True), 1)
        await asyncio.gather(late, patient)
        assert script.bodies == [b"late", b"yes"]


async def test_a_batch_larger_than_the_room_keeps_its_order_and_names_its_rows() -> None:
    async with opened(max_in_flight=50) as (publisher, script):
        bodies = [b"no" if row in {3, 1_500} else b"%d" % row for row in range(2_000)]
        one = asyncio.create_task(publisher.publish(b"one"))
        with pytest.raises(PublishFailed, match="2 of 2000 messages were not confirmed") as caught:
            await publisher.publish_many(bodies)
        await one
        assert [failure.row for failure in caught.value.failures] == [3, 1_500]
        assert [body for body in script.bodies if body not in {b"one", b"no"}] == [
            body for body in bodies if body != b"no"
        ]
        assert (await publisher.publish_many([])).published == 0


async def test_a_batch_that_is_being_added_when_the_publisher_is_closed_says_what_was_confirmed() -> None:
    async with opened(max_in_flight=50) as (publisher, script):
        batch = asyncio.create_task(publisher.publish_many([b"yes"] * 3 + [b"late"] * 2_000))
        await wait_until_async(lambda: script.late.is_set() and publisher.totals.confirmed == 1 + 3)
        with pytest.raises(InvalidValue, match="invalid timeout"):
            await publisher.close(math.nan)
        await publisher.close(0.05)
        with pytest.raises(PublishFailed, match="2000 of 2003 messages were not confirmed") as caught:
            await batch
        assert caught.value.totals.confirmed == 3
        assert "the publisher is closed" in str(caught.value.failures[-1])
        script.late.clear()  # nothing can be confirmed any more


async def test_many_batches_end_in_time_and_leave_the_threads_of_the_loop_alone() -> None:
    async with opened() as (publisher, script):
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        let_arrive(publisher, script)
        began = time.monotonic()
        batches = [asyncio.create_task(publisher.publish_many([b"late"], timeout=0.5)) for _ in range(20)]
        await wait_until_async(script.late.is_set)
        await asyncio.wait_for(asyncio.to_thread(int), PATIENCE / 4)
        for found in await asyncio.gather(*batches, return_exceptions=True):
            assert isinstance(found, PublishFailed)
            assert str(found) == "unconfirmed after 0.5 seconds: 1 message"
            assert found.may_have_arrived
        assert time.monotonic() - began < PATIENCE / 4
        cancelled = [asyncio.create_task(publisher.publish_many([b"late"])) for _ in range(20)]
        await asyncio.sleep(0.01)
        for batch in cancelled:
            batch.cancel()
        await asyncio.wait(cancelled, timeout=PATIENCE / 4)
        assert all(batch.cancelled() for batch in cancelled)
        busy = threading.Event()
        application = asyncio.create_task(asyncio.to_thread(busy.wait, PATIENCE))
        began = time.monotonic()
        await publisher.close(0.1)
        assert time.monotonic() - began < PATIENCE / 2
        busy.set()
        await application
        script.late.clear()


async def test_what_was_not_written_is_withdrawn_by_a_cancellation_or_a_timeout() -> None:
    async with opened() as (publisher, script):
        script.send(spec.Connection.Blocked("an alarm"))
        await wait_until_async(lambda: publisher.totals.blocked_seconds)
        for call in (publisher.publish(b"one"), publisher.publish_many([b"two", b"three"])):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call, 0.05)
        with pytest.raises(PublishFailed, match="withdrawn after") as caught:
            await publisher.publish(b"four", timeout=0.05)
        assert not caught.value.may_have_arrived
        kept = asyncio.create_task(publisher.publish(b"five"))
        await asyncio.sleep(0)
        script.send(spec.Connection.Unblocked())
        await kept
        assert script.bodies == [b"five"]
    assert publisher.totals.unsent == 4


async def test_a_written_message_may_have_arrived_when_its_time_is_over() -> None:
    async with opened() as (publisher, script):
        let_arrive(publisher, script)
        with pytest.raises(PublishFailed, match="unconfirmed after") as caught:
            await publisher.publish(b"late", timeout=0.1)
        assert caught.value.may_have_arrived


async def test_an_open_publisher_is_refused_in_a_second_event_loop() -> None:
    refused = pytest.raises(InvalidValue, match="the AsyncPublisher belongs to the event loop that opened it")

    async with opened() as (publisher, _):

        def elsewhere() -> None:
            for call in (
                publisher.publish,
                lambda body: publisher.publish_many([body]),
                lambda _: publisher.open(),
            ):
                with refused:
                    asyncio.run(call(b"yes"))

        await asyncio.to_thread(elsewhere)
        await publisher.open()  # which is open, and stays so
        await publisher.publish(b"yes")
    assert publisher.totals.confirmed == 2


def test_a_publisher_that_could_not_be_opened_may_be_opened_in_another_loop() -> None:
    publisher = AsyncPublisher("amqp://127.0.0.1:1", timeouts=Timeouts(connect=0.1))
    for _ in range(2):
        with pytest.raises(BrokerUnavailable):
            asyncio.run(publisher.open())


def test_a_cancelled_opening_is_given_up_and_the_next_one_tries_again() -> None:
    async def give_up(publisher: AsyncPublisher) -> None:
        for _ in range(2):  # the second one does not take the publisher for open
            opening = asyncio.create_task(publisher.open())
            await asyncio.sleep(0)
            pipeline = publisher._pipeline
            await wait_until_async(lambda: pipeline.state == "open" or opening.done())  # noqa: B023 - it is awaited here
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            assert publisher._pipeline.state == "new"
            await wait_until_async(lambda: pipeline.state == "closed")  # noqa: B023
        with pytest.raises(InvalidValue, match="the Publisher is not open"):
            await publisher.publish(b"x")

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"amqp://127.0.0.1:{silent.getsockname()[1]}"
        asyncio.run(asyncio.wait_for(give_up(AsyncPublisher(url, "x")), PATIENCE))


def test_a_closed_publisher_is_opened_again_in_another_loop() -> None:
    async def burst() -> None:
        async with publisher:
            await asyncio.gather(*(publisher.publish(b"x") for _ in range(50)))

    with AmqpServer(confirm_all) as server:
        publisher = AsyncPublisher(server.url, "x", timeouts=TIMEOUTS, max_in_flight=5)
        for _ in range(2):
            asyncio.run(asyncio.wait_for(burst(), PATIENCE))
    assert publisher.totals.confirmed == 50


def test_outcomes_after_the_end_of_a_loop_do_not_disturb_the_next_one() -> None:
    resume = threading.Event()

    def confirm_later(client: socket.socket) -> None:
        resume.wait(PATIENCE)
        confirm_all(client)

    async def leave_open() -> None:
        await publisher.open()
        publishing = asyncio.create_task(publisher.publish(b"x"))
        await wait_until_async(lambda: publisher.totals.bytes)  # what was not written would be withdrawn
        publishing.cancel()

    async def again() -> None:
        await publisher.close()
        async with publisher:
            await publisher.publish(b"x")

    with AmqpServer(confirm_later) as server:
        publisher = AsyncPublisher(server.url, "x", timeouts=TIMEOUTS)
        asyncio.run(leave_open())
        resume.set()
        asyncio.run(asyncio.wait_for(again(), PATIENCE))
    assert publisher.totals.confirmed == 1
