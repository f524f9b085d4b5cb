"""One connection of a member on aio-pika, and what the member sends over it, in order.

The channels are those of aiormq, below aio-pika: robust ones would reopen by themselves.
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

_FAREWELL: Final = 5.0
"""Seconds for closing a connection."""


class _Owner(Protocol):
    """The member."""

    def acknowledge(self) -> None:
        """Send what is to be acknowledged."""

    def on_sent(self) -> None:
        """It is sent."""

    def on_closed(self) -> None:
        """The connection is closed."""


class Link:
    """A connection."""

    def __init__(self, connection: AbstractConnection, owner: _Owner) -> None:
        self.connection = connection
        self._owner = owner
        self._outbox: deque[Callable[[], Awaitable[object]]] = deque()
        self._sending = asyncio.Lock()
        self._unsent = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- what is sent

    def wake(self) -> None:
        """There is something to send, or to acknowledge."""
        self._unsent.set()

    def send(self, method: Callable[..., Awaitable[object]], *arguments: Any, **named: Any) -> None:
        """Call a method of a channel, after those before it."""
        self._outbox.append(partial(method, *arguments, **named))
        self._unsent.set()

    async def flush(self) -> None:
        """Send everything now."""
        async with self._sending:
            self._owner.acknowledge()
            self._unsent.clear()
            while self._outbox:
                with suppress(ChannelInvalidStateError):  # what was on a channel that is gone comes again
                    await self._outbox.popleft()()

    async def keep_sending(self) -> None:
        """Send what there is once in each turn of the event loop."""
        while True:
            await self._unsent.wait()
            await self.flush()
            self._owner.on_sent()

    # ---- channels

    async def carry_out(self, commands: Generator[Command, Any, _T]) -> _T:
        """Carry out commands on a channel of their own."""
        return await AioDriver(self.connection).carry_out(commands)

    async def open_channel(self) -> AbstractChannel:
        """With the lowest free number: aiormq takes one above the highest, and the broker limits the numbers."""
        used = self.connection.channels
        number = next(each for each in count(1) if each not in used)
        return await self.connection.channel(number, publisher_confirms=False)

    async def close(self, channels: Mapping[AbstractChannel | None, str], prefetch: int) -> None:
        """Close channels, by which the broker takes back what they were sent, in one step and so in order.

        aiormq does not cancel the consumers first, which would activate other members too early. A channel that comes
        with a queue is displaced there first, as by `close_in_one_step`.
        """
        closing = {each: queue for each, queue in channels.items() if each is not None and not each.is_closed}
        others = [
            await self._displace(channel, queue, prefetch) for channel, queue in closing.items() if queue
        ]
        await asyncio.gather(*(each.close() for each in closing if not each.is_closed))
        await asyncio.gather(*(each.close() for each in others if not each.is_closed))

    async def _displace(self, channel: AbstractChannel, queue: str, prefetch: int) -> AbstractChannel:
        async def ignore(_: DeliveredMessage) -> None:
            """It is taken back when the channel is closed."""

        other = await self.open_channel()
        with suppress(AMQPChannelError, ChannelInvalidStateError):  # the queue or the channel is gone
            await other.basic_qos(prefetch_count=prefetch)
            await other.basic_consume(queue, ignore, arguments={"x-priority": DISPLACING})
            await channel.basic_qos(
                prefetch_count=prefetch
            )  # it is answered after everything that was on its way
            await channel.basic_nack(0, multiple=True, requeue=True)
        return other

    # ---- the connection

    def check(self) -> None:
        """Raise if the connection is lost."""
        closing = self.connection.closing
        if closing.done():
            raise _why_lost(None if closing.cancelled() else closing.exception())

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Work on something else meanwhile, as long as there is this connection."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """Stop what goes on meanwhile."""
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def linked(opened: aio_pika.abc.AbstractConnection, owner: _Owner) -> AsyncIterator[Link]:
    """A connection that is closed at the end.

    Raises:
        Refused: the broker has closed it, or a channel, because of a command.
        Lost: it was closed otherwise.
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
        raise _why_lost(error) from None  # aiormq tells of a lost connection in these ways, too
    finally:
        link.end()
        with suppress(Exception):
            async with asyncio.timeout(_FAREWELL):
                await opened.close()


def _why_lost(error: BaseException | None) -> Refused | Lost:
    if isinstance(error, (ChannelClosed, ConnectionClosed)):
        return why_closed(error, "the broker")
    return Lost(f"the connection to the broker was lost: {error or type(error).__name__}")
