"""A worker that shares the queues of a hash exchange with any number of others, on aio-pika.

    from rabbit_chx.consuming import AsyncGroup, Message

    async def handle(message: Message) -> None:
        print(message.routing_key, message.body)

    asyncio.run(AsyncGroup("amqp://user:password@host", exchange="orders", name="billing").run(handle))

Or without a handler:

    async with AsyncGroup("amqp://user:password@host", exchange="orders", name="billing") as group:
        async for message in group:
            print(message.routing_key, message.body)

A group may have members of both classes, `Group` and `AsyncGroup`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Self

from rabbit_chx.broker.amqp_async import connect
from rabbit_chx.consuming.async_member import AsyncMember
from rabbit_chx.consuming.messages import Message
from rabbit_chx.consuming.options import Options
from rabbit_chx.consuming.reporter import Reporter
from rabbit_chx.consuming.settings import check_handler
from rabbit_chx.consuming.signals import stopped_by_signals_of_loop
from rabbit_chx.errors import InvalidValue


class AsyncGroup(Options):
    """A member of a group of workers that share the queues of an exchange, in an event loop.

    Args: the same as for `Group`. ``concurrency`` is the number of queues that `run` handles at the same time.
    ``async for`` ignores ``concurrency``, ``attempts``, ``backoff``, ``on_failure`` and ``parking_queue``.

    With ``async for``, a message is acknowledged when the same loop asks for the next one. If a loop ends with ``break`` or
    an exception, its last message is not acknowledged: the next loop or the next member gets it again. Several tasks may
    loop over one group at the same time. They get messages of different queues; each queue is handled one message at a time.
    """

    async def run(self, handler: Callable[[Message], Awaitable[object]]) -> None:
        """Await the handler with each message until `stop`, SIGTERM or a cancellation, such as Ctrl-C in `asyncio.run`.

        A message is acknowledged after the handler has returned. The member reconnects after a lost connection. The run ends
        after the current messages; handlers that still run after ``stop_timeout`` seconds, or at a cancellation after any of
        these, are cancelled. SIGTERM is handled only in the main thread, and only if the program does not handle it.

        Raises:
            InvalidValue: a group cannot use the queues, the broker or the handler.
            BrokerUnavailable: the broker refuses the connection permanently.
            Exception: the handler's error, with ``on_failure="stop"``.
        """
        check_handler(handler, coroutine=True)
        member = self._begin(handler)
        try:
            with stopped_by_signals_of_loop(member.stop):
                await asyncio.shield(self._running)
        except asyncio.CancelledError:
            # In `asyncio.run`, Ctrl-C after SIGTERM is a cancellation too.
            member.stop(patience=0.0 if member.workers.stopped else None)
            with suppress(Exception):
                await self._end()
            raise
        finally:
            self._member = None

    def stop(self) -> None:
        """End `run` after the current messages, and each loop when it asks for its next one; later ones end at once.

        Can be called from any thread.
        """
        self._stopped = True
        if (member := self._member) is not None:
            with suppress(RuntimeError):  # the event loop is closed, so the run has ended
                self._loop.call_soon_threadsafe(member.stop)

    async def __aenter__(self) -> Self:
        self._begin(None)
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        assert self._member is not None
        self._member.stop(patience=0.0)
        self._member = None
        try:
            await self._end()
        except Exception:
            if error is None:
                raise

    def __aiter__(self) -> AsyncIterator[Message]:
        if self._member is None or self._member.workers.handler is not None:
            raise InvalidValue(
                "use of AsyncGroup", "async for", "async for inside async with", "Or pass a handler to run()"
            )
        return self._messages(self._member)

    async def _messages(self, member: AsyncMember) -> AsyncIterator[Message]:
        while (taken := await member.workers.next()) is not None:
            handled = False
            try:
                yield taken[2]
                handled = True
            finally:
                if not handled:
                    member.workers.give_back(taken)
            member.workers.done(taken)

    def _begin(self, handler: Callable[[Message], Awaitable[object]] | None) -> AsyncMember:
        if self._member is not None:
            raise InvalidValue("use of AsyncGroup", "a second use of a group that runs", "one use at a time")
        self._loop = asyncio.get_running_loop()
        reporter = self._reporter()
        member = AsyncMember(
            self._settings, partial(connect, **self._connection), self._source, handler, reporter
        )
        if self._stopped:
            member.stop()
        self._member = member
        self._running = asyncio.create_task(_run(member, reporter), name="rabbit-chx group")
        return member

    async def _end(self) -> None:
        """Wait until the member ends; if the wait is cancelled, cancel the member."""
        try:
            await asyncio.shield(self._running)
        except asyncio.CancelledError:
            self._running.cancel()
            await asyncio.wait([self._running])
            raise


async def _run(member: AsyncMember, reporter: Reporter) -> None:
    try:
        await member.run()
    finally:
        await asyncio.to_thread(reporter.close)
