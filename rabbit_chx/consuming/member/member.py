"""One member of a group: the thread that owns its connection, and how others wake it.

It delivers messages into lanes, which workers work on, and sends their requests to the broker in the order in which they
make them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from pika import BlockingConnection
from pika.exceptions import AMQPError

from rabbit_chx.broker.amqp import server_version
from rabbit_chx.broker.applying.pika_driver import PikaDriver
from rabbit_chx.broker.applying.protocol import Lost, Refused
from rabbit_chx.consuming.logs import log
from rabbit_chx.consuming.member.group_status import GroupStatus, status_of
from rabbit_chx.consuming.member.lanes import Lane, QueueLane
from rabbit_chx.consuming.member.membership import TICK, Membership
from rabbit_chx.consuming.member.reporter import Reporter
from rabbit_chx.consuming.member.runs import Running
from rabbit_chx.consuming.member.workers import Progress
from rabbit_chx.consuming.queues.sources import QueueSource
from rabbit_chx.consuming.seats import next_try
from rabbit_chx.consuming.settings import Settings
from rabbit_chx.errors import BrokerUnavailable


class Member(Running, Membership):
    """One run of a member."""

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], BlockingConnection],
        source: QueueSource,
        workers: Progress,
        reporter: Reporter,
        new_lane: Callable[[str], Lane] = QueueLane,
    ) -> None:
        super().__init__(settings, workers, source, reporter, new_lane)
        self._connect = connect
        self._patience = settings.timeouts.close
        self._woken: BlockingConnection | None = None

    # ---- from any thread

    @property
    def status(self) -> GroupStatus:
        """The current state."""
        with self.workers.lock:
            return status_of(list(self._lanes.values()), self.why_not)

    def on_progress(self) -> None:
        """Wake the member: a message can be acknowledged, or a lane has become idle."""
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
                        self._consume(server_version(self._connection))
                except (AMQPError, OSError, Lost, Refused, BrokerUnavailable) as error:
                    self._on_lost(error)
                finally:
                    self._connection = None
                    self._forget()
                self.workers.stopping.wait(next_try(tried, random.random()))  # noqa: S311 - not for secrets
                tried += 1
        finally:
            self.workers.end()
            self._reporter.close()
        if self._error is not None:
            raise self._error

    def _until_stopped(self) -> None:
        try:
            super()._until_stopped()
        finally:
            with suppress(AMQPError):
                self._close_all()

    def _stand_by(self, seconds: float) -> None:
        until = monotonic() + seconds
        while monotonic() < until and not self.workers.stopped:
            self._opened.process_data_events(time_limit=TICK)

    def _turn(self, seconds: float) -> None:
        self._opened.process_data_events(time_limit=seconds)
        self._do_due()

    def _do_due(self) -> None:
        """Do what is due after each batch of events."""
        while self._calls:
            self._calls.popleft()()
        self.acknowledge()
        self._interruptions.retry()
        for lane in [each for each in self._lanes.values() if each.leaving and each.is_idle]:
            self._consume_again(lane)

    def _finish(self) -> None:
        began = monotonic()
        while not all(lane.is_idle for lane in self._lanes.values()) and monotonic() < began + self._patience:
            self._turn(0.05)
        self._do_due()
        self._driver.run(self._interruptions.end_trial())
        self._warn_if_late()
        self.workers.end()  # before the channels are closed, so that no handler runs on when its message is redelivered

    def _warn_if_late(self) -> None:
        """Log which queues still have a running handler when the member ends."""
        late = [lane.queue for lane in self._lanes.values() if not lane.is_idle]
        if late:
            log.warning(
                "group %r: the handler did not return within %g seconds of the stop; the broker will redeliver its messages "
                "from %s",
                self._settings.name,
                self._settings.timeouts.close,
                ", ".join(map(repr, late)),
            )
