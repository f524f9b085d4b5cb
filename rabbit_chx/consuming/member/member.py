"""One member of a group: the thread that owns its connection, and how others wake it.

It takes a seat, delivers messages of its queues into lanes, which workers work on, and sends their requests to the broker in the
order in which they make them. It answers questions, and has periodic chores.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import closing, suppress
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from time import monotonic
from typing import Any, Final

from pika import BasicProperties, BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from rabbit_chx.base.names import seat_queue
from rabbit_chx.base.outages import Backoff
from rabbit_chx.base.replies import is_direct
from rabbit_chx.broker.amqp import server_version
from rabbit_chx.broker.commands import Command, Lost, Refused, exists, is_missing, routed, why_ended
from rabbit_chx.broker.deliveries import RawDelivery
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.broker.receiving import consume
from rabbit_chx.consuming.member.channels import acknowledge, close_in_one_step
from rabbit_chx.consuming.member.interruptions import Interruptions
from rabbit_chx.consuming.member.lanes import GroupStatus, Lane, QueueLane, assign, status_of
from rabbit_chx.consuming.member.responder import Responder, reply
from rabbit_chx.consuming.member.roll_call import holds_in, status
from rabbit_chx.consuming.member.undeliverable import Undeliverable
from rabbit_chx.consuming.queues.permissions import needs_of
from rabbit_chx.consuming.queues.queues import check_access, fit_queues
from rabbit_chx.consuming.queues.sources import QueueSource
from rabbit_chx.consuming.seats import consumer_tag, find_free, looks_lower, take_seat
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.mirror.releases import Release
from rabbit_chx.working.markers import Hold
from rabbit_chx.working.messages import Delivery, from_raw
from rabbit_chx.working.received import contained
from rabbit_chx.working.runs import Running
from rabbit_chx.working.settings import Settings, log, warn
from rabbit_chx.working.trials import is_suspect
from rabbit_chx.working.workers import Progress

TICK: Final = 0.5
"""The longest wait for events, in seconds."""
_LOOK_EVERY: Final = 30.0
_MOVE_AFTER: Final = 10.0
_QUESTION: Final = re.compile(r"[0-9a-f.]{1,40}")
"""What identifies a question; the answer repeats it."""


class Member(Running):
    """One run of a member. Only the methods under "from any thread" and `_read_again` run outside the thread of its connection."""

    _woken: BlockingConnection | None = None

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], BlockingConnection],
        source: QueueSource,
        workers: Progress,
        responder: Responder,
        new_lane: Callable[[str], Lane] = QueueLane,
    ) -> None:
        super().__init__(settings, workers)
        self.seat: int | None = None
        self._settings = settings
        self._connect = connect
        self._source = source
        self._new_lane = new_lane
        self._responder = responder
        self._lanes: dict[str, Lane] = {}
        """Those of the queues that are consumed."""
        self._known: dict[str, Lane] = {}
        """These and those of deleted queues: a handler may still run, and the queue may be declared again."""
        self._refused: set[str] = set()  # queues that were found later and that the user may not read
        self._unfit: dict[str, str] = {}  # why queues are not consumed, as it was logged
        self._undeliverable = Undeliverable()
        self._search: Generator[Command, Any, None] | None = None
        """The last search for a lower seat."""
        self._connection: BlockingConnection | None = None
        self._driver: PikaDriver
        self._release: Release
        self._interruptions: Interruptions
        self._control: BlockingChannel
        """The channel for questions and answers."""

    @property
    def _opened(self) -> BlockingConnection:
        assert self._connection is not None
        return self._connection

    # ---- from any thread

    @property
    def status(self) -> GroupStatus:
        """The current state."""
        with self.workers.lock:
            return status_of(list(self._known.values()), self.why_not)

    def _wake(self) -> None:
        connection = self._connection
        if connection is None or connection is self._woken:
            return
        self._woken = connection  # not just True, because a lost connection never calls back
        try:
            connection.add_callback_threadsafe(self._on_woken)
        except AMQPError:  # the connection is closed, so its thread is awake
            self._woken = None

    on_progress = _wake

    def _on_woken(self) -> None:
        self._woken = None

    def on_interruption(self, lane: Lane, channel: Any, message: Delivery, error: Exception | None) -> None:
        """Decide later what to do with a message that was not handled."""
        self._ask(lambda: self._driver.run(self._interruptions.deal_with(lane, channel, message, error)))

    # ---- in the thread of the connection

    def run(self) -> None:
        """Consume until `stop`, and reconnect whenever the connection is lost.

        Raises:
            RabbitChxError: the member cannot consume these queues; the message says why.
        """
        self.workers.start(self)
        with closing(self._responder), self._ending():
            while not self.workers.stopped:
                try:
                    with self._connect() as self._connection:
                        self._driver = PikaDriver(self._connection)
                        self._consume(server_version(self._connection))
                        if self.seat is not None:
                            self._until_stopped()
                except (AMQPError, OSError, Lost, Refused, BrokerUnavailable) as error:
                    self._on_lost(error)
                finally:
                    self._connection = None
                    self._forget()
                self.workers.stopping.wait(self._backoff.failed())
        if self._error is not None:
            raise self._error

    def _on_lost(self, error: Exception) -> None:
        """Log why the connection ended; raise if another connection would end the same way."""
        ended = why_ended(error, needs_of(self._settings, self._lanes), "a member")
        if ended.permanent:
            raise ended from None
        cause = self._undeliverable.why(error)
        self.why_not = cause or str(ended)
        if cause:
            warn(self._settings.name, cause)
        else:
            self._outage.failed(ended)

    def _forget(self) -> None:
        """Forget the deliveries of the lost connection; the broker redelivers them."""
        self.seat = None
        for lane in self._lanes.values():
            self._detach(lane)

    def _until_stopped(self) -> None:
        every: dict[Callable[[], object], float] = {
            self._acknowledge_all: TICK,
            self._free: TICK,
            self._inspect: 2 * TICK,
            self._listen: self._settings.heartbeat / 3,
            self._look: _LOOK_EVERY,
            self._move: _MOVE_AFTER,
        }
        due = {chore: monotonic() + seconds for chore, seconds in every.items()}
        try:
            while not self.workers.stopped:
                self._turn(self._interruptions.until_retry(TICK))
                for chore in [each for each, at in due.items() if at <= monotonic()]:
                    chore()
                    due[chore] = monotonic() + every[chore]
            self._finish()
        finally:
            with suppress(AMQPError):
                self._acknowledge_all()  # not only a lost connection ends up here
                self._close({lane.channel: lane.unsettled for lane in self._lanes.values()})

    def _turn(self, seconds: float) -> None:
        """Wait for events, for at most ``seconds``; then do what is due."""
        self._opened.process_data_events(time_limit=seconds)
        self._do_due()

    def _do_due(self) -> None:
        """Do what is due after each batch of events."""
        while self._calls:
            try:
                self._calls.popleft()()
            except InvalidValue as error:  # for example, the parking queue was deleted
                self.fail(error)
        self._acknowledge(self.workers.progress(), lazily=True)
        self._interruptions.retry()
        for lane in [each for each in self._lanes.values() if each.leaving and each.is_idle]:
            self._consume_again(lane)

    def _finish(self) -> None:
        """Wait for the handlers; the broker requeues everything else when the channels are closed."""
        self._wait_for_handlers(self._turn)
        self._do_due()
        self._acknowledge_all()
        self._driver.run(self._interruptions.end_trial())
        self._end_workers()  # before the channels are closed, so that no handler runs on when its message is redelivered

    def _busy(self) -> list[str]:
        with self.workers.lock:  # a worker that took no notice of the stop yet may be taking a message
            return [lane.queue for lane in self._known.values() if not lane.is_idle]

    # ---- one connection

    def _consume(self, version: str) -> None:
        """Begin to consume on one connection, unless the member is stopped before it has a seat."""
        self._release = Release._of_broker(version)
        self._settings.check_release(self._release)
        self.workers.heard = monotonic()
        self._interruptions = Interruptions(self._settings, self.workers, self._acknowledge, self.fail)
        names = self._find_seat()
        if self.seat is None:
            return
        self._driver.run(check_access(self._settings, self.seat, names))
        self._responder.publish(self._check_publishing(self._seat_queue))
        self._control = self._opened.channel()
        self._answer_questions()
        self._use(names)
        log.info("group %r: consuming %d queues in seat %d", self._settings.name, len(names), self.seat)
        self.why_not = ""
        self._outage.ended()
        self._backoff.works()

    def _find_seat(self) -> tuple[str, ...]:
        """Wait for a free seat, unless the member is stopped, and return the queues."""
        backoff = Backoff()
        stands_by = False
        while True:
            source = self._read_again() if self._known else self._source()
            names = self._fit({*self._lanes, *source} - self._refused, strict=not self._known)
            self._lanes = {name: self._lane_of(name) for name in names}
            seats: Iterable[int] = range(len(names))
            # Publishes, but if an alarm stops this connection, a member without a seat loses nothing.
            if stands_by:
                seats = self._driver.run(find_free(self._settings.name, len(names)))
            self.seat = self._driver.run(take_seat(self._settings.name, seats))
            if self.seat is not None or self.workers.stopped:
                break
            self.why_not = f"all {len(names)} seats are taken" if names else "none of its queues exists"
            self._outage.ended()
            if not stands_by:
                log.info("group %r: %s; standing by", self._settings.name, self.why_not)
            stands_by = True
            until = monotonic() + backoff.failed()
            while monotonic() < until and not self.workers.stopped:
                self._opened.process_data_events(time_limit=TICK)
        return names

    def _check_publishing(self, queue: str) -> Generator[Command, Any, None]:
        """Publish as an answer does; a missing permission ends the member. Runs in the thread of the responder."""
        try:
            yield from routed(queue, b"", {"expiration": "0"})
        except Refused as refused:
            self._calls.append(partial(self._raise, refused))

    def _raise(self, error: Exception) -> None:
        raise error

    def _detach(self, lane: Lane) -> Any:
        with self.workers.lock:
            return lane.detach()

    # ---- queues

    def _fit(self, names: Collection[str], *, strict: bool = False) -> tuple[str, ...]:
        """Return the queues that a group can consume; if strict, raise if there are others."""
        fit = fit_queues(names, self._settings, self._release, self._unfit, self._lanes, strict=strict)
        return self._driver.run(fit)

    def _use_if_fit(self, names: Collection[str]) -> None:
        """Consume those of the queues that are new and that a group can consume."""
        new = {*names} - self._lanes.keys() - self._refused
        if fit := self._fit(new) if new else ():
            self._use(fit, found_later=True)
            self._use(())  # if some are left out, others get another priority

    def _use_of(self, holds: Iterable[Hold]) -> None:
        """Consume the queues of a change: of the holds up to the first that does not exist, because anyone who can ask can name such.

        Holds that were deleted meanwhile need no more; the others are named again every few seconds.
        """
        for hold in holds:
            try:
                if not self._driver.run(exists(hold.name)):
                    return
                new = {hold.queue, *hold.losing} - self._lanes.keys()
                self._use_if_fit([name for name in new if self._driver.run(exists(name))])
            except Refused as refused:
                warn(
                    self._settings.name, f"the queues of hold {hold.name!r} are not consumed: {refused.text}"
                )

    def _use(self, names: Collection[str], *, found_later: bool = False) -> None:
        """Consume these queues too, each with the priority that the new number of queues gives it."""
        for lane, priority in assign(self._lanes, names, self.seat or 0, self._lane_of):
            try:
                with self._undeliverable.consuming(lane.queue, self._pause):
                    self._subscribe(lane, priority)
            except ChannelClosedByBroker as error:
                if not (found_later and why_ended(error).permanent):
                    raise
                self._leave_out(lane.queue, error)

    def _leave_out(self, queue: str, error: ChannelClosedByBroker) -> None:
        """Go on without a queue that was found later and that the user may not read."""
        why = why_ended(error, needs_of(self._settings, [queue]), "a member")
        warn(self._settings.name, f"queue {queue!r} is not consumed until the member is restarted: {why}")
        self._detach(self._lanes.pop(queue))
        self._refused.add(queue)

    def _lane_of(self, queue: str) -> Lane:
        if queue not in self._known:
            self._known[queue] = self._new_lane(queue)
        return self._known[queue]

    def _pause(self, seconds: float) -> bool:
        """Wait for events; return whether the member continues."""
        if not self.workers.stopped:
            self._opened.process_data_events(seconds)
        return not self.workers.stopped

    def _consume_again(self, lane: Lane) -> None:
        """Close the channel, so that the broker requeues what is not handled, and consume with another priority."""
        self._acknowledge([lane])
        channel = self._detach(lane)
        # All members do this at the same time, so even a waiting one may become active for a moment.
        self._close({channel: lane.queue})
        self._subscribe(lane, lane.priority)

    def _on_cancelled(self, lane: Lane, channel: Any) -> None:
        """Consume again after the broker has ended the consumer, or drop the queue if it was deleted."""
        if lane.channel is not channel:
            return
        self._detach(lane)
        self._close({channel: ""})
        if self._driver.run(exists(lane.queue)):
            try:
                self._subscribe(lane, lane.priority)
            except ChannelClosedByBroker as error:
                # The broker cancels consumers before it deletes a queue.
                if not is_missing(error.reply_text):
                    raise
            else:
                text = "group %r: the broker ended the consumer of queue %r; did the handler exceed consumer_timeout?"
                log.warning(text, self._settings.name, lane.queue)
                return
            self._detach(lane)
        log.info("group %r: queue %r was deleted", self._settings.name, lane.queue)
        del self._lanes[lane.queue]
        self._use(())

    def _subscribe(self, lane: Lane, priority: int) -> None:
        channel = self._opened.channel()
        channel.basic_qos(prefetch_count=self._settings.prefetch)
        channel.add_on_cancel_callback(
            lambda _: self._calls.append(partial(self._on_cancelled, lane, channel))
        )
        with self.workers.lock:
            lane.attach(channel, priority)
        consume(
            channel,
            lane.queue,
            partial(self._on_deliveries, lane, channel),
            consumer_tag=consumer_tag(self._settings.name, self.seat or 0),
            arguments=self._settings.consumer_arguments(priority),
        )

    def _close(self, channels: Mapping[BlockingChannel | None, str]) -> None:
        close_in_one_step(channels, self._settings.prefetch, displace=self._release._keeps_dead_consumers)

    # ---- messages

    def _on_deliveries(self, lane: Lane, channel: BlockingChannel, deliveries: list[RawDelivery]) -> None:
        """Add messages to their lane, unless the lane has another channel by now."""
        messages = [from_raw(lane.queue, each) for each in deliveries]
        for message in messages:
            if message.redelivered:
                message.suspect = contained(partial(is_suspect, message, self._settings), False, message)
        lane.read(messages)
        with self.workers.lock:
            begin = lane.add(messages) if lane.channel is channel else 0
        for _ in range(begin):
            self.workers.submit(lane)

    def _acknowledge_all(self) -> None:
        self._acknowledge(self._lanes.values())

    def _acknowledge(self, lanes: Iterable[Lane], *, lazily: bool = False) -> None:
        """Acknowledge everything of these lanes that is handled."""
        with self.workers.lock:
            found = [(lane.channel, tags) for lane in lanes if (tags := lane.to_acknowledge(lazily=lazily))]
        for channel, tags in found:
            acknowledge(channel, tags)

    # ---- questions and periodic chores

    @property
    def _seat_queue(self) -> str:
        return seat_queue(self._settings.name, self.seat or 0)

    def _answer_questions(self) -> None:
        """Consume the questions that are sent to the seat's queue."""
        self._control.basic_consume(self._seat_queue, self._on_question, auto_ack=True)

    def _on_question(self, _: BlockingChannel, __: Any, asked: BasicProperties, body: bytes) -> None:
        contained(partial(self._answer, asked, body), None, f"a question to {self._seat_queue}")

    def _answer(self, asked: BasicProperties, body: bytes) -> None:
        """Answer a question, and consume the queues of the holds that it names."""
        number = asked.correlation_id
        if not (is_direct(asked.reply_to) and isinstance(number, str) and _QUESTION.fullmatch(number)):
            return
        if holds := holds_in(body):
            self._ask(partial(self._use_of, holds))
        with self.workers.lock:
            answer = status(self._settings.name, self.seat or 0, self._lanes.values())
        self._responder.publish(reply(asked.reply_to, answer, correlation_id=number))

    def _listen(self) -> None:
        """Wait for an answer of the broker: data that arrived while the process was paused proves nothing."""
        if not self._driver.run(self._interruptions.listen(self._seat_queue)):
            raise Lost("the queue of this member's seat is gone")  # Khepri before 4.3, after a partition

    def _free(self) -> None:
        self._driver.run(self._interruptions.release(self._lanes.values()))
        self._driver.run(self._interruptions.end_dropped_trial())

    def _inspect(self) -> None:
        """Sample the rates, and consume again where the broker has closed a channel."""
        now = monotonic()
        for lane in list(self._lanes.values()):
            with self.workers.lock:
                lane.sample(now)
            if lane.channel is not None and lane.channel.is_closed:
                self._on_cancelled(lane, lane.channel)

    def _look(self) -> None:
        """Ask the source for the queues again, in a thread because an answer over HTTP takes time; consume those that are new."""
        threading.Thread(
            target=lambda: self._ask(partial(self._use_if_fit, self._read_again())),
            name="rabbit-chx queues",
            daemon=True,
        ).start()

    def _read_again(self) -> Collection[str]:
        """Ask the source for the queues, from any thread; none if it fails, because the member knows some already."""
        try:
            return self._source()
        except RabbitChxError as error:
            log.warning("group %r: the queues could not be read again: %s", self._settings.name, error)
            return ()

    def _move(self) -> None:
        """Look for a lower free seat in the background, unless the last search waits, because answers wait behind it."""
        assert self.seat is not None
        if self._search is not None and getgeneratorstate(self._search) != GEN_CLOSED:
            return
        if looks_lower(self.seat, len(self._lanes), random.random()):  # noqa: S311
            self._search = self._look_lower(self.seat)
            self._responder.publish(self._search)

    def _look_lower(self, seat: int) -> Generator[Command, Any, None]:
        """Runs in the thread of the responder."""
        for lower in (yield from find_free(self._settings.name, seat)):
            self._calls.append(partial(self._move_to, lower))

    def _move_to(self, lower: int) -> None:
        """Move to a lower seat, unless another member has just taken it or this one is about to end."""
        if self.workers.stopped or self.seat is None or self.seat <= lower:
            return
        if self._driver.run(take_seat(self._settings.name, [lower])) is None:
            return
        log.info("group %r: moving from seat %d to seat %d", self._settings.name, self.seat, lower)
        self._control.queue_delete(self._seat_queue)
        self.seat = lower
        self._answer_questions()
        self._use(())
