"""A worker that shares the queues of a hash exchange with any number of others, in an event loop.

    from rabbit_chx.consuming import AsyncGroup, Message

    async def handle(message: Message) -> None:
        print(message.routing_key, message.body)

    asyncio.run(AsyncGroup("amqp://user:password@host", exchange="orders", name="billing").run(handle))

Or while a block runs, such as the lifespan of a web application:

    async with AsyncGroup("amqp://user:password@host", exchange="orders", name="billing").running(handle):
        ...

A group may have members of both classes, `Group` and `AsyncGroup`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Self

from rabbit_chx.consuming.member.loop_workers import LoopWorkers
from rabbit_chx.consuming.member.member import Member, started
from rabbit_chx.consuming.member.signals import stopped_by_signals_of_loop
from rabbit_chx.consuming.options import Options
from rabbit_chx.consuming.settings import check_handler
from rabbit_chx.message import Message
from rabbit_chx.traces import in_async_spans


class AsyncGroup(Options):
    """A member of a group of workers that share the queues of an exchange. The handler is a coroutine function.

    A thread of its own keeps the connection, so heartbeats continue while a handler blocks the event loop.

    Args: the same as for `Group`. ``concurrency`` is the number of queues, or with ``order="key"`` of messages,
    that are handled at the same time, each in its own task.
    """

    async def run(self, handler: Callable[[Message], Awaitable[object]], *, signals: bool = True) -> None:
        """Await the handler with each message until `stop`, SIGTERM or a cancellation, such as Ctrl-C in `asyncio.run`.

        A message is acknowledged after the handler has returned. The member reconnects after a lost connection. The run ends
        after the current messages; handlers that still run after ``timeouts.close`` seconds, or at a cancellation after any of
        these, are cancelled. SIGTERM is handled only in the main thread, and only if the program does not handle it.

        Args:
            handler: awaited with each message.
            signals: whether to handle SIGTERM and Ctrl-C; False leaves them to the program, which calls `stop`.

        Raises:
            InvalidValue: a group cannot use the queues, the broker or the handler.
            BrokerUnavailable: the broker refuses the connection permanently.
            Exception: the handler's error, with ``on_failure="stop"``.
        """
        member, outcome = self._begin(handler)
        try:
            with stopped_by_signals_of_loop(member.stop) if signals else nullcontext():
                await asyncio.wrap_future(outcome)
        except asyncio.CancelledError:
            # In `asyncio.run`, Ctrl-C after SIGTERM is a cancellation too.
            with suppress(Exception):
                await _end(member, outcome, patience=0.0 if member.workers.stopped else None)
            raise
        finally:
            self._member = None

    @asynccontextmanager
    async def running(self, handler: Callable[[Message], Awaitable[object]]) -> AsyncIterator[Self]:
        """Run while a block runs, and finish the current messages at its end. Handles no signals.

        If the member ends with an error, the block is cancelled and raises that error: the errors are those of `run`.
        """
        member, outcome = self._begin(handler)
        block = asyncio.current_task()
        assert block is not None
        before, failed = block.cancelling(), False

        def on_end(ended: asyncio.Future[None]) -> None:
            nonlocal failed
            if not ended.cancelled() and ended.exception() is not None:
                failed = True
                block.cancel()

        ended = asyncio.wrap_future(outcome)
        ended.add_done_callback(on_end)
        raised: BaseException | None = None
        try:
            yield self
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised = error
        ended.remove_done_callback(on_end)
        self._member = None
        # As in `asyncio.timeout`: if others have cancelled the block too, it ends as they want.
        if failed and block.uncancel() <= before and isinstance(raised, asyncio.CancelledError):
            raised = None
        with suppress(Exception) if raised else nullcontext():
            await _end(member, outcome)
        if raised is not None:
            raise raised

    def _begin(self, handler: Callable[[Message], Awaitable[object]]) -> tuple[Member, Future[None]]:
        check_handler(handler, coroutine=True)
        member = self._new_member(LoopWorkers, in_async_spans(handler, self._settings.name))
        return member, started(member)


async def _end(member: Member, outcome: Future[None], patience: float | None = None) -> None:
    """Stop the member and wait until it has ended; a cancellation lets it wait for no handler any longer."""
    member.stop(patience)
    try:
        await asyncio.wrap_future(outcome)
    except asyncio.CancelledError:
        member.stop(patience=0.0)
        await asyncio.wait([asyncio.wrap_future(outcome)])
        raise
