"""AsyncGroup without a broker: its errors, and the blocks during which it runs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading

import pytest

from rabbit_chx.consuming import AsyncGroup, Group, InvalidValue
from rabbit_chx.errors import BrokerUnavailable
from tests.patience import wait_until_async
from tests.unit.test_loop_workers import coroutine

GIVEN = {"url": "amqp://127.0.0.1:1", "exchange": "orders", "name": "billing", "queues": ["a"]}


def function(message) -> None: ...


def test_a_handler_must_fit_the_class():
    """For all kinds of handlers: test_consuming_input."""
    with pytest.raises(InvalidValue, match=r"'a function', expected a coroutine function\. Group takes"):
        asyncio.run(AsyncGroup(**GIVEN).run(function))
    with pytest.raises(InvalidValue, match="AsyncGroup takes coroutine functions"):
        Group(**GIVEN).run(coroutine)


async def test_a_second_run_of_a_running_group_is_an_error():
    group = AsyncGroup(**GIVEN)
    with pytest.raises(InvalidValue, match="the AsyncGroup is already running"):
        async with group.running(coroutine):
            await group.run(coroutine)


def test_a_stopped_group_returns_from_each_run_at_once():
    group = Group(**GIVEN)
    group.stop()
    group.run(function)
    group.run(function)


async def test_a_stopped_group_of_the_event_loop_returns_from_each_run_and_block_at_once():
    group = AsyncGroup(**GIVEN)
    group.stop()
    await group.run(coroutine)
    await group.run(coroutine)
    async with group.running(coroutine) as running:
        assert running is group


@pytest.mark.parametrize(
    "error", [StopIteration("no tenant"), concurrent.futures.CancelledError("no tenant")]
)
async def test_an_error_for_which_asyncio_has_another_meaning_ends_the_run_and_the_block(error, monkeypatch):
    """A coroutine cannot raise StopIteration: Python makes it the cause of a RuntimeError."""

    def fail(*_, **__):
        raise error

    async def run_block():
        async with AsyncGroup(**GIVEN).running(coroutine):
            await asyncio.Event().wait()

    monkeypatch.setattr("rabbit_chx.consuming.group.connect", fail)
    for run in (AsyncGroup(**GIVEN).run(coroutine), run_block()):
        running = asyncio.create_task(run)
        await asyncio.wait([running], timeout=20)
        assert not running.cancelled()
        assert error in (running.exception(), running.exception().__cause__)


# ---- a block while which a group runs


async def test_the_error_of_a_member_ends_the_block_that_waits_for_something_else(monkeypatch):
    def refuse(*_, **__):
        raise BrokerUnavailable("no such user", permanent=True)

    monkeypatch.setattr("rabbit_chx.consuming.group.connect", refuse)
    entered = False
    with pytest.raises(BrokerUnavailable, match="no such user"):  # noqa: PT012 - the block is tested
        async with asyncio.timeout(30) as limit, AsyncGroup(**GIVEN).running(coroutine):
            entered = True
            await asyncio.Event().wait()
    assert entered
    assert not limit.expired(), "something else has ended the block"
    assert asyncio.current_task().cancelling() == 0


async def test_a_block_that_is_cancelled_by_others_stays_cancelled():
    async def wait_forever():
        async with AsyncGroup(**GIVEN).running(coroutine):
            entered.set()
            await asyncio.Event().wait()

    entered = asyncio.Event()
    waiting = asyncio.create_task(wait_forever())
    await entered.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


def test_an_error_of_the_member_at_the_end_of_a_block_is_raised_and_not_logged_too(monkeypatch, caplog):
    """asyncio logs an error that was never retrieved."""

    def refuse(*_, **__):
        begun.wait(20)
        raise BrokerUnavailable("no such user", permanent=True)

    async def main(*, cancel):
        async def run():
            async with AsyncGroup(**GIVEN).running(coroutine):
                entered.set()
                await asyncio.sleep(3600 if cancel else 0)

        entered = asyncio.Event()
        running = asyncio.create_task(run())
        await entered.wait()
        await asyncio.sleep(0.05)
        for _ in range(2 * cancel):
            running.cancel()
            await asyncio.sleep(0)
        begun.set()
        with pytest.raises(asyncio.CancelledError if cancel else BrokerUnavailable):
            await running

    monkeypatch.setattr("rabbit_chx.consuming.group.connect", refuse)
    for cancel in (False, True):
        begun = threading.Event()
        asyncio.run(main(cancel=cancel))
        gc.collect()
    assert "never retrieved" not in caplog.text


async def test_the_error_of_a_block_is_raised_after_the_member_has_ended():
    with pytest.raises(ZeroDivisionError):
        async with AsyncGroup(**GIVEN).running(coroutine):
            raise ZeroDivisionError


async def test_a_group_whose_member_has_ended_does_not_run_even_if_its_block_goes_on():
    group = AsyncGroup(**GIVEN)
    async with group.running(coroutine):
        assert group.status.reason != "it is not running"
        group.stop()
        await wait_until_async(lambda: group.status.reason == "it is not running")
        assert group.error is None


async def test_a_block_that_ends_after_another_run_has_begun_leaves_that_run_to_the_group(monkeypatch):
    def refuse_the_first(*_, **__):
        raise BrokerUnavailable("no answer", permanent=not refused.is_set())

    async def run(group, second):
        async with group.running(coroutine):
            try:
                await asyncio.Event().wait()
            finally:
                refused.set()
                await second.__aenter__()

    monkeypatch.setattr("rabbit_chx.consuming.group.connect", refuse_the_first)
    refused = threading.Event()
    group = AsyncGroup(**GIVEN)
    second = group.running(coroutine)
    with pytest.raises(BrokerUnavailable):
        await run(group, second)
    assert group.status.reason != "it is not running"
    group.stop()
    await wait_until_async(lambda: group.status.reason == "it is not running")
    await second.__aexit__(None, None, None)
