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

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

from rabbit_chx.consuming.member.loop_workers import LoopWorkers
from rabbit_chx.consuming.member.member import Member
from rabbit_chx.consuming.member.runs import AsyncRuns
from rabbit_chx.consuming.options import Options
from rabbit_chx.consuming.retries import check_handler
from rabbit_chx.message import Message
from rabbit_chx.traces import in_async_spans


class AsyncGroup(Options, AsyncRuns[Member]):
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
        await self._run_in_loop(self._new(handler), signals=signals)

    @asynccontextmanager
    async def running(self, handler: Callable[[Message], Awaitable[object]]) -> AsyncIterator[Self]:
        """Run while a block runs, and finish the current messages at its end. Handles no signals.

        If the member ends with an error, the block is cancelled and raises that error: the errors are those of `run`.
        """
        async with self._run_while_block(self._new(handler)):
            yield self

    def _new(self, handler: Callable[[Message], Awaitable[object]]) -> Callable[[], Member]:
        check_handler(handler, coroutine=True)
        return partial(self._new_member, LoopWorkers, in_async_spans(handler, self._settings.name))
