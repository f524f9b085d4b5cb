"""A worker that shares the streams of a super stream or of a hash exchange with any number of others, in an event loop.

    from rabbit_chx.streams import AsyncStreamGroup, StreamMessage

    async def handle(message: StreamMessage) -> None:
        print(message.offset, message.routing_key, message.body)

    asyncio.run(AsyncStreamGroup("rabbitmq-stream://user:password@host", super_stream="orders", name="billing").run(handle))

A group may have members of both classes, `StreamGroup` and `AsyncStreamGroup`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

from rabbit_chx.consuming.member.runs import AsyncRuns
from rabbit_chx.consuming.retries import check_handler
from rabbit_chx.message import StreamMessage
from rabbit_chx.streams.group.batch import StreamBatch
from rabbit_chx.streams.group.member import StreamMember
from rabbit_chx.streams.group.options import StreamOptions
from rabbit_chx.streams.group.workers import StreamLoopWorkers
from rabbit_chx.traces import in_async_spans


class AsyncStreamGroup(StreamOptions, AsyncRuns[StreamMember]):
    """A member of a group of workers that share streams. The handler is a coroutine function.

    A thread of its own keeps the connections, so heartbeats continue while a handler blocks the event loop.

    Args: the same as for `StreamGroup`. ``concurrency`` is the number of streams that are handled at the same time, each in its own
    task. ``on_assigned``, ``on_revoked`` and a function ``start`` are called in the event loop, and may be coroutine functions.
    """

    async def run(
        self, handler: Callable[[StreamMessage], Awaitable[object]], *, signals: bool = True
    ) -> None:
        """Await the handler with each message until `stop`, SIGTERM or a cancellation, such as Ctrl-C in `asyncio.run`.

        As `StreamGroup.run`. The run ends after the current messages; handlers that still run after ``timeouts.close`` seconds, or at
        a cancellation after any of these, are cancelled.

        Args:
            handler: awaited with each message.
            signals: whether to handle SIGTERM and Ctrl-C; False leaves them to the program, which calls `stop`.

        Raises:
            InvalidValue: a group cannot use the streams, the broker or the handler.
            StreamUnavailable: the broker refuses the connection or a stream permanently.
            CorruptStream: a chunk or a message is damaged.
            Exception: the handler's error, with ``on_failure="stop"``.
        """
        await self._run_in_loop(self._new(handler), signals=signals)

    async def run_batches(
        self, handler: Callable[[StreamBatch], Awaitable[object]], *, signals: bool = True
    ) -> None:
        """Await the handler with batches, as `StreamGroup.run_batches` calls it."""
        check_handler(handler, coroutine=True, group="StreamGroup")
        new = partial(self._new_member, StreamLoopWorkers, handler, batches=True)
        await self._run_in_loop(new, signals=signals)

    @asynccontextmanager
    async def running(self, handler: Callable[[StreamMessage], Awaitable[object]]) -> AsyncIterator[Self]:
        """Run while a block runs, and finish the current messages at its end. Handles no signals.

        If the member ends with an error, the block is cancelled and raises that error: the errors are those of `run`.
        """
        async with self._run_while_block(self._new(handler)):
            yield self

    def _new(self, handler: Callable[[StreamMessage], Awaitable[object]]) -> Callable[[], StreamMember]:
        check_handler(handler, coroutine=True, group="StreamGroup")
        spans = in_async_spans(handler, self._settings.name)
        return partial(self._new_member, StreamLoopWorkers, spans, batches=False)
