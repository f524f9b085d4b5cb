"""One member of a group on pika: the thread that owns its connection.

It delivers messages into lanes, which `Workers` work on, and sends their requests to the broker in the order in which they
make them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from pika import BasicProperties, BlockingConnection, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from rabbit_chx.broker.amqp import server_version
from rabbit_chx.broker.applying.handover import pass_marker
from rabbit_chx.broker.applying.pika_driver import PikaDriver, at_once
from rabbit_chx.broker.applying.protocol import Command, Lost, Refused
from rabbit_chx.consuming.channels import close_in_one_step
from rabbit_chx.consuming.lanes import Lane
from rabbit_chx.consuming.membership import TICK, Membership
from rabbit_chx.consuming.messages import Message, from_pika
from rabbit_chx.consuming.queues import is_missing
from rabbit_chx.consuming.reporter import Reporter
from rabbit_chx.consuming.seats import consumer_tag, next_try
from rabbit_chx.consuming.settings import Settings
from rabbit_chx.consuming.sources import QueueSource
from rabbit_chx.consuming.workers import Workers
from rabbit_chx.errors import BrokerUnavailable

_T = TypeVar("_T")


class Member(Membership[Workers]):
    """One run of a member."""

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], BlockingConnection],
        source: QueueSource,
        handler: Callable[[Message], object],
        reporter: Reporter,
    ) -> None:
        workers = Workers(handler, settings.concurrency, settings.heartbeat, reporter.report)
        super().__init__(settings, workers, source, reporter)
        self._connect = connect
        self._connection: BlockingConnection | None = None
        self._woken: BlockingConnection | None = None

    # ---- from any thread

    def stop(self) -> None:
        """Finish the current messages and end."""
        self.workers.stopping.set()
        self._wake()

    def _wake(self) -> None:
        connection = self._connection
        if connection is None or connection is self._woken:
            return
        self._woken = connection  # not just True, because a lost connection never calls back
        try:
            connection.add_callback_threadsafe(self._on_woken)
        except AMQPError:  # the connection is closed, so its thread is awake
            self._woken = None

    def _on_woken(self) -> None:
        self._woken = None

    def on_progress(self) -> None:
        """Wake the member: a message can be acknowledged, or a lane has become idle."""
        self._wake()

    # ---- in the thread of the connection

    def run(self) -> None:
        """Consume until `stop`, and reconnect whenever the connection is lost.

        Raises:
            RabbitChxError: the member cannot consume these queues; the message says why.
        """
        tried = 0
        self.workers.start(self)
        try:
            while not self.workers.stopped:
                try:
                    with self._connect() as self._connection:
                        tried = 0
                        self._driver = PikaDriver(self._connection)
                        at_once(self._consume(server_version(self._connection)))
                except (AMQPError, OSError, Lost, Refused, BrokerUnavailable) as error:
                    self._on_lost(error)
                finally:
                    self._connection = None
                    self._forget()
                self.workers.stopping.wait(next_try(tried, random.random()))  # noqa: S311 - not for secrets
                tried += 1
        finally:
            self.workers.end()
        if self._error is not None:
            raise self._error

    @property
    def _opened(self) -> BlockingConnection:
        assert self._connection is not None
        return self._connection

    async def _carry_out(self, commands: Generator[Command, Any, _T]) -> _T:
        return await self._driver.carry_out(commands)

    async def _until_stopped(self) -> None:
        try:
            await super()._until_stopped()
        finally:
            with suppress(AMQPError):
                await self._close_all()

    async def _stand_by(self, seconds: float) -> None:
        until = monotonic() + seconds
        while monotonic() < until and not self.workers.stopped:
            self._opened.process_data_events(time_limit=TICK)

    async def _turn(self, seconds: float) -> None:
        self._opened.process_data_events(time_limit=seconds)
        await self._do_due()

    async def _do_due(self) -> None:
        """Do what is due after each batch of events."""
        while self._calls:
            await self._calls.popleft()()
        self.acknowledge()
        self._interruptions.retry()
        for lane in [each for each in self._lanes.values() if each.leaving and each.is_idle]:
            await self._consume_again(lane)

    def acknowledge(self) -> None:
        """Acknowledge everything that is handled."""
        for lane, channel, tag in self.workers.progress():
            if channel is not None and channel.is_open:
                channel.basic_ack(tag, multiple=True)
                lane.acked = tag

    def reject(self, channel: Any, message: Message) -> None:
        """Dead-letter a message."""
        channel.basic_reject(message.tag, requeue=False)

    def pass_marker(self, channel: Any, message: Message) -> None:
        """Answer the marker of a drain, and acknowledge it."""
        pass_marker(channel, spec.Basic.Deliver(delivery_tag=message.tag), message.properties)

    async def _finish(self) -> None:
        deadline = monotonic() + self._settings.stop_timeout
        while not all(lane.is_idle for lane in self._lanes.values()) and monotonic() < deadline:
            await self._turn(0.05)
        await self._do_due()
        self._warn_if_late()

    # -- queues

    async def _open_channel(self) -> BlockingChannel:
        return self._opened.channel()

    async def _close(self, channels: Mapping[BlockingChannel | None, str]) -> None:
        close_in_one_step(channels, self._settings.prefetch)

    async def _send_acknowledgements(self) -> None:
        self.acknowledge()

    async def _subscribe(self, lane: Lane, priority: int) -> None:
        channel = await self._open_channel()
        channel.basic_qos(prefetch_count=self._settings.prefetch)
        channel.add_on_cancel_callback(
            lambda _: self._calls.append(partial(self._on_cancelled, lane, channel))
        )
        with self.workers.lock:
            lane.attach(channel, priority, careful=self._release.keeps_dead_consumers)
        channel.basic_consume(
            lane.queue,
            partial(self._on_delivery, lane),
            consumer_tag=consumer_tag(self._settings.name, self.seat or 0),
            arguments=self._settings.consumer_arguments(priority),
        )

    def _is_not_found(self, error: Exception) -> bool:
        return isinstance(error, ChannelClosedByBroker) and is_missing(error.reply_text)

    def _is_cancelled(self, channel: Any) -> bool:  # noqa: ARG002 - pika calls back
        return False

    # -- deliveries

    def _on_delivery(
        self,
        lane: Lane,
        channel: BlockingChannel,
        method: spec.Basic.Deliver,
        properties: BasicProperties,
        body: bytes,
    ) -> None:
        self._deliver(lane, channel, from_pika(lane.queue, method, properties, body))

    # -- questions and periodic chores

    def _on_question(self, _: BlockingChannel, __: Any, asked: BasicProperties, body: bytes) -> None:
        self._answer(body, asked.reply_to, asked.correlation_id)

    async def _answer_questions(self) -> None:
        self._control.basic_consume(self._seat_queue, self._on_question, auto_ack=True)

    async def _delete(self, queue: str) -> None:
        self._control.queue_delete(queue)

    async def _read_source(self) -> tuple[str, ...]:
        return self._source()

    async def _look(self) -> None:
        threading.Thread(
            target=lambda: at_once(self._look_now()), name="rabbit-chx queues", daemon=True
        ).start()
