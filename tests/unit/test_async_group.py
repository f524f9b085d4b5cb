"""Errors of AsyncGroup before it connects."""

from __future__ import annotations

import asyncio

import pytest

from rabbit_chx.consuming import AsyncGroup, Group, InvalidValue

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


def test_async_for_outside_async_with_is_an_error():
    async def ask():
        async for _ in AsyncGroup(**GIVEN):
            pass

    with pytest.raises(InvalidValue, match="expected async for inside async with"):
        asyncio.run(ask())


def test_a_second_use_of_a_running_group_is_an_error():
    async def use_twice():
        async with AsyncGroup(**GIVEN) as group:
            await group.run(coroutine)

    with pytest.raises(InvalidValue, match="a second use of a group that runs"):
        asyncio.run(use_twice())


def test_a_stopped_group_returns_from_each_run_at_once():
    group = Group(**GIVEN)
    group.stop()
    group.run(function)
    group.run(function)


def test_a_stopped_group_of_the_event_loop_returns_from_each_run_and_loop_at_once():
    group = AsyncGroup(**GIVEN)
    group.stop()

    async def ask():
        await group.run(coroutine)
        await group.run(coroutine)
        async with group:
            return [message async for message in group]

    assert asyncio.run(ask()) == []
