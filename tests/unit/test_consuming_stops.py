"""A member that is stopped while its connection is lost waits for its handlers, as any other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait as wait_for
from functools import partial
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest

from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.consuming.member.interruptions import Interruptions
from rabbit_chx.consuming.member.key_lanes import KeyLane
from rabbit_chx.consuming.member.lanes import Lane, QueueLane
from rabbit_chx.consuming.member.member import Member
from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.messages.message import Message
from rabbit_chx.streams import StreamGroup
from rabbit_chx.streams.group.lanes import Attention, StreamLane
from rabbit_chx.streams.group.member import StreamMember
from rabbit_chx.streams.group.workers import StreamWorkers
from rabbit_chx.working.loop_workers import LoopWorkers
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.runs import Running, Runs
from rabbit_chx.working.settings import Settings
from rabbit_chx.working.workers import Progress, Workers
from tests.patience import PATIENCE, wait_until
from tests.unit.test_consuming_lanes import SETTINGS
from tests.unit.test_stream_groups import GIVEN, chunk

LANES: dict[str, Callable[[], Lane]] = {
    "queue": partial(QueueLane, "a"),
    "key": lambda: KeyLane("a", lambda message: message.routing_key, 1, None),
}


class Handler:
    """A handler that runs until the test lets it return or fail, in a thread or in the event loop."""

    def __init__(self) -> None:
        self.begun, self.goes_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.error: Exception | None = None

    def __call__(self, message: Message) -> None:
        self.begun.set()
        assert self.goes_on.wait(PATIENCE)
        self._end()

    async def in_loop(self, message: Message) -> None:
        self.begun.set()
        while not self.goes_on.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.001)
        self._end()

    def _end(self) -> None:
        if self.error is not None:
            raise self.error
        self.ended.set()


class Responder:
    def close(self) -> None: ...


class Driver:
    """Of a lost connection: no command may reach it."""

    def run(self, commands: Any) -> None:
        assert [*commands] == []


class Stopping:
    """A run whose connection is lost while the handler runs; ``hangs`` lets each later attempt to connect wait."""

    def __init__(
        self, new_lane: Callable[[], Lane], handler: Handler, workers: Progress, close: float
    ) -> None:
        self.handler = handler
        settings = Settings(**{**SETTINGS, "timeouts": Timeouts(close=close), "attempts": 1})
        self.hangs: threading.Event | None = None
        self.is_trying = threading.Event()
        self.member = member = Member(settings, self._connect, tuple, workers, Responder())  # type: ignore[arg-type]
        member._driver = Driver()  # type: ignore[assignment]
        member._interruptions = Interruptions(settings, workers, member._acknowledge, member.fail)
        workers.heard = monotonic() + 3600
        self.lane = new_lane()

    def _connect(self) -> Any:
        if not self.member._lanes:  # as if this connection had delivered a message before it was lost
            self.lane.attach(object(), 1)
            self.member._lanes = self.member._known = {"a": self.lane}
            self.lane.add([Delivery(b"", "k", queue="a", tag=1)])
            self.member.workers.submit(self.lane)
            assert self.handler.begun.wait(PATIENCE)
        else:
            self.is_trying.set()
            if self.hangs is not None:
                assert self.hangs.wait(PATIENCE)
        raise BrokerUnavailable("connection refused")


def begin(member: Running) -> Future[None]:
    outcome: Future[None] = Future()
    threading.Thread(target=Runs()._run_member, args=(member, outcome), daemon=True).start()
    return outcome


@pytest.fixture(params=["threads", "event loop"])
def workers(request: pytest.FixtureRequest) -> Iterator[Callable[[Handler], Progress]]:
    """Makes the workers of a handler, in threads or in an event loop that runs in a thread."""
    if request.param == "threads":
        yield lambda handler: Workers(handler, 1, 10)
        return

    async def make(handler: Handler) -> Progress:
        return LoopWorkers(handler.in_loop, 1, 10)

    async def cancelled() -> None:
        """Otherwise a worker that was to begin warns in a later test that it has not."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield lambda handler: asyncio.run_coroutine_threadsafe(make(handler), loop).result(PATIENCE)
    asyncio.run_coroutine_threadsafe(cancelled(), loop).result(PATIENCE)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE)
    loop.close()


@pytest.mark.parametrize("order", LANES)
@pytest.mark.parametrize("hangs", [False, True])
def test_a_stop_while_the_connection_is_lost_waits_for_the_handlers(workers, order, hangs, caplog) -> None:
    handler = Handler()
    it = Stopping(LANES[order], handler, workers(handler), close=PATIENCE)
    it.hangs = threading.Event() if hangs else None
    outcome = begin(it.member)
    assert handler.begun.wait(PATIENCE)
    assert it.is_trying.wait(PATIENCE)
    it.member.stop()
    if it.hangs is not None:
        it.hangs.set()
    assert not wait_for([outcome], 0.3).done
    handler.goes_on.set()
    outcome.result(PATIENCE)
    assert handler.ended.is_set()
    assert "did not return" not in caplog.text


@pytest.mark.parametrize("order", LANES)
def test_a_handler_that_is_cut_is_logged(workers, order, caplog) -> None:
    handler = Handler()
    it = Stopping(LANES[order], handler, workers(handler), close=0.1)
    outcome = begin(it.member)
    assert handler.begun.wait(PATIENCE)
    it.member.stop()
    outcome.result(PATIENCE)
    assert not handler.ended.is_set()
    assert (
        caplog.text.count("the handler did not return within 0.1 s of the stop; its messages from 'a'") == 1
    )
    handler.goes_on.set()


@pytest.mark.parametrize("order", LANES)
def test_a_message_that_arrives_after_the_workers_have_ended_prolongs_no_stop(workers, order, caplog) -> None:
    """The broker may deliver until the channels are closed, and nothing takes these messages."""
    handler = Handler()
    handler.goes_on.set()
    it = Stopping(LANES[order], handler, workers(handler), close=10 * PATIENCE)
    member = it.member
    member._turn = sleep  # type: ignore[method-assign]

    def connect() -> Any:
        it.lane.attach(SimpleNamespace(is_open=False), 1)
        member._lanes = member._known = {"a": it.lane}
        member.stop()
        member._finish()
        for _ in range(it.lane.add([Delivery(b"", "k", queue="a", tag=1)])):
            member.workers.submit(it.lane)
        raise BrokerUnavailable("connection refused")

    member._connect = connect
    begin(member).result(PATIENCE)
    assert not handler.begun.is_set()
    assert "did not return" not in caplog.text


def test_a_second_signal_waits_for_no_handler(caplog) -> None:
    handler = Handler()
    it = Stopping(LANES["queue"], handler, Workers(handler, 1, 10), close=10 * PATIENCE)

    def interrupted() -> None:
        it.member.stop()
        raise KeyboardInterrupt

    it.member._on_lost = lambda _: interrupted()
    outcome = begin(it.member)
    assert isinstance(outcome.exception(PATIENCE), KeyboardInterrupt)
    assert not handler.ended.is_set()
    assert "the handler did not return within 0 s of the stop; its messages from 'a'" in caplog.text
    handler.goes_on.set()


@pytest.mark.parametrize("order", LANES)
def test_a_stop_does_not_wait_for_a_handler_that_has_failed(workers, order) -> None:
    handler = Handler()
    handler.error = ValueError("no")
    it = Stopping(LANES[order], handler, workers(handler), close=10 * PATIENCE)
    outcome = begin(it.member)
    assert handler.begun.wait(PATIENCE)
    it.member.stop()
    handler.goes_on.set()
    with pytest.raises(ValueError, match="no"):
        outcome.result(PATIENCE)


def test_an_error_that_ends_a_member_of_streams_lets_its_handlers_return() -> None:
    handler = Handler()
    settings = StreamGroup(**GIVEN, timeouts=Timeouts(close=40))._settings
    workers = StreamWorkers(handler, settings)

    def connect(stream: str | None) -> Any:
        lane.assign(0, None)
        lane.trusted_until = monotonic() + 3600
        lane.add(chunk(0, 1))
        member._lanes = {"events": lane}
        workers.submit(lane)
        assert handler.begun.wait(PATIENCE)
        raise StreamUnavailable("the user was deleted", "login")

    member = StreamMember(settings, connect, workers, None, batches=False)
    lane = StreamLane("events", batches=False, store_every=100, attention=Attention())
    outcome = begin(member)
    wait_until(lambda: member.workers.stopped or outcome.done(), "the member ends")
    sleep(0.1)
    assert not outcome.done()
    handler.goes_on.set()
    with pytest.raises(StreamUnavailable, match="the user was deleted"):
        outcome.result(PATIENCE)
    assert handler.ended.is_set()
