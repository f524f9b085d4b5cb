"""AsyncGroup without a broker: its errors, its blocks, and the tasks that run its handler."""

from __future__ import annotations

import asyncio
import contextvars
from time import monotonic

import pytest

from rabbit_chx.consuming import AsyncGroup, Group, InvalidValue, options
from rabbit_chx.consuming.member.lanes import QueueLane
from rabbit_chx.consuming.member.loop_workers import LoopWorkers
from rabbit_chx.consuming.messages import Delivery
from rabbit_chx.errors import BrokerUnavailable

GIVEN = {"url": "amqp://127.0.0.1:1", "exchange": "orders", "name": "billing", "queues": ["a"]}


async def coroutine(message) -> None: ...


def function(message) -> None: ...


def generator(message):
    yield


async def async_generator(message):
    yield


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (function, "'a function', expected a coroutine function. Group takes functions"),
        (generator, "'a function', expected a coroutine function"),
        (async_generator, "'a function', expected a coroutine function"),
        (coroutine(None), "coroutine', expected a function"),
        (None, "NoneType', expected a function"),
    ],
)
def test_a_handler_of_the_event_loop_is_a_coroutine_function(handler, text):
    with pytest.raises(InvalidValue, match=text):
        asyncio.run(AsyncGroup(**GIVEN).run(handler))
    if asyncio.iscoroutine(handler):
        handler.close()


def test_a_handler_of_a_thread_is_no_coroutine_function():
    with pytest.raises(InvalidValue, match="AsyncGroup takes coroutine functions"):
        Group(**GIVEN).run(coroutine)


def test_a_second_run_of_a_running_group_is_an_error():
    async def run_twice():
        group = AsyncGroup(**GIVEN)
        async with group.running(coroutine):
            await group.run(coroutine)

    with pytest.raises(InvalidValue, match="a second run while it runs"):
        asyncio.run(run_twice())


def test_a_stopped_group_returns_from_each_run_at_once():
    group = Group(**GIVEN)
    group.stop()
    group.run(function)
    group.run(function)


def test_a_stopped_group_of_the_event_loop_returns_from_each_run_and_block_at_once():
    group = AsyncGroup(**GIVEN)
    group.stop()

    async def ask():
        await group.run(coroutine)
        await group.run(coroutine)
        async with group.running(coroutine) as running:
            return running

    assert asyncio.run(ask()) is group


# ---- a block while which a group runs


def test_the_error_of_a_member_ends_the_block_that_waits_for_something_else(monkeypatch):
    def refuse(*_, **__):
        raise BrokerUnavailable("no such user", permanent=True)

    async def wait_forever():
        try:
            async with AsyncGroup(**GIVEN).running(coroutine):
                entered.set()
                await asyncio.Event().wait()
        finally:
            assert asyncio.current_task().cancelling() == 0

    monkeypatch.setattr(options, "connect", refuse)
    entered = asyncio.Event()
    with pytest.raises(BrokerUnavailable, match="no such user"):
        asyncio.run(asyncio.wait_for(wait_forever(), 30))
    assert entered.is_set()


def test_a_block_that_is_cancelled_by_others_stays_cancelled():
    async def wait_forever():
        async with AsyncGroup(**GIVEN).running(coroutine):
            entered.set()
            await asyncio.Event().wait()

    async def main():
        waiting = asyncio.create_task(wait_forever())
        await entered.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    entered = asyncio.Event()
    asyncio.run(main())


def test_the_error_of_a_block_is_raised_after_the_member_has_ended():
    async def fail():
        async with AsyncGroup(**GIVEN).running(coroutine):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())


# ---- the tasks that run the handler


class Owner:
    """A member without a connection, which keeps what its workers tell it."""

    def __init__(self, workers):
        self.workers = workers
        self.interrupted = []
        workers.heard = monotonic() + 3600
        workers.start(self)

    def on_progress(self): ...

    def on_interruption(self, lane, channel, message, error):
        self.interrupted.append(error)

    def fail(self, error):
        self.interrupted.append(error)

    def deliver(self, lane, *tags):
        """As the thread of the connection does."""
        for tag in tags:
            with self.workers.lock:
                begin = lane.add(Delivery(b"", "k", queue=lane.queue, tag=tag))
            if begin:
                self.workers.submit(lane)


def attached(*names):
    lanes = [QueueLane(name) for name in names]
    for lane in lanes:
        lane.attach("channel", 1)
    return lanes


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a condition of the member
            await asyncio.sleep(0.001)


def test_lanes_are_handled_by_at_most_as_many_tasks_as_allowed_and_each_in_order():
    async def main():
        handled, together, most = [], set(), 0

        async def handle(message):
            nonlocal most
            assert message.queue not in together
            together.add(message.queue)
            most = max(most, len(together))
            await asyncio.sleep(0)
            together.discard(message.queue)
            handled.append((message.queue, message.tag))

        owner = Owner(LoopWorkers(handle, 2, 10, print))
        lanes = attached("a", "b", "c")
        for first in range(1, 200, 20):  # lanes become idle in between, and busy again
            for lane in lanes:
                await asyncio.to_thread(owner.deliver, lane, *range(first, first + 20))
        await until(lambda: len(handled) == 600)
        for lane in lanes:
            assert [tag for queue, tag in handled if queue == lane.queue] == [*range(1, 201)]
        assert most == 2
        await asyncio.to_thread(owner.workers.end)
        assert [(tag, multiple) for _, tag, multiple in owner.workers.progress()] == [(200, True)] * 3

    asyncio.run(main())


def test_a_handler_sees_the_context_in_which_the_run_began():
    async def main():
        async def handle(message):
            seen.append(request.get())

        request.set("the program's")
        owner = Owner(LoopWorkers(handle, 1, 10, print))
        await asyncio.to_thread(owner.deliver, *attached("a"), 1)
        await until(lambda: seen)
        assert seen == ["the program's"]

    request, seen = contextvars.ContextVar("request"), []
    asyncio.run(main())


def test_a_handler_that_cancels_itself_has_failed():
    async def main():
        async def handle(message):
            raise asyncio.CancelledError

        owner = Owner(LoopWorkers(handle, 1, 10, print))
        await asyncio.to_thread(owner.deliver, *attached("a"), 1)
        await until(lambda: owner.interrupted)
        assert "was cancelled" in str(owner.interrupted[0])

    asyncio.run(main())


def test_workers_of_a_closed_loop_take_no_lane_and_end_at_once():
    async def main():
        return Owner(LoopWorkers(coroutine, 1, 10, print))

    owner = asyncio.run(main())
    (lane,) = attached("a")
    owner.deliver(lane, 1)
    assert lane.is_idle
    owner.workers.end()
    assert owner.interrupted == []
