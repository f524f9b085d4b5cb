"""What the publishers for asyncio have in common: calls that suspend, and wake-ups by the threads that send."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.publishing.bulk import Batch
from rabbit_chx.publishing.calls import Client
from rabbit_chx.publishing.messages import Outcome, OutgoingMessage, Totals
from rabbit_chx.publishing.pipeline import AnyPipeline
from rabbit_chx.publishing.receipts import CANCELLED, Receipt, publish_failed, unconfirmed, withdrawn

_FIRST_PAUSE: Final = 0.0001
_LONGEST_PAUSE: Final = 0.002
"""Seconds between two looks for room while too many messages are in flight."""


class AsyncClient(Client[AnyPipeline]):
    """A publisher for one event loop: how it is opened and closed, and what its calls do with encoded messages."""

    _loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Connect; an error that waiting cannot fix is raised after one attempt.

        Cancelling the call gives up, and closes the connection.
        """
        self._check_loop()
        async with self._opening:
            pipeline = self._usable()
            if pipeline.state == "open":
                return
            try:
                await _in_thread(pipeline.open, undo=partial(pipeline.close, 0))
            except asyncio.CancelledError:
                self._renew()
                pipeline.abandon(BrokerUnavailable(CANCELLED))  # the thread waits no longer
                raise

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as in Publisher
        """Wait until every message has its outcome, then close the connection: see `Publisher.close`."""
        await _in_thread(partial(self._pipeline.close, timeout))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _publish(self, encoded: Any, deadline: float | None, timeout: float | None) -> None:  # noqa: ASYNC109
        """Publish one message, and return when the broker has confirmed it."""
        pipeline = self._pipeline
        receipt = _Receipt(self._news)
        messages = pipeline.one(encoded, 0, receipt)
        if not await self._accepted(partial(pipeline.accept, messages, 0.0), deadline):
            raise publish_failed(messages[0].failure(Outcome.UNSENT, pipeline.waited_for(timeout)))
        try:
            if deadline is None:
                await receipt.done
            else:
                await asyncio.wait([receipt.done], timeout=max(deadline - time.monotonic(), 0.0))
        except asyncio.CancelledError:
            pipeline.withdraw({receipt}, CANCELLED)
            raise
        if not receipt.wait(0):
            pipeline.withdraw({receipt}, withdrawn(timeout))
            if not receipt.wait(0):
                raise publish_failed(messages[0].failure(Outcome.UNKNOWN, unconfirmed(timeout)))
        if receipt.failure is not None:
            raise publish_failed(receipt.failure)

    def _check(self) -> None:
        self._pipeline.check()
        self._check_loop()

    def _check_loop(self) -> None:
        """Refuse a second loop while the publisher is open in another one; otherwise, use the running one from now on."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._pipeline.usable and self._pipeline.state == "open":
            raise InvalidValue(
                f"the {type(self).__name__} belongs to the event loop that opened it",
                hint=f"Open an {type(self).__name__} in each loop",
            )
        self._loop, self._news = loop, _News(loop)
        self._opening = asyncio.Lock()
        self._turn = asyncio.Lock()  # one task at a time looks for room; they keep their order
        self._waiting = 0  # tasks that look for room, or wait for their turn

    async def _accepted(self, attempt: Callable[[], int], deadline: float | None) -> bool:
        """Try to put messages into the outbox until there is room; return False if the deadline passes before."""
        if not self._waiting and attempt():  # as almost always
            return True
        self._waiting += 1
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                await self._until_accepted(attempt)
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
        return True

    async def _until_accepted(self, attempt: Callable[[], int]) -> None:
        async with self._turn:
            pause = _FIRST_PAUSE
            while not attempt():  # the thread of the sender makes room
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _publish_many(self, columns: Any, deadline: float | None, timeout: float | None) -> Totals:  # noqa: ASYNC109
        """Publish a batch, and return when the broker has confirmed each message."""
        batch = Batch(self._pipeline, on_failure=None)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            await self._add(batch, columns, deadline, timeout)
            batch.when_settled(partial(self._news.add, done))
            await asyncio.wait([done], timeout=None if deadline is None else deadline - time.monotonic())
        except asyncio.CancelledError:
            batch.withdraw(CANCELLED)
            raise
        return batch._flush_until(deadline, timeout)

    async def _add(self, batch: Batch, columns: Any, deadline: float | None, timeout: float | None) -> None:  # noqa: ASYNC109
        """Put a batch into the outbox; what is not accepted by the deadline fails unsent."""
        try:
            steps = batch.add_in_steps(columns)
            while batch.totals.published < len(columns[0]):
                if not await self._accepted(partial(next, steps), deadline):
                    break
                await asyncio.sleep(0)  # other tasks have their turn while a large batch is added
        except (BrokerUnavailable, InvalidValue) as error:  # InvalidValue: `close` came first
            why = batch.why_not_accepted(error)
        else:
            why = self._pipeline.waited_for(timeout)
        batch.leave_out(columns, why)


async def _in_thread(call: Callable[[], None], undo: Callable[[], None] | None = None) -> None:
    """Make a call in a thread of its own: those of the loop's executor belong to the application, and may be busy.

    If this is cancelled, the thread finishes the call, which cannot be interrupted, and then undoes it.
    """
    threads = ThreadPoolExecutor(1, "rabbit-chx")
    try:
        await asyncio.get_running_loop().run_in_executor(threads, call)
    except asyncio.CancelledError:
        if undo is not None:
            threads.submit(undo)
        raise
    finally:
        threads.shutdown(wait=False)


class _News:
    """Wakes the tasks whose messages have their outcome, many at once: a wake-up of the loop costs more than a message."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._settled: deque[asyncio.Future[None]] = deque()
        self._coming = False

    def add(self, done: asyncio.Future[None]) -> None:
        """End a future; called by the thread of the sender."""
        self._settled.append(done)
        if not self._coming:
            self._coming = True
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._coming = False  # first: what comes from now on needs another call
        while self._settled:
            done = self._settled.popleft()
            if not done.done():
                done.set_result(None)


class _Receipt(Receipt):
    """A task that waits for the outcome of one message."""

    __slots__ = ("_news", "done")

    def __init__(self, news: _News) -> None:
        super().__init__()
        self._news = news
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settled(self, messages: Sequence[OutgoingMessage], outcome: Outcome, reply: str = "") -> None:
        super().settled(messages, outcome, reply)
        self._news.add(self.done)
