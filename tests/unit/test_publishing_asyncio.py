"""The publisher for asyncio: the same calls, which suspend their task and leave the loop free."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pika import spec

from rabbit_chx.errors import BrokerUnavailable, InvalidValue, PublishFailed
from rabbit_chx.publishing import AsyncPublisher, Timeouts
from tests.amqp_server import AmqpServer
from tests.unit.test_publishing_calls import PATIENCE, TIMEOUTS, Script


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - another thread makes it true
        await asyncio.sleep(0.001)


def play(work: Callable[[AsyncPublisher, Script], Awaitable[object]], **options: Any) -> AsyncPublisher:
    async def run(url: str) -> AsyncPublisher:
        async with AsyncPublisher(url, "x", timeouts=TIMEOUTS, **options) as publisher:
            opening = asyncio.create_task(publisher.publish(b"opening"))
            await until(lambda: publisher.totals.published)
            await asyncio.to_thread(script.send, spec.Basic.Ack(1), 1)
            await opening
            await work(publisher, script)
            if script.late.is_set():
                script.send(spec.Basic.Ack(0, multiple=True), 1)
        return publisher

    script = Script()
    with AmqpServer(script) as server:
        return asyncio.run(asyncio.wait_for(run(server.url), PATIENCE))


def test_each_task_learns_the_outcome_of_its_own_message() -> None:
    async def work(publisher: AsyncPublisher, _: Script) -> None:
        bodies = [b"no" if row % 10 == 3 else b"yes" for row in range(500)]
        found = await asyncio.gather(*map(publisher.publish, bodies), return_exceptions=True)
        assert [isinstance(each, PublishFailed) for each in found] == [body == b"no" for body in bodies]
        with pytest.raises(
            PublishFailed, match="1 of 3 messages were not confirmed; the first: row 1 rejected"
        ):
            await publisher.publish_many([b"yes", b"no", b"yes"])

    assert play(work, max_in_flight=50).totals.confirmed == 1 + 450 + 2


def test_the_loop_runs_while_a_task_waits_for_room() -> None:
    async def work(publisher: AsyncPublisher, script: Script) -> None:
        late = asyncio.create_task(publisher.publish(b"late"))
        await until(script.late.is_set)
        with pytest.raises(PublishFailed, match="too many messages were in flight") as caught:
            await publisher.publish(b"yes", timeout=0.05)
        assert not caught.value.may_have_arrived
        waiting = asyncio.create_task(publisher.publish(b"yes"))
        turns, began = 0, time.monotonic()
        while time.monotonic() - began < 0.1:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 20
        script.send(spec.Basic.Ack(0, multiple=True), 1)
        await asyncio.gather(late, waiting)

    play(work, max_in_flight=1)


def test_what_was_not_written_is_withdrawn_by_a_cancellation_or_a_timeout() -> None:
    async def work(publisher: AsyncPublisher, script: Script) -> None:
        script.send(spec.Connection.Blocked("an alarm"))
        await until(lambda: publisher.totals.blocked_seconds)
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

    assert play(work).totals.unsent == 4


def test_a_written_message_may_have_arrived_when_its_time_is_over() -> None:
    async def work(publisher: AsyncPublisher, _: Script) -> None:
        with pytest.raises(PublishFailed, match="unconfirmed after") as caught:
            await publisher.publish(b"late", timeout=0.1)
        assert caught.value.may_have_arrived

    play(work)


def test_an_open_publisher_is_refused_in_a_second_event_loop() -> None:
    refused = pytest.raises(InvalidValue, match="use of AsyncPublisher: got 'a call in a second event loop'")

    async def work(publisher: AsyncPublisher, _: Script) -> None:
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

    assert play(work).totals.confirmed == 2
    publisher = AsyncPublisher("amqp://127.0.0.1:1", timeouts=Timeouts(connect=0.1))
    for _ in range(2):  # it is not open afterwards, so another loop may open it
        with pytest.raises(BrokerUnavailable):
            asyncio.run(publisher.open())
