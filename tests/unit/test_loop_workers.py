"""The tasks in which the workers of an `AsyncGroup` run its handler."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from contextlib import suppress
from time import monotonic

import pytest

from rabbit_chx.consuming.member.lanes import QueueLane
from rabbit_chx.errors import MissingDependency
from rabbit_chx.working.loop_workers import LoopWorkers
from rabbit_chx.working.messages import Delivery
from tests.patience import wait_until_async


async def coroutine(message) -> None: ...


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
                begin = lane.add([Delivery(b"", "k", queue=lane.queue, tag=tag)])
            if begin:
                self.workers.submit(lane)


def attached(*names):
    lanes = [QueueLane(name) for name in names]
    for lane in lanes:
        lane.attach("channel", 1)
    return lanes


async def test_lanes_are_handled_by_at_most_as_many_tasks_as_allowed_and_each_in_order():
    handled, together, most = [], set(), 0

    async def handle(message):
        nonlocal most
        assert message.queue not in together
        together.add(message.queue)
        most = max(most, len(together))
        await asyncio.sleep(0)
        together.discard(message.queue)
        handled.append((message.queue, message.tag))

    owner = Owner(LoopWorkers(handle, 2, 10))
    lanes = attached("a", "b", "c")
    for lane in lanes:  # before any task begins, so that two of them run together
        owner.deliver(lane, *range(1, 21))
    for first in range(21, 200, 20):  # lanes become idle in between, and busy again
        for lane in lanes:
            await asyncio.to_thread(owner.deliver, lane, *range(first, first + 20))
    await wait_until_async(lambda: len(handled) == 600)
    for lane in lanes:
        assert [tag for queue, tag in handled if queue == lane.queue] == [*range(1, 201)]
    assert most == 2
    await asyncio.to_thread(owner.workers.end)
    assert [lane.to_acknowledge() for lane in owner.workers.progress()] == [[(200, True)]] * 3


async def test_a_handler_sees_the_context_in_which_the_run_began():
    request, seen = contextvars.ContextVar("request"), []

    async def handle(message):
        seen.append(request.get())

    request.set("the program's")
    owner = Owner(LoopWorkers(handle, 1, 10))
    await asyncio.to_thread(owner.deliver, *attached("a"), 1)
    await wait_until_async(lambda: seen)
    assert seen == ["the program's"]


async def raise_cancelled():
    raise asyncio.CancelledError


async def cancel_and_wait():
    asyncio.current_task().cancel()
    await asyncio.sleep(3600)


async def cancel_and_return():
    asyncio.current_task().cancel()


async def cancel_and_raise():
    asyncio.current_task().cancel()
    raise asyncio.CancelledError


async def cancelled_by_another_task():
    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
    await asyncio.sleep(3600)


@pytest.mark.parametrize(
    "cancelled",
    [raise_cancelled, cancel_and_wait, cancel_and_return, cancel_and_raise, cancelled_by_another_task],
)
async def test_a_handler_that_is_cancelled_has_failed_and_the_next_one_runs_undisturbed(cancelled):
    handled = []

    async def handle(message):
        if message.queue == "a":
            await cancelled()
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        handled.append((message.queue, message.tag, asyncio.current_task().cancelling()))

    owner = Owner(LoopWorkers(handle, 1, 10))
    a, b = attached("a", "b")
    owner.deliver(a, 1)
    owner.deliver(b, 1, 2)
    await wait_until_async(lambda: len(handled) == 2)
    assert handled == [("b", 1, 0), ("b", 2, 0)]
    assert [type(error) for error in owner.interrupted] == [RuntimeError]
    assert "the handler was cancelled" in str(owner.interrupted[0])


@pytest.mark.parametrize("when", ["before the run", "while the handler runs"])
async def test_a_handler_that_awaits_what_is_cancelled_has_failed_even_if_the_program_has_cancelled_the_run(
    when,
):
    async def handle(message):
        begun.set()
        await shared

    async def cancel_this_task():
        asyncio.current_task().cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    begun, shared = asyncio.Event(), asyncio.get_running_loop().create_future()
    if when == "before the run":
        await cancel_this_task()
    owner = Owner(LoopWorkers(handle, 1, 10))
    (lane,) = attached("a")
    owner.deliver(lane, 1)
    await begun.wait()
    if when == "while the handler runs":
        await cancel_this_task()
    shared.cancel()
    while not owner.interrupted:  # noqa: ASYNC110 - a timeout would need a task without cancellations
        await asyncio.sleep(0.001)
    assert "the handler was cancelled" in str(owner.interrupted[0])


async def swallow_a_cancellation():
    asyncio.current_task().cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)


async def cancel_between_handlers():
    task = asyncio.current_task()
    asyncio.get_running_loop().call_soon(task.cancel)


async def cancel_and_fail():
    asyncio.current_task().cancel()
    raise ZeroDivisionError


@pytest.mark.parametrize("disturb", [swallow_a_cancellation, cancel_between_handlers, cancel_and_fail])
async def test_a_cancellation_that_ends_no_handler_stops_nothing(disturb):
    handled = []

    async def handle(message):
        await (disturb() if message.tag == 1 else asyncio.sleep(0.02))
        handled.append((message.queue, message.tag))

    owner = Owner(LoopWorkers(handle, 1, 10))
    a, b = attached("a", "b")
    owner.deliver(a, 1)
    owner.deliver(b, 2, 3, 4)
    await wait_until_async(lambda: ("b", 4) in handled)
    fails = disturb is cancel_and_fail
    assert handled == [*([] if fails else [("a", 1)]), ("b", 2), ("b", 3), ("b", 4)]
    assert [type(error) for error in owner.interrupted] == [ZeroDivisionError] * fails


async def test_a_task_that_is_cancelled_before_its_first_step_is_replaced():
    handled = []

    async def handle(message):
        handled.append(message.tag)

    owner = Owner(LoopWorkers(handle, 1, 10))
    workers = owner.workers
    (lane,) = attached("a")
    with workers.lock:
        lane.add([Delivery(b"", "k", queue="a", tag=1)])
    workers._begin(lane)
    (task,) = workers._tasks
    task.cancel()
    await wait_until_async(lambda: handled)
    assert task.cancelled()
    assert owner.interrupted == []


def test_handlers_that_end_with_the_run_have_not_failed(caplog):
    """They are cancelled by the member, or with the task of the run, as at the end of `asyncio.run`: their messages are repeated.

    The member then waits for none of them.
    """

    async def main(*, by_member):
        async def handle(message):
            handled.append(message.tag)
            begun.set()
            await asyncio.sleep(3600)

        async def run():
            owners.append(Owner(LoopWorkers(handle, 2, 10)))
            owners[-1].deliver(lane, 1, 2)
            try:
                await asyncio.sleep(3600)
            finally:
                owners[-1].workers.stopping.set()

        begun, (lane,), handled = asyncio.Event(), attached("a"), []
        running = asyncio.create_task(run())
        await begun.wait()
        tasks = asyncio.all_tasks() - {asyncio.current_task(), running}
        if by_member:
            await asyncio.to_thread(owners[-1].workers.end)
            running.cancel()
        else:
            for task in (*tasks, running):
                task.cancel()
            await wait_until_async(lambda: lane.is_idle)
        await asyncio.wait([*tasks, running])
        assert [task.cancelled() for task in tasks] == [True]
        assert (owners[-1].interrupted, handled, lane.to_acknowledge()) == ([], [1], [])

    owners = []
    for by_member in (True, False):
        asyncio.run(main(by_member=by_member))
        gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_lane_that_waits_for_a_cancelled_task_becomes_idle_when_the_run_ends():
    """The task is cancelled with the run between two messages: the member waits neither for its lane nor for those behind it."""

    async def handle(message):
        handled.append((message.queue, message.tag))
        asyncio.get_running_loop().call_soon(cancel)

    def cancel():
        owner.workers.stopping.set()  # by the member of the run
        for task in (*owner.workers._tasks, running):
            task.cancel()

    async def run():
        owners.append(Owner(LoopWorkers(handle, 1, 10)))
        await asyncio.sleep(3600)

    owners, handled, lanes = [], [], attached("a", "b")
    running = asyncio.create_task(run())
    await wait_until_async(lambda: owners)
    (owner,) = owners
    for lane in lanes:
        owner.deliver(lane, 1, 2)
    await wait_until_async(lambda: handled and all(lane.is_idle for lane in lanes))
    assert (owner.interrupted, handled) == ([], [("a", 1)])


def test_workers_of_a_closed_loop_take_no_lane_and_end_at_once_with_their_member():
    async def main():
        return Owner(LoopWorkers(coroutine, 1, 10))

    owner = asyncio.run(main())
    (lane,) = attached("a")
    owner.deliver(lane, 1)
    assert lane.is_idle
    assert owner.workers.stopped  # otherwise the member would keep the messages of its queues forever
    owner.workers.end()
    assert owner.interrupted == []


async def test_a_lane_that_cannot_go_on_ends_the_member():
    """A stream has batches whose compression needs a library that is not installed, for example."""

    class Failing(QueueLane):
        def take(self):
            raise MissingDependency("pyarrow")

    async def handle(_):
        raise AssertionError

    owner, lane = Owner(LoopWorkers(handle, 2, 10)), Failing("a")
    lane.attach("channel", 1)
    await asyncio.to_thread(owner.deliver, lane, 1)
    await wait_until_async(lambda: owner.interrupted)
    assert isinstance(owner.interrupted[0], MissingDependency)
    await asyncio.to_thread(owner.workers.end)
