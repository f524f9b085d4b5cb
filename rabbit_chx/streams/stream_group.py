"""A worker that shares the streams of a super stream or of a hash exchange with any number of others.

    from rabbit_chx.streams import StreamGroup, StreamMessage

    def handle(message: StreamMessage) -> None:
        print(message.offset, message.routing_key, message.body)

    StreamGroup("rabbitmq-stream://user:password@host", super_stream="orders", name="billing").run(handle)

Start as many copies of the program as you like. The broker divides the streams among the members, and hands the streams of a member
that ends to the others. Each stream is handled in order by one member at a time. `AsyncStreamGroup` awaits a coroutine function instead,
in an event loop; a group may have members of both classes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

from rabbit_chx.messages.message import StreamMessage
from rabbit_chx.messages.traces import in_async_spans, in_spans
from rabbit_chx.streams.group.batch import StreamBatch
from rabbit_chx.streams.group.member import StreamMember
from rabbit_chx.streams.group.options import StreamOptions
from rabbit_chx.streams.group.workers import StreamLoopWorkers, StreamWorkers
from rabbit_chx.working.retries import check_handler
from rabbit_chx.working.runs import AsyncRuns


class StreamGroup(StreamOptions):
    """A member of a group of workers that share streams.

    Args:
        url: a URL of the stream protocol or of AMQP, as for `connect`, or several that are tried in turn.
        name: the name of the group, the same for all its members; the broker stores the offsets under it.
        super_stream: a super stream, whose streams are shared.
        exchange: an exchange, such as ``x-consistent-hash``, to which streams are bound. The broker needs their numbers: name them
            ``NAME-0``, ``NAME-1`` and so on, or bind them with the argument ``x-stream-partition-order``.
        stream: a single stream, which one member at a time handles. Pass exactly one of these three.
        start: where to start in a stream for which the broker has no stored offset: ``"first"``, ``"last"`` (the last chunk),
            ``"next"``, an aware datetime, or an offset. Or a function from the name of a stream to one of these, or None for the
            first message; it decides whenever a stream is assigned, instead of the stored offset. A stream that is bound while
            members run begins with ``"first"`` instead of ``"last"`` or ``"next"``.
        store_every: after how many handled messages of a stream the offset of the last one is stored on the broker.
        store_seconds: after how many seconds it is stored at the latest. It is also stored when a stream is handed over and at a stop.
        on_assigned: called with the name of a stream before its first message.
        on_revoked: called with the name of a stream after its last message, before another member begins; after a lost connection,
            another member may have begun.
        credit: how many chunks of each stream the broker may send ahead.
        concurrency: how many streams are handled at the same time, each in its own thread.
        attempts: how often the handler is called for a message or batch before it counts as failed; its stream is paused until then.
        backoff: seconds before the second attempt; the delay doubles with each attempt, up to 60 (or ``backoff``, if longer).
        on_failure: ``"stop"`` the member, which raises the handler's error; or ``"park"`` the failed message in ``parking_queue``.
        parking_queue: the queue for failed messages with ``on_failure="park"``.
        amqp_url: where the parking queue is, for AMQP; by default the host of each ``url`` with the default port. If it contains a
            password, that replaces ``credentials``, which go to no other host.
        follow_advertised: as for `connect`.
        timeouts: ``close`` is how long a member waits for its handlers when it stops, and when another member is to get a stream (45
            seconds at most). The other fields must keep their defaults: a member tries to connect until it is stopped.
        heartbeat: the heartbeat interval in seconds; the broker gives the streams to other members after two silent intervals.
        credentials: as for `connect`.
        tls: as for `connect`.
        connection_name: the connection's name in the broker's list; by default it contains the group's name.

    A program may use a group in any thread, and one run at a time. A forked child may call `run`, which starts afresh; its
    `stop` does not reach the parent's run and raises.
    """

    def run(self, handler: Callable[[StreamMessage], object], *, signals: bool = True) -> None:
        """Call the handler with each message until `stop`, SIGTERM or Ctrl-C.

        Every message is handled at least once: after a crash, those behind the last stored offset are repeated. The member
        reconnects after a lost connection. In the main thread, the first SIGTERM or Ctrl-C ends the run after the current messages;
        a second signal ends it at once.

        Args:
            handler: called with each message. An exception counts as a failed attempt; `Reject` and `RetryAfter` say what follows.
            signals: whether to handle SIGTERM and Ctrl-C; False leaves them to the program, which calls `stop`.

        Raises:
            InvalidValue: a group cannot use the streams, the broker or the handler.
            StreamUnavailable: the broker refuses the connection or a stream permanently.
            CorruptStream: a chunk or a message is damaged.
            Exception: the handler's error, with ``on_failure="stop"``.
        """
        check_handler(handler, coroutine=False, group="StreamGroup")
        spans = in_spans(handler, self._settings.name)
        self._run(partial(self._new_member, StreamWorkers, spans, batches=False), signals=signals)

    def run_batches(self, handler: Callable[[StreamBatch], object], *, signals: bool = True) -> None:
        """Call the handler with batches: the messages of a stream that have arrived, up to about 16,000.

        As `run`, but two to three times as fast with large chunks. The handler may raise `BatchFailed` with the offset of the message that failed: the messages
        before it are handled. With any other exception, the whole batch failed.
        """
        check_handler(handler, coroutine=False, group="StreamGroup")
        self._run(partial(self._new_member, StreamWorkers, handler, batches=True), signals=signals)


class AsyncStreamGroup(StreamOptions, AsyncRuns[StreamMember]):
    """A member of a group of workers that share streams. The handler is a coroutine function.

    A thread of its own keeps the connections, so heartbeats continue while a handler blocks the event loop.

    The parameters are those of `StreamGroup`. ``concurrency`` is the number of streams that are handled at the same time, each in its own
    task. ``on_assigned``, ``on_revoked`` and a function ``start`` are called in the event loop, and may be coroutine functions.

    The handler runs in the event loop of the run; any thread may call `stop`. Runs and forks are as with `StreamGroup`.
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
