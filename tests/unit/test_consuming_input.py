"""Errors of a group before it connects, and the sources of its queues."""

from __future__ import annotations

from functools import partial
from time import monotonic
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest

from rabbit_chx.base.names import notes_of, seat_queue
from rabbit_chx.broker.management import Management
from rabbit_chx.consuming import AsyncGroup, Group, InvalidValue
from rabbit_chx.consuming.member.lanes import QueueLane
from rabbit_chx.consuming.queues.sources import queue_source
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.retries import check_handler
from rabbit_chx.working.workers import Progress, Workers

URL = "amqp://user:secret@127.0.0.1:1"
GIVEN = {"exchange": "orders", "name": "billing", "queues": ["a"]}
FILE = """
schema: 1
exchanges:
  orders: {type: x-consistent-hash, queues: [b, a]}
  tenants: {type: x-modulus-hash, slots: 4, queues: [c]}
  empty: {type: fanout}
queues: {a: {preset: ordered}, b: {preset: ordered}, c: {preset: ordered}}
"""


@pytest.mark.parametrize("kind", [Group, AsyncGroup])
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"prefetch": 0}, "invalid prefetch: got 0, expected an integer from 1 to 65535"),
        ({"prefetch": 65_536}, "invalid prefetch: got 65536, expected"),
        ({"prefetch": True}, "invalid prefetch: got True, expected"),
        ({"concurrency": 0}, "invalid concurrency: got 0, expected"),
        ({"concurrency": True}, "invalid concurrency: got True, expected"),
        ({"attempts": 0}, "invalid attempts: got 0, expected"),
        ({"backoff": -1}, "invalid backoff: got -1, expected seconds, at least 0"),
        ({"consumer_timeout": float("inf")}, "invalid consumer_timeout: got inf, expected"),
        (
            {"on_failure": "requeue"},
            "invalid on_failure: got 'requeue', expected 'stop' or 'dead-letter' or 'park'",
        ),
        ({"on_failure": "park"}, "invalid parking_queue: got None, expected the name of a queue"),
        ({"parking_queue": "lot"}, "invalid parking_queue: got 'lot', expected"),
        ({"order": "keys"}, "invalid order: got 'keys', expected 'queue' or 'key'"),
        (
            {"key": len},
            "invalid key: got <built-in function len>, expected a function with order='key', and None",
        ),
        (
            {"order": "key", "key": "tenant"},
            "invalid key: got 'tenant', expected a function with order='key', and",
        ),
        ({"crashes": 0}, "invalid crashes: got 0, expected an integer from 1 to 1000000"),
        ({"queues": "a"}, "invalid queues: got 'a', expected a list of names"),
        ({"queues": []}, "invalid queues: got [], expected a list of names"),
        ({"queues": ["a", "q" * 256]}, "invalid queue"),
        ({"name": ""}, "invalid group name: got ''"),
        ({"name": "g" * 256}, "invalid group name"),
        ({"name": 5}, "invalid group name: got 5, expected text of 1 to 255 bytes of UTF-8"),
        ({"queues": ["a", 1]}, "invalid queue: got 1, expected text of 1 to 255 bytes of UTF-8"),
        ({"exchange": ""}, "invalid exchange: got ''"),
        ({"exchange": "x" * 256}, "invalid exchange"),
    ],
    ids=str,
)
def test_an_invalid_setting_is_an_error(kind, wrong, text):
    with pytest.raises(InvalidValue) as caught:
        kind(**{"url": URL, **GIVEN, **wrong})
    assert str(caught.value).startswith(text)
    assert "secret" not in str(caught.value)


def test_the_queues_of_a_group_with_the_longest_name_have_valid_names():
    least = len(notes_of("", "q"))
    name = "ü" * ((255 - least) // 2)
    Group(URL, **{**GIVEN, "name": name})
    with pytest.raises(InvalidValue, match=f"expected at most {255 - least} bytes of UTF-8"):
        Group(URL, **{**GIVEN, "name": name + "ü"})
    for queue in (seat_queue(name, 100_000), notes_of(name, "q")):
        assert len(queue.encode()) <= 255


async def coroutine(_message):
    pass


def generator(_message):
    yield


async def async_generator(_message):
    yield


class Callable:
    async def __call__(self, _message):
        pass


class CallableGenerator:
    def __call__(self, _message):
        yield


class CallableAsyncGenerator:
    async def __call__(self, _message):
        yield


@pytest.mark.parametrize(
    ("handler", "is_coroutine", "text"),
    [
        (None, False, "got 'NoneType', expected a function that takes a message"),
        ("handle", True, "got 'str', expected a function that takes a message"),
        (coroutine, False, "AsyncGroup takes coroutine functions"),
        (Callable(), False, "AsyncGroup takes coroutine functions"),
        (print, True, "Group takes functions"),
        (partial(Callable()), False, "AsyncGroup takes coroutine functions"),
        (generator, False, "got 'a generator function', expected a function. A generator would never run"),
        (partial(CallableGenerator()), True, "got 'a generator function'"),
        (async_generator, False, "got 'an async generator function', expected a function. A generator would"),
        (async_generator, True, "got 'an async generator function', expected a coroutine function. A gen"),
        (CallableAsyncGenerator(), False, "got 'an async generator function'"),
    ],
)
def test_a_handler_of_the_wrong_kind_is_an_error(handler, is_coroutine, text):
    with pytest.raises(InvalidValue) as caught:
        check_handler(handler, coroutine=is_coroutine)
    assert text in str(caught.value)
    check_handler(Callable(), coroutine=True)
    check_handler(print, coroutine=False)


@pytest.mark.parametrize("kind", [Group, AsyncGroup])
@pytest.mark.parametrize("key", [coroutine, async_generator, generator])
def test_a_key_that_would_have_to_be_awaited_is_an_error(kind, key):
    """Otherwise each message had a key of its own, and none an order."""
    with pytest.raises(InvalidValue, match=r"invalid key: got '.* function', expected a function\."):
        kind(URL, **GIVEN, order="key", key=key)


class Awaitable:
    def __await__(self):
        yield


@pytest.mark.filterwarnings("error")  # of a coroutine that was never awaited
@pytest.mark.parametrize(
    ("handler", "got"),
    [
        (lambda message: coroutine(message), "coroutine"),  # noqa: PLW0108 - a lambda hides what it calls
        (lambda message: generator(message), "generator"),  # noqa: PLW0108
        (lambda message: async_generator(message), "async_generator"),  # noqa: PLW0108
        (lambda _: Awaitable(), "Awaitable"),
        (lambda _: None, None),
        (lambda _: 1, None),
        (lambda _: Mock(), None),
        (lambda _: [1], None),
        (MagicMock(), None),
    ],
)
def test_a_message_is_not_handled_by_a_function_that_returns_what_has_not_run(handler, got):
    errors = []
    workers = Workers(handler, 1, 10)
    workers.heard = monotonic() + 3600
    lane = QueueLane("q")
    owner = SimpleNamespace(on_progress=lambda: None, on_interruption=lambda *given: errors.append(given[-1]))
    Progress.start(workers, owner)  # without its threads
    lane.attach("channel", 1)
    lane.add([Delivery(b"", "k", queue="q", tag=1)])
    workers._work_on(lane)
    if got is None:
        assert (lane.done, errors) == (1, [])
    else:
        (error,) = errors
        assert str(error) == (
            f"invalid result of the handler: got {got!r}, expected one that is neither awaited nor iterated over. "
            "It would never run; AsyncGroup and AsyncStreamGroup await coroutine functions"
        )
        assert lane.done == 0


def source(queues, exchange="orders"):
    return queue_source(queues, exchange, [("/", lambda: Management("http://127.0.0.1:1"))])


def test_a_member_without_a_management_api_says_how_to_name_another_one(monkeypatch):
    no_answer = Mock(side_effect=BrokerUnavailable("is it running?"))
    monkeypatch.setattr(Management, "exchange", no_answer)
    with pytest.raises(BrokerUnavailable, match=r"is it running\? Pass its address with management=, or"):
        source(None)()


def test_the_queues_of_a_file_are_read_again_each_time(write):
    path = write(FILE)
    read = source(path)
    assert read() == ("a", "b")
    write(FILE.replace("[b, a]", "[b, a, c]"))
    assert read() == ("a", "b", "c")
    assert source(path, "tenants")() == ("c",)


@pytest.mark.parametrize(
    ("exchange", "text"),
    [
        ("order", "invalid exchange: got 'order', expected an exchange in "),
        ("empty", "invalid exchange: got 'empty', expected an exchange with queues."),
    ],
)
def test_a_file_without_the_exchange_or_without_queues_is_an_error(write, exchange, text):
    with pytest.raises(InvalidValue) as caught:
        source(write(FILE), exchange)()
    assert str(caught.value).startswith(text)
