"""One member of a group on aio-pika: a task that owns its connection.

It delivers messages into lanes, which `AsyncWorkers` work on, and sends their requests to the broker in the order in which
they make them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import aio_pika
from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import ChannelNotFoundEntity
from pamqp.commands import Basic

from rabbit_chx.broker.amqp import version_in
from rabbit_chx.broker.applying.protocol import Command, Lost, Refused
from rabbit_chx.consuming.async_link import Link, linked
from rabbit_chx.consuming.async_workers import AsyncWorkers
from rabbit_chx.consuming.lanes import Lane
from rabbit_chx.consuming.membership import TICK, Membership
from rabbit_chx.consuming.messages import Message
from rabbit_chx.consuming.queues import is_missing
from rabbit_chx.consuming.reporter import Reporter
from rabbit_chx.consuming.seats import consumer_tag, next_try
from rabbit_chx.consuming.settings import Settings
from rabbit_chx.consuming.sources import QueueSource
from rabbit_chx.errors import BrokerUnavailable

_T = TypeVar("_T")


class AsyncMember(Membership[AsyncWorkers]):
    """One run of a member."""

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], Awaitable[aio_pika.abc.AbstractConnection]],
        source: QueueSource,
        handler: Callable[[Message], Awaitable[object]] | None,
        reporter: Reporter,
    ) -> None:
        workers = AsyncWorkers(handler, settings.concurrency, settings.heartbeat, reporter.report)
        super().__init__(settings, workers, source, reporter)
        self._connect = connect
        self._patience = settings.stop_timeout
        self._woken = asyncio.Event()
        self._some_leave = False
        self._link: Link

    # ---- called by others

    def stop(self, patience: float | None = None) -> None:
        """Finish the current messages within ``patience`` seconds and end."""
        if patience is not None:
            self._patience = patience
        self.workers.stop()
        self._woken.set()

    def _wake(self) -> None:
        self._woken.set()

    def on_progress(self) -> None:
        """Wake the member: a message can be acknowledged, or a lane has become idle."""
        self._link.wake()

    # ---- sent to the broker in this order

    def acknowledge(self) -> None:
        """Acknowledge everything that is handled."""
        for lane, channel, tag in self.workers.progress():
            if channel is not None:
                self._link.send(channel.basic_ack, tag, multiple=True, wait=False)
                lane.acked = tag

    def reject(self, channel: Any, message: Message) -> None:
        """Dead-letter a message."""
        self._link.send(channel.basic_reject, message.tag, requeue=False, wait=False)

    def pass_marker(self, channel: Any, message: Message) -> None:
        """Answer the marker of a drain, and acknowledge it."""
        if message.properties.reply_to:
            properties = Basic.Properties(headers=message.headers)
            self._link.send(
                channel.basic_publish, b"", routing_key=message.properties.reply_to, properties=properties
            )
        self._link.send(channel.basic_ack, message.tag, wait=False)

    def on_sent(self) -> None:
        """Wake the member if it waits for acknowledgements to be sent."""
        if self.workers.stopped or self._some_leave:
            self._woken.set()

    def on_closed(self) -> None:
        """Wake the member, which then notices that the connection is closed."""
        self._woken.set()

    # ---- from connection to connection

    async def run(self) -> None:
        """Consume until `stop`, and reconnect whenever the connection is lost.

        Raises:
            RabbitChxError: the member cannot consume these queues; the message says why.
        """
        self.workers.start(self)
        tried = 0
        try:
            while not self.workers.stopped:
                try:
                    async with linked(await self._connect(), self) as self._link:
                        tried = 0
                        try:
                            await self._consume(version_in(self._link.connection.server_properties))
                        finally:
                            self._forget()
                except (Lost, Refused, BrokerUnavailable) as error:
                    self._on_lost(error)
                await self._sleep(next_try(tried, random.random()))  # noqa: S311 - not for secrets
                tried += 1
        except BaseException as error:
            self._error = self._error or error
            raise
        finally:
            self.workers.fail(self._error)
            await self.workers.end()
        if self._error is not None:
            raise self._error

    async def _pause(self, seconds: float) -> None:
        """Wait until the member is woken, for at most ``seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    async def _sleep(self, seconds: float, *, connected: bool = False) -> None:
        until = monotonic() + seconds
        while not self.workers.stopped and (left := until - monotonic()) > 0:
            await self._pause(left)
            if connected:
                self._link.check()

    async def _stand_by(self, seconds: float) -> None:
        await self._sleep(seconds, connected=True)

    async def _carry_out(self, commands: Generator[Command, Any, _T]) -> _T:
        return await self._link.carry_out(commands)

    async def _turn(self, seconds: float) -> None:
        await self._pause(seconds)
        self._link.check()
        while self._calls:
            await self._calls.popleft()()
        self._interruptions.retry()
        leaving = [each for each in self._lanes.values() if each.leaving]
        for lane in leaving:
            if lane.is_idle:
                await self._consume_again(lane)
        self._some_leave = any(each.leaving for each in leaving)

    async def _finish(self) -> None:
        began = monotonic()
        while (left := began + self._patience - monotonic()) > 0:
            if all(lane.is_idle for lane in self._lanes.values()):
                break
            await self._turn(min(left, TICK))
        if self.workers.handler is not None:
            self._warn_if_late()
        await self.workers.end()
        await self._link.flush()
        await self._close_all()

    # ---- queues

    async def _use(self, names: Collection[str]) -> None:
        await super()._use(names)
        self._some_leave = True

    async def _open_channel(self) -> AbstractChannel:
        return await self._link.open_channel()

    async def _close(self, channels: Mapping[AbstractChannel | None, str]) -> None:
        await self._link.close(channels, self._settings.prefetch)

    async def _send_acknowledgements(self) -> None:
        await self._link.flush()

    async def _subscribe(self, lane: Lane, priority: int) -> None:
        channel = await self._open_channel()
        await channel.basic_qos(prefetch_count=self._settings.prefetch)
        lane.attach(channel, priority, careful=self._release.keeps_dead_consumers)
        await channel.basic_consume(
            lane.queue,
            partial(self._on_delivery, lane, channel),
            consumer_tag=consumer_tag(self._settings.name, self.seat or 0),
            arguments=self._settings.consumer_arguments(priority),
        )

    async def _on_delivery(self, lane: Lane, channel: AbstractChannel, delivered: DeliveredMessage) -> None:
        delivery = delivered.delivery
        assert isinstance(delivery, Basic.Deliver)
        message = Message(
            delivered.body,
            delivery.routing_key or "",
            queue=lane.queue,
            exchange=delivery.exchange or "",
            redelivered=bool(delivery.redelivered),
            properties=delivered.header.properties,
            tag=delivery.delivery_tag or 0,
        )
        self._deliver(lane, channel, message)

    def _is_not_found(self, error: Exception) -> bool:
        return isinstance(error, ChannelNotFoundEntity) and is_missing(str(error.args[-1]))

    def _is_cancelled(self, channel: Any) -> bool:
        return not channel.consumers

    # ---- questions and periodic chores

    async def _answer_questions(self) -> None:
        await self._control.basic_consume(self._seat_queue, self._on_question, no_ack=True)

    async def _on_question(self, delivered: DeliveredMessage) -> None:
        asked = delivered.header.properties
        self._answer(delivered.body, asked.reply_to, asked.correlation_id)

    async def _delete(self, queue: str) -> None:
        await self._control.queue_delete(queue)

    async def _read_source(self) -> tuple[str, ...]:
        return await asyncio.to_thread(self._source)

    async def _look(self) -> None:
        self._link.begin(self._look_now())
