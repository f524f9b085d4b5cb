"""One member of a group: the thread that owns its connection, and how others wake it.

It delivers messages into lanes, which workers work on, and sends their requests to the broker in the order in which they
make them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from time import monotonic
from typing import Final

from pika import BlockingConnection
from pika.exceptions import AMQPError

from rabbit_chx.broker.amqp import server_version
from rabbit_chx.broker.commands import Lost, Refused, why_ended
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.consuming.member.channels import close_in_one_step
from rabbit_chx.consuming.member.lanes import GroupStatus, status_of
from rabbit_chx.consuming.member.membership import TICK, Membership
from rabbit_chx.consuming.queues.permissions import needs_of
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.working.settings import warn

_LOOK_EVERY: Final = 30.0
_MOVE_AFTER: Final = 10.0


class Member(Membership):
    """One run of a member."""

    _woken: BlockingConnection | None = None

    # ---- from any thread

    @property
    def status(self) -> GroupStatus:
        """The current state."""
        with self.workers.lock:
            return status_of(list(self._lanes.values()), self.why_not)

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
                displaced = {lane.channel: lane.to_displace for lane in self._lanes.values()}
                close_in_one_step(displaced, self._settings.prefetch)

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
            return [lane.queue for lane in self._lanes.values() if not lane.is_idle]
