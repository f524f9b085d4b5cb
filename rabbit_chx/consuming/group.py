"""A worker that shares the queues of a hash exchange with any number of others.

    from rabbit_chx.consuming import Group, Message

    def handle(message: Message) -> None:
        print(message.routing_key, message.body)

    Group("amqp://user:password@host", exchange="orders", name="billing").run(handle)

Start as many copies of the program as you like. The broker divides the queues among the members, hands the queues of a
member that ends to the others, and keeps each queue in order, because the queues are quorum queues with a single active
consumer.

In an event loop, the handler is a coroutine function:

    asyncio.run(AsyncGroup("amqp://user:password@host", exchange="orders", name="billing").run(handle))

Or while a block runs, such as the lifespan of a web application:

    async with AsyncGroup("amqp://user:password@host", exchange="orders", name="billing").running(handle):
        ...

A group may have members of both classes, `Group` and `AsyncGroup`.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from rabbit_chx.base.timeouts import HEARTBEAT, Timeouts
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import connect
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.guards import checked_urls
from rabbit_chx.broker.management import Management
from rabbit_chx.consuming.member.key_lanes import lanes_of
from rabbit_chx.consuming.member.lanes import GroupStatus, status_of
from rabbit_chx.consuming.member.member import Member
from rabbit_chx.consuming.member.responder import Responder
from rabbit_chx.consuming.queues.sources import KeyFunction, key_source, queue_source
from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.message import Message
from rabbit_chx.messages.traces import in_async_spans, in_spans
from rabbit_chx.working.loop_workers import LoopWorkers
from rabbit_chx.working.retries import FUNCTION, TIMEOUTS, check_function, check_handler
from rabbit_chx.working.runs import AsyncRuns, Runs
from rabbit_chx.working.settings import OnFailure, Order, Settings, warn
from rabbit_chx.working.workers import Progress, Workers


class _Options(Runs[Member]):
    """The settings of a member, the source of its queues, and its connection parameters."""

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        *,
        exchange: str,
        name: str,
        queues: Sequence[str] | Path | None = None,
        order: Order = "queue",
        key: KeyFunction | None = None,
        prefetch: int = 50,
        concurrency: int = 4,
        attempts: int = 5,
        backoff: float = 1.0,
        on_failure: OnFailure = "stop",
        parking_queue: str | None = None,
        crashes: int | None = 5,
        consumer_timeout: float | None = None,
        failover_only: bool = False,
        management: Management | str | None = None,
        timeouts: Timeouts = TIMEOUTS,
        heartbeat: int = HEARTBEAT,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        connection_name: str | None = None,
    ) -> None:
        super().__init__()
        self._settings = Settings(
            exchange=exchange,
            name=name,
            prefetch=prefetch,
            concurrency=concurrency,
            attempts=attempts,
            backoff=backoff,
            on_failure=on_failure,
            parking_queue=parking_queue,
            crashes=crashes,
            timeouts=timeouts,
            heartbeat=heartbeat,
            consumer_timeout=consumer_timeout,
            failover_only=failover_only,
            order=order,
        )
        if key is not None and not (order == "key" and callable(key)):
            raise InvalidValue("key", key, "a function with order='key', and None otherwise")
        if key is not None:
            check_function("key", key, FUNCTION, hint="The thread of the connection calls it")
        brokers = checked_urls(
            *("a group", url, timeouts, heartbeat, credentials, tls, connection_name),
            defaults=TIMEOUTS,
        )
        # A URL may give its connection another heartbeat; 0 turns it off, and the broker then never takes queues from a silent member.
        shortest = min(each.parameters.get("heartbeat") or heartbeat for each in brokers)
        self._settings = replace(self._settings, heartbeat=int(shortest))

        def api(broker: BrokerUrl) -> Management:
            if isinstance(management, Management):
                return management
            return Management.of(broker, management, credentials=credentials, tls=tls)

        # With the URL of an API, each address may still have another user.
        apis = [(each.vhost, partial(api, each)) for each in brokers]
        self._source = queue_source(queues, exchange, apis)
        find_key = key_source(queues, exchange, apis) if key is None else lambda: key
        self._new_lane = lanes_of(self._settings, find_key if order == "key" else None)
        label = connection_name or f"rabbit-chx group {name}"
        opening = partial(connect, brokers, heartbeat=heartbeat, credentials=credentials, tls=tls)
        self._connect = partial(opening, connection_name=label)
        self._connect_for_replies = partial(opening, connection_name=f"{label} replies")

    @property
    def status(self) -> GroupStatus:
        """How the member is now, for health checks and metrics. Can be read from any thread."""
        self._guard.check()
        member = self._member
        return status_of((), self._why_not()) if member is None else member.status

    def _new_member(self, workers: Callable[..., Progress], handler: object) -> Member:
        settings = self._settings
        responder = Responder(self._connect_for_replies, partial(warn, settings.name))
        given = workers(handler, settings.concurrency, settings.heartbeat)
        return Member(settings, self._connect, self._source, given, responder, self._new_lane)


class Group(_Options):
    """A member of a group of workers that share the queues of an exchange.

    Args:
        url: an AMQP URL, or several that are tried in turn, also after a lost connection.
        exchange: the exchange whose queues are consumed.
        name: the name of the group, the same for all its members.
        queues: names of queues, or the ``Path`` of a topology file. By default the queues that the bindings of the
            exchange lead to, read from the management API every 30 seconds.
        order: ``"queue"`` handles the messages of a queue one after the other; ``"key"`` handles messages of different keys of a
            queue at the same time, and those of each key one after the other.
        key: with ``order="key"``, a function that gives the key of a message. By default the key is what the exchange hashes.
            The thread of the connection calls it, so it must return at once.
        prefetch: how many unacknowledged messages the broker sends for each queue.
        concurrency: how many queues, or with ``order="key"`` messages, are handled at the same time, each in its own thread.
        attempts: how often the handler is called for a message before the message counts as failed; its queue, or
            with ``order="key"`` its key, is paused until then.
        backoff: seconds before the second attempt; the delay doubles with each attempt, up to 60 (or ``backoff``, if longer).
            All delays together must be shorter than ``consumer_timeout``.
        on_failure: ``"stop"`` the member, which raises the handler's error; ``"dead-letter"`` the failed message; or
            ``"park"`` it in ``parking_queue``.
        parking_queue: the queue for failed messages with ``on_failure="park"``.
        crashes: how many processes a message may end while they handle it before it is dead-lettered or parked; None for any number.
            The count begins when the broker has taken the message back that often. With ``on_failure="stop"``, it has no effect.
        consumer_timeout: seconds within which a message must be acknowledged after its delivery; otherwise the broker gives its
            queue to another member (RabbitMQ 4.3 and later; by default the broker's setting, 30 minutes).
        failover_only: accept a broker older than 4.0, which gives all queues to one member until that member ends.
        management: the management API, or its URL; by default on the host of each ``url``.
        timeouts: ``close`` is how long a stopping member waits for its handlers. The other fields must keep their defaults: a
            member tries to connect until it is stopped.
        heartbeat: the heartbeat interval in seconds; the broker gives the queues to other members after two silent intervals.
        credentials: user and password that are not in the URL: a function, or the ``Path`` of a file with the password.
        tls: the context for amqps; by default the certificate and the host name are verified.
        connection_name: the connection's name in the broker's list; by default it contains the group's name.

    A program may use a group in any thread, and one `run` at a time. A forked child may call `run`, which starts afresh; its
    `stop` does not reach the parent's run and raises.
    """

    def run(self, handler: Callable[[Message], object], *, signals: bool = True) -> None:
        """Call the handler with each message until `stop`, SIGTERM or Ctrl-C.

        A message is acknowledged after the handler has returned. The member reconnects after a lost connection. In the
        main thread, the first SIGTERM or Ctrl-C ends the run after the current messages; a second signal ends it at once.

        Args:
            handler: called with each message. An exception counts as a failed attempt; `Reject` and `RetryAfter` say what follows.
            signals: whether to handle SIGTERM and Ctrl-C; False leaves them to the program, which calls `stop`.

        Raises:
            InvalidValue: a group cannot use the queues, the broker or the handler.
            BrokerUnavailable: the broker refuses the connection permanently.
            Exception: the handler's error, with ``on_failure="stop"``.
        """
        check_handler(handler, coroutine=False)
        self._run(partial(self._new_member, Workers, in_spans(handler, self._settings.name)), signals=signals)


class AsyncGroup(_Options, AsyncRuns[Member]):
    """A member of a group of workers that share the queues of an exchange. The handler is a coroutine function.

    A thread of its own keeps the connection, so heartbeats continue while a handler blocks the event loop.

    The parameters are those of `Group`. ``concurrency`` is the number of queues, or with ``order="key"`` of messages,
    that are handled at the same time, each in its own task.

    The handler runs in the event loop of the run; any thread may call `stop`. Runs and forks are as with `Group`.
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
