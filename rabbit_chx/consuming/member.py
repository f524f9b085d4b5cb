"""One member of a group on pika: the thread that owns its connection.

It delivers messages into lanes, which `Workers` work on, and sends their requests to the broker in the order in which they
make them.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, Final, TypeVar

from pika import BasicProperties, BlockingConnection, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from rabbit_chx.broker.amqp import server_version
from rabbit_chx.broker.applying.handover import pass_marker
from rabbit_chx.broker.applying.pika_driver import PikaDriver
from rabbit_chx.broker.applying.protocol import Command, Lost, Refused
from rabbit_chx.consuming.access import why_ended
from rabbit_chx.consuming.channels import close_in_one_step
from rabbit_chx.consuming.chores import Chores
from rabbit_chx.consuming.interruptions import Interruptions
from rabbit_chx.consuming.lanes import Lane, assign
from rabbit_chx.consuming.logs import Log
from rabbit_chx.consuming.messages import Message, from_pika
from rabbit_chx.consuming.queues import check_access, exists, fit_queues
from rabbit_chx.consuming.seats import consumer_tag, looks_lower, next_try, seat_queue, take_seat
from rabbit_chx.consuming.settings import Settings
from rabbit_chx.consuming.sources import QueueSource
from rabbit_chx.consuming.status import queues_in, status
from rabbit_chx.consuming.workers import Workers
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.releases import Release

_T = TypeVar("_T")

_TICK: Final = 0.5
_LOOK_EVERY: Final = 30.0
_MOVE_AFTER: Final = 10.0


class Member:
    """One run of a member."""

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], BlockingConnection],
        source: QueueSource,
        handler: Callable[[Message], object],
        report: Callable[[Message], object],
    ) -> None:
        self._settings = settings
        self._log = Log(settings)
        self._connect = connect
        self._source = source
        self._workers = Workers(handler, settings.concurrency, settings.heartbeat, report)
        self._lanes: dict[str, Lane] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._stop = self._workers.stopping
        self._connection: BlockingConnection | None = None
        self._woken: BlockingConnection | None = None
        self._bytes = 0
        self._error: BaseException | None = None
        self.seat: int | None = None

    # ---- from any thread

    def stop(self) -> None:
        """Finish the current messages and end."""
        self._stop.set()
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

    def _ask(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have the thread of the connection call a function."""
        self._calls.append(partial(function, *arguments))
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Stop and raise this error from `run`."""
        self._error = self._error or error
        self.stop()

    def on_progress(self) -> None:
        """Wake the member: a message can be acknowledged, or a lane has become idle."""
        self._wake()

    def on_interruption(self, lane: Lane, channel: Any, message: Message, error: Exception | None) -> None:
        """Decide later, in the thread of the connection, what to do with a message that was not handled."""
        self._ask(self._deal_with, lane, channel, message, error)

    # ---- in the thread of the connection

    def run(self) -> None:
        """Consume until `stop`, and reconnect whenever the connection is lost.

        Raises:
            RabbitChxError: the member cannot consume these queues; the message says why.
        """
        tried = 0
        self._workers.start(self)
        try:
            while not self._stop.is_set():
                try:
                    with self._connect() as self._connection:
                        tried = 0
                        self._consume(self._connection)
                except (AMQPError, OSError, Lost, Refused, BrokerUnavailable) as error:
                    ended = why_ended(error, self._settings, self._lanes)
                    if ended.permanent:
                        raise ended from None
                    self._log.lost(ended)
                finally:
                    self._connection, self.seat = None, None
                    with self._workers.lock:
                        for lane in self._lanes.values():
                            lane.detach()
                self._stop.wait(next_try(tried, random.random()))  # noqa: S311 - not for secrets
                tried += 1
        finally:
            self._workers.end()
        if self._error is not None:
            raise self._error

    def _consume(self, connection: BlockingConnection) -> None:
        """Consume on one connection until it is lost or the member has stopped."""
        self._release = Release.of_broker(server_version(connection))
        self._settings.check_release(self._release)
        self._driver = PikaDriver(connection)
        self._workers.heard = monotonic()
        self._interruptions = Interruptions(self._settings, self._workers, self)
        names = self._find_seat(connection)
        if self.seat is None:
            return
        self._run(check_access(self._settings, self.seat, names))
        self._control = connection.channel()
        self._listen()
        self._use(names)
        self._log.consuming(len(names), self.seat)
        try:
            self._until_stopped(connection)
        finally:
            with suppress(AMQPError):
                close_in_one_step(
                    {lane.channel: lane.to_displace for lane in self._lanes.values()}, self._settings.prefetch
                )

    def _deal_with(self, lane: Lane, channel: Any, message: Message, error: Exception | None) -> None:
        self._run(self._interruptions.deal_with(lane, channel, message, error))

    def _free(self) -> None:
        self._run(self._interruptions.release(self._lanes.values()))

    def _until_stopped(self, connection: BlockingConnection) -> None:
        chores = Chores(
            {
                self._free: _TICK,
                self._inspect: 2 * _TICK,
                self._look: _LOOK_EVERY,
                self._move: _MOVE_AFTER,
            }
        )
        while not self._stop.is_set():
            connection.process_data_events(time_limit=self._interruptions.until_retry(_TICK))
            self._turn()
            for chore in chores.due():
                chore()
        self._finish(connection)

    def _find_seat(self, connection: BlockingConnection) -> tuple[str, ...]:
        """Wait for a free seat, unless the member is stopped, and return the queues."""
        for tried in count():
            names = self._fit({*self._lanes, *self._source()}, strict=not self._lanes)
            self._lanes = {name: self._lanes.get(name) or Lane(name) for name in names}
            self.seat = self._run(take_seat(self._settings.name, len(names)))
            if self.seat is not None or self._stop.is_set():
                break
            if not tried:
                self._log.standing_by(len(names))
            until = monotonic() + next_try(tried, random.random())  # noqa: S311
            while monotonic() < until and not self._stop.is_set():
                connection.process_data_events(time_limit=_TICK)
        return names

    def _turn(self) -> None:
        """Do what is due after each batch of events."""
        connection = self._connection
        assert connection is not None
        received = connection._impl.bytes_received  # noqa: SLF001 - no public sign that the broker is alive
        if received != self._bytes:
            self._bytes, self._workers.heard = received, monotonic()
        while self._calls:
            self._calls.popleft()()
        self.acknowledge()
        self._interruptions.retry()
        for lane in [each for each in self._lanes.values() if each.leaving and each.is_idle]:
            self._consume_again(lane)

    def acknowledge(self) -> None:
        """Acknowledge everything that is handled."""
        for lane, channel, tag in self._workers.progress():
            if channel is not None and channel.is_open:
                channel.basic_ack(tag, multiple=True)
                lane.acked = tag

    def reject(self, channel: Any, message: Message) -> None:
        """Dead-letter a message."""
        channel.basic_reject(message.tag, requeue=False)

    def pass_marker(self, channel: Any, message: Message) -> None:
        """Answer the marker of a drain, and acknowledge it."""
        pass_marker(channel, spec.Basic.Deliver(delivery_tag=message.tag), message.properties)

    def _finish(self, connection: BlockingConnection) -> None:
        """Wait for the handlers; afterwards the broker requeues everything else when the channels are closed."""
        deadline = monotonic() + self._settings.stop_timeout
        while not all(lane.is_idle for lane in self._lanes.values()) and monotonic() < deadline:
            connection.process_data_events(time_limit=0.05)
            self._turn()
        self._turn()
        self._log.late(self._lanes.values())

    def _run(self, commands: Generator[Command, Any, _T]) -> _T:
        return self._driver.run(commands)

    # -- queues

    def _fit(self, names: Collection[str], *, strict: bool = False) -> tuple[str, ...]:
        """Return the queues that a group can consume; if strict, raise if there are others."""
        fit = fit_queues(names, self._settings, self._release, self._lanes, strict=strict)
        return self._run(fit)

    def _use_if_fit(self, names: Collection[str]) -> None:
        """Consume those of the queues that are new and that a group can consume."""
        if new := {*names} - self._lanes.keys():
            self._use(self._fit(new))

    def _use(self, names: Collection[str]) -> None:
        """Consume these queues too, each with the priority that the new number of queues gives it."""
        for lane, priority in assign(self._lanes, names, self.seat or 0):
            self._subscribe(lane, priority)

    def _consume_again(self, lane: Lane) -> None:
        """Close the channel, so that the broker requeues what is not handled, and consume with another priority."""
        self.acknowledge()
        with self._workers.lock:
            channel = lane.detach()
        # All members do this at the same time, so even a waiting one may become active for a moment.
        close_in_one_step({channel: lane.queue if lane.careful else ""}, self._settings.prefetch)
        self._subscribe(lane, lane.priority)

    def _subscribe(self, lane: Lane, priority: int) -> None:
        assert self._connection is not None
        channel = self._connection.channel()
        channel.basic_qos(prefetch_count=self._settings.prefetch)
        channel.add_on_cancel_callback(
            lambda _: self._calls.append(partial(self._on_cancelled, lane, channel))
        )
        with self._workers.lock:
            lane.attach(channel, priority, careful=self._release.keeps_dead_consumers)
        channel.basic_consume(
            lane.queue,
            partial(self._on_delivery, lane),
            consumer_tag=consumer_tag(self._settings.name, self.seat or 0),
            arguments=self._settings.consumer_arguments(priority),
        )

    def _on_cancelled(self, lane: Lane, channel: Any) -> None:
        """Consume again after the broker has cancelled the consumer, or drop the queue if it was deleted."""
        if lane.channel is not channel:
            return
        with self._workers.lock:
            lane.detach()
        close_in_one_step({channel: ""}, self._settings.prefetch)
        if self._run(exists(lane.queue)):
            try:
                self._subscribe(lane, lane.priority)
            except ChannelClosedByBroker as refused:
                # The broker cancels consumers before it deletes a queue.
                if refused.reply_code != spec.NOT_FOUND:
                    raise
            else:
                self._log.cancelled(lane.queue)
                return
            with self._workers.lock:
                lane.detach()
        self._log.deleted(lane.queue)
        del self._lanes[lane.queue]
        self._use(())

    # -- deliveries

    def _on_delivery(
        self,
        lane: Lane,
        channel: BlockingChannel,
        method: spec.Basic.Deliver,
        properties: BasicProperties,
        body: bytes,
    ) -> None:
        message = from_pika(lane.queue, method, properties, body)
        with self._workers.lock:
            begin = lane.channel is channel and lane.add(message)
        if begin:
            self._workers.submit(lane)

    # -- questions and periodic chores

    def _on_question(
        self, channel: BlockingChannel, _: Any, properties: BasicProperties, body: bytes
    ) -> None:
        if not properties.reply_to:
            return
        if queues := queues_in(body):
            self._calls.append(partial(self._use_if_fit, queues))
        answer = status(self._settings.name, self.seat or 0, self._lanes.values())
        channel.basic_publish(
            "", properties.reply_to, answer, BasicProperties(correlation_id=properties.correlation_id)
        )

    def _inspect(self) -> None:
        """Sample the rates, and consume again where the broker has closed a channel."""
        now = monotonic()
        for lane in list(self._lanes.values()):
            lane.sample(now)
            if lane.channel is not None and lane.channel.is_closed:
                self._log.closed(lane.queue)
                with self._workers.lock:
                    lane.detach()
                self._subscribe(lane, lane.priority)

    def _look(self) -> None:
        """Ask the source for the queues again, in another thread because an answer over HTTP takes time."""
        threading.Thread(target=self._look_now, name="rabbit-chx queues", daemon=True).start()

    def _look_now(self) -> None:
        try:
            names = self._source()
        except RabbitChxError as error:
            self._log.unreadable(error)
        else:
            self._ask(self._use_if_fit, names)

    def _move(self) -> None:
        """Take a lower seat if one has been free for some time."""
        assert self.seat is not None
        if not looks_lower(self.seat, len(self._lanes), random.random()):  # noqa: S311
            return
        seat = self._run(take_seat(self._settings.name, self.seat))
        if seat is None:
            return
        self._log.moving(self.seat, seat)
        self._control.queue_delete(seat_queue(self._settings.name, self.seat))
        self.seat = seat
        self._listen()
        self._use(())

    def _listen(self) -> None:
        """Consume the questions that are sent to the seat's queue."""
        queue = seat_queue(self._settings.name, self.seat or 0)
        self._control.basic_consume(queue, self._on_question, auto_ack=True)
