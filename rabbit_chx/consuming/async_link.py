"""One connection of a member on aio-pika, and an outbox that keeps what the member sends in order.

The channels are aiormq's: the robust channels of aio-pika would reopen by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, Final, Protocol, TypeVar

import aio_pika
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from aiormq.exceptions import (
    AMQPChannelError,
    AMQPError,
    ChannelClosed,
    ChannelInvalidStateError,
    ConnectionClosed,
)

from rabbit_chx.broker.applying.aio_driver import AioDriver, why_closed
from rabbit_chx.broker.applying.protocol import Command, Lost, Refused
from rabbit_chx.consuming.priorities import DISPLACING

_T = TypeVar("_T")

_CLOSE_SECONDS: Final = 5.0
"""Seconds for closing a connection."""


class _Owner(Protocol):
    """The member."""

    def acknowledge(self) -> None:
        """Queue the acknowledgements that are due."""

    def on_sent(self) -> None:
        """Called when the outbox is empty."""

    def on_closed(self) -> None:
        """Called when the connection is closed."""


class Link:
    """A connection, with its outbox and background tasks."""

    def __init__(self, connection: AbstractConnection, owner: _Owner) -> None:
        self.connection = connection
        self._owner = owner
        self._outbox: deque[Callable[[], Awaitable[object]]] = deque()
        self._sending = asyncio.Lock()
        self._unsent = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- what is sent

    def wake(self) -> None:
        """Have the outbox and the acknowledgements sent."""
        self._unsent.set()

    def send(self, method: Callable[..., Awaitable[object]], *arguments: Any, **named: Any) -> None:
        """Call a method of a channel after the calls that were queued earlier."""
        self._outbox.append(partial(method, *arguments, **named))
        self._unsent.set()

    async def flush(self) -> None:
        """Send everything now."""
        async with self._sending:
            self._owner.acknowledge()
            self._unsent.clear()
            while self._outbox:
                with suppress(ChannelInvalidStateError):  # the broker redelivers what the closed channel had
                    await self._outbox.popleft()()

    async def keep_sending(self) -> None:
        """Send the outbox once in each turn of the event loop."""
        while True:
            await self._unsent.wait()
            await self.flush()
            self._owner.on_sent()

    # ---- channels

    async def carry_out(self, commands: Generator[Command, Any, _T]) -> _T:
        """Carry out commands on a separate channel."""
        return await AioDriver(self.connection).carry_out(commands)

    async def open_channel(self) -> AbstractChannel:
        """Open a channel with the lowest free number: aiormq would use one above the highest, and the broker has a maximum."""
        used = self.connection.channels
        number = next(each for each in count(1) if each not in used)
        return await self.connection.channel(number, publisher_confirms=False)

    async def close(self, channels: Mapping[AbstractChannel | None, str], prefetch: int) -> None:
        """Close channels so that the broker requeues their messages in one step and in order.

        aiormq does not cancel the consumers first, which would activate other members too early. A channel that is given
        with a queue is first displaced there, as in `close_in_one_step`.
        """
        closing = {each: queue for each, queue in channels.items() if each is not None and not each.is_closed}
        others = [
            await self._displace(channel, queue, prefetch) for channel, queue in closing.items() if queue
        ]
        await asyncio.gather(*(each.close() for each in closing if not each.is_closed))
        await asyncio.gather(*(each.close() for each in others if not each.is_closed))

    async def _displace(self, channel: AbstractChannel, queue: str, prefetch: int) -> AbstractChannel:
        async def ignore(_: DeliveredMessage) -> None:
            """Keep the message until closing the channel requeues it."""

        other = await self.open_channel()
        # Suppressed if the queue or the channel no longer exists.
        with suppress(AMQPChannelError, ChannelInvalidStateError):
            await other.basic_qos(prefetch_count=prefetch)
            await other.basic_consume(queue, ignore, arguments={"x-priority": DISPLACING})
            # The answer comes after all deliveries that were in transit.
            await channel.basic_qos(prefetch_count=prefetch)
            await channel.basic_nack(0, multiple=True, requeue=True)
        return other

    # ---- the connection

    def check(self) -> None:
        """Raise if the connection is lost."""
        closing = self.connection.closing
        if closing.done():
            raise _why_lost(None if closing.cancelled() else closing.exception())

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background until this connection ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """Cancel the background tasks."""
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def linked(opened: aio_pika.abc.AbstractConnection, owner: _Owner) -> AsyncIterator[Link]:
    """Use a connection and close it afterwards.

    Raises:
        Refused: the broker closed the connection or a channel because of a command.
        Lost: the connection was lost for another reason.
    """
    assert opened.transport is not None  # it has just connected
    link = Link(opened.transport.connection, owner)
    link.connection.closing.add_done_callback(lambda _: owner.on_closed())
    link.begin(link.keep_sending())
    try:
        yield link
    except (AMQPError, OSError, ChannelInvalidStateError) as error:
        raise _why_lost(error) from None
    except (RuntimeError, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if link.connection.is_opened or (task is not None and task.cancelling()):
            raise
        raise _why_lost(error) from None  # aiormq also raises these for a lost connection
    finally:
        link.end()
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await opened.close()


def _why_lost(error: BaseException | None) -> Refused | Lost:
    if isinstance(error, (ChannelClosed, ConnectionClosed)):
        return why_closed(error, "the broker")
    return Lost(f"the connection to the broker was lost: {error or type(error).__name__}")
