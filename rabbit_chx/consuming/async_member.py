"""One member of a group on aio-pika: a task that owns its connection.

It delivers messages into lanes, which `AsyncWorkers` work on, and sends their requests to the broker in the order in which
they make them.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, Final

import aio_pika
from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import ChannelNotFoundEntity
from pamqp.commands import Basic

from rabbit_chx.broker.amqp import version_in
from rabbit_chx.broker.applying.protocol import Lost, Refused
from rabbit_chx.consuming.access import why_ended
from rabbit_chx.consuming.async_link import Link, linked
from rabbit_chx.consuming.async_workers import AsyncWorkers
from rabbit_chx.consuming.chores import Chores
from rabbit_chx.consuming.interruptions import Interruptions
from rabbit_chx.consuming.lanes import Lane, assign
from rabbit_chx.consuming.logs import Log
from rabbit_chx.consuming.messages import Message
from rabbit_chx.consuming.queues import check_access, exists, fit_queues
from rabbit_chx.consuming.seats import consumer_tag, looks_lower, next_try, seat_queue, take_seat
from rabbit_chx.consuming.settings import Settings
from rabbit_chx.consuming.sources import QueueSource
from rabbit_chx.consuming.status import queues_in, status
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.releases import Release

_TICK: Final = 0.5
_LOOK_EVERY: Final = 30.0
_MOVE_AFTER: Final = 10.0


class AsyncMember:
    """One run of a member."""

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], Awaitable[aio_pika.abc.AbstractConnection]],
        source: QueueSource,
        handler: Callable[[Message], Awaitable[object]] | None,
        report: Callable[[Message], object],
    ) -> None:
        self._settings = settings
        self._log = Log(settings)
        self._connect = connect
        self._source = source
        self.workers = AsyncWorkers(handler, settings.concurrency, settings.heartbeat, report)
        self._patience = settings.stop_timeout
        self._lanes: dict[str, Lane] = {}
        self._calls: deque[Callable[[], Awaitable[object]]] = deque()
        self._woken = asyncio.Event()
        self._some_leave = False
        self._stopped = False
        self._error: BaseException | None = None
        self._link: Link
        self.seat: int | None = None

    # ---- called by others

    def stop(self, patience: float | None = None) -> None:
        """Finish the current messages within ``patience`` seconds and end."""
        if patience is not None:
            self._patience = patience
        self._stopped = True
        self.workers.stop()
        self._woken.set()

    def fail(self, error: BaseException) -> None:
        """Stop and raise this error from `run`."""
        self._error = self._error or error
        self.stop()

    def _ask(self, function: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        self._calls.append(partial(function, *arguments))
        self._woken.set()

    def on_progress(self) -> None:
        """Wake the member: a message can be acknowledged, or a lane has become idle."""
        self._link.wake()

    def on_interruption(self, lane: Lane, channel: Any, message: Message, error: Exception | None) -> None:
        """Decide later, in the task of the connection, what to do with a message that was not handled."""
        self._ask(self._deal_with, lane, channel, message, error)

    async def _deal_with(self, lane: Lane, channel: Any, message: Message, error: Exception | None) -> None:
        await self._link.carry_out(self._interruptions.deal_with(lane, channel, message, error))

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
        if self._stopped or self._some_leave:
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
            while not self._stopped:
                try:
                    async with linked(await self._connect(), self) as self._link:
                        tried = 0
                        try:
                            await self._consume()
                        finally:
                            self._forget()
                except (Lost, Refused, BrokerUnavailable) as error:
                    ended = why_ended(error, self._settings, self._lanes)
                    if ended.permanent:
                        raise ended from None
                    self._log.lost(ended)
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

    def _forget(self) -> None:
        """Forget the deliveries of the lost connection; the broker redelivers them."""
        self.seat = None
        for lane in self._lanes.values():
            lane.detach()

    async def _pause(self, seconds: float) -> None:
        """Wait until the member is woken, for at most ``seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    async def _sleep(self, seconds: float, *, connected: bool = False) -> None:
        until = monotonic() + seconds
        while not self._stopped and (left := until - monotonic()) > 0:
            await self._pause(left)
            if connected:
                self._link.check()

    async def _consume(self) -> None:
        """Consume on one connection until it is lost or the member has stopped."""
        self._release = Release.of_broker(version_in(self._link.connection.server_properties))
        self._settings.check_release(self._release)
        self.workers.heard = monotonic()
        self._interruptions = Interruptions(self._settings, self.workers, self)
        names = await self._find_seat()
        if self.seat is None:
            return
        await self._link.carry_out(check_access(self._settings, self.seat, names))
        self._control = await self._link.open_channel()
        await self._answer_questions(self.seat)
        await self._use(names)
        self._log.consuming(len(names), self.seat)
        await self._until_stopped()

    async def _until_stopped(self) -> None:
        chores: Chores[Callable[[], Awaitable[object]]] = Chores(
            {
                self._free: _TICK,
                self._inspect: 2 * _TICK,
                self._listen: self._settings.heartbeat / 3,
                self._look: _LOOK_EVERY,
                self._move: _MOVE_AFTER,
            }
        )
        while not self._stopped:
            await self._turn(self._interruptions.until_retry(_TICK))
            for chore in chores.due():
                await chore()
        await self._finish()

    async def _find_seat(self) -> tuple[str, ...]:
        """Wait for a free seat, unless the member is stopped, and return the queues."""
        for tried in count():
            source = await asyncio.to_thread(self._source)
            names = await self._fit({*self._lanes, *source}, strict=not self._lanes)
            self._lanes = {name: self._lanes.get(name) or Lane(name) for name in names}
            self.seat = await self._link.carry_out(take_seat(self._settings.name, len(names)))
            if self.seat is not None or self._stopped:
                break
            if not tried:
                self._log.standing_by(len(names))
            await self._sleep(next_try(tried, random.random()), connected=True)  # noqa: S311
        return names

    async def _turn(self, seconds: float) -> None:
        """Wait until the member is woken; then do what is due."""
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
        """Wait for the handlers; then close the channels, so that the broker requeues everything else."""
        began = monotonic()
        while (left := began + self._patience - monotonic()) > 0:
            if all(lane.is_idle for lane in self._lanes.values()):
                break
            await self._turn(min(left, _TICK))
        if self.workers.handler is not None:
            self._log.late(self._lanes.values())
        await self.workers.end()
        await self._link.flush()
        await self._link.close(
            {lane.channel: lane.to_displace for lane in self._lanes.values()}, self._settings.prefetch
        )

    # ---- queues

    async def _fit(self, names: Collection[str], *, strict: bool = False) -> tuple[str, ...]:
        """Return the queues that a group can consume; if strict, raise if there are others."""
        fit = fit_queues(names, self._settings, self._release, self._lanes, strict=strict)
        return await self._link.carry_out(fit)

    async def _use_if_fit(self, names: Collection[str]) -> None:
        """Consume those of the queues that are new and that a group can consume."""
        if new := {*names} - self._lanes.keys():
            await self._use(await self._fit(new))

    async def _use(self, names: Collection[str]) -> None:
        """Consume these queues too, each with the priority that the new number of queues gives it."""
        for lane, priority in assign(self._lanes, names, self.seat or 0):
            await self._subscribe(lane, priority)
        self._some_leave = True

    async def _consume_again(self, lane: Lane) -> None:
        """Close the channel, so that the broker requeues what is not handled, and consume with another priority."""
        await self._link.flush()
        # All members do this at the same time, so even a waiting one may become active for a moment.
        displaced = lane.queue if lane.careful else ""
        await self._link.close({lane.detach(): displaced}, self._settings.prefetch)
        await self._subscribe(lane, lane.priority)

    async def _subscribe(self, lane: Lane, priority: int) -> None:
        channel = await self._link.open_channel()
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
        if lane.channel is channel and lane.add(message):
            self.workers.submit(lane)

    async def _inspect(self) -> None:
        """Sample the rates, and consume again where the broker has closed a channel or cancelled a consumer."""
        now = monotonic()
        for lane in list(self._lanes.values()):
            lane.sample(now)
            if lane.channel is None:
                continue
            if lane.channel.is_closed:
                self._log.closed(lane.queue)
                lane.detach()
                await self._subscribe(lane, lane.priority)
            elif not lane.channel.consumers:
                await self._on_cancelled(lane)

    async def _on_cancelled(self, lane: Lane) -> None:
        """Consume again after the broker has cancelled the consumer, or drop the queue if it was deleted."""
        await self._link.close({lane.detach(): ""}, self._settings.prefetch)
        if await self._link.carry_out(exists(lane.queue)):
            with suppress(ChannelNotFoundEntity):  # the broker cancels consumers before it deletes a queue
                await self._subscribe(lane, lane.priority)
                self._log.cancelled(lane.queue)
                return
            lane.detach()
        self._log.deleted(lane.queue)
        del self._lanes[lane.queue]
        await self._use(())

    # ---- questions and periodic chores

    async def _answer_questions(self, seat: int) -> None:
        await self._control.basic_consume(
            seat_queue(self._settings.name, seat), self._on_question, no_ack=True
        )

    async def _on_question(self, delivered: DeliveredMessage) -> None:
        asked = delivered.header.properties
        if not asked.reply_to:
            return
        if queues := queues_in(delivered.body):
            self._ask(self._use_if_fit, queues)
        answer = status(self._settings.name, self.seat or 0, self._lanes.values())
        properties = Basic.Properties(correlation_id=asked.correlation_id)
        self._link.send(
            self._control.basic_publish, answer, routing_key=asked.reply_to, properties=properties
        )

    async def _free(self) -> None:
        if any(lane.hold for lane in self._lanes.values()):
            await self._link.carry_out(self._interruptions.release(self._lanes.values()))

    async def _listen(self) -> None:
        """Wait for an answer of the broker: data that arrived while the process was paused proves nothing."""
        await self._link.carry_out(
            self._interruptions.listen(seat_queue(self._settings.name, self.seat or 0))
        )

    async def _look(self) -> None:
        """Ask the source for the queues again, in the background because an answer over HTTP takes time."""
        self._link.begin(self._look_now())

    async def _look_now(self) -> None:
        try:
            names = await asyncio.to_thread(self._source)
        except RabbitChxError as error:
            self._log.unreadable(error)
        else:
            self._ask(self._use_if_fit, names)

    async def _move(self) -> None:
        """Take a lower seat if one has been free for some time."""
        assert self.seat is not None
        if not looks_lower(self.seat, len(self._lanes), random.random()):  # noqa: S311
            return
        seat = await self._link.carry_out(take_seat(self._settings.name, self.seat))
        if seat is None:
            return
        self._log.moving(self.seat, seat)
        await self._control.queue_delete(seat_queue(self._settings.name, self.seat))
        self.seat = seat
        await self._answer_questions(seat)
        await self._use(())
