"""A worker that shares the queues of a hash exchange with any number of others, on aio-pika.

    from rabbit_chx.consuming import AsyncGroup, Message

    async def handle(message: Message) -> None:
        print(message.routing_key, message.body)

    asyncio.run(AsyncGroup("amqp://user:password@host", exchange="orders", name="billing").run(handle))

Or without a handler:

    async with AsyncGroup("amqp://user:password@host", exchange="orders", name="billing") as group:
        async for message in group:
            print(message.routing_key, message.body)

Its members and those of `Group` may belong to one group.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from rabbit_chx.broker.amqp_async import connect
from rabbit_chx.consuming.async_member import AsyncMember
from rabbit_chx.consuming.messages import Message
from rabbit_chx.consuming.options import Options
from rabbit_chx.consuming.settings import check_handler
from rabbit_chx.consuming.signals import stopped_by_signals_of_loop
from rabbit_chx.errors import InvalidValue


class AsyncGroup(Options):
    """A member of a group of workers that share the queues of an exchange, in an event loop.

    Args: those of `Group`. ``concurrency`` is the number of queues whose messages `run` handles at the same time.
    ``concurrency``, ``attempts``, ``backoff``, ``on_failure`` and ``parking_queue`` mean nothing to ``async for``.

    With ``async for`` a message is acknowledged when the same loop asks for the next one. A message at which a loop was
    left, by ``break`` or by an exception, is not acknowledged: the next loop gets it again, or the next member. Several
    tasks may loop over one group at once. They get messages of different queues, and of each queue one after the other.
    """

    async def run(self, handler: Callable[[Message], Awaitable[object]]) -> None:
        """Await the handler with each message until `stop`, SIGTERM or a cancellation, as by Ctrl-C in `asyncio.run`.

        A message is acknowledged after the handler has returned. Lost connections are opened again. The run ends after the
        messages at hand; handlers that still run after ``stop_timeout`` seconds, or at a second cancellation, are
        cancelled. SIGTERM is handled in the main thread, where nothing else handles it.

        Raises:
            InvalidValue: the queues, the broker or the handler are not fit for a group.
            BrokerUnavailable: the broker refuses the connection for good.
            Exception: the handler's error, with ``on_failure="stop"``.
        """
        check_handler(handler, coroutine=True)
        member = self._begin(handler)
        try:
            with stopped_by_signals_of_loop(member.stop):
                await asyncio.shield(self._running)
        except asyncio.CancelledError:
            member.stop()
            with suppress(Exception):
                await self._end()
            raise
        finally:
            self._member = None

    def stop(self) -> None:
        """End `run` after the messages at hand, and loops at the next one they ask for; call it from any thread."""
        self._stopped = True
        if (member := self._member) is not None:
            with suppress(RuntimeError):  # the event loop is closed, and the run at its end
                self._loop.call_soon_threadsafe(member.stop)

    async def __aenter__(self) -> Self:
        self._begin(None)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        member = AsyncMember(self._settings, partial(connect, **self._connection), self._source, handler)
        if self._stopped:
            member.stop()
        self._member = member
        self._running = asyncio.create_task(member.run(), name="rabbit-chx group")
        return member

    async def _end(self) -> None:
        """Wait for the end of the member, which comes at once if this is cancelled."""
        try:
            await asyncio.shield(self._running)
        except asyncio.CancelledError:
            self._running.cancel()
            await asyncio.wait([self._running])
            raise
