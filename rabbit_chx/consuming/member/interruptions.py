"""Deal with special cases: markers, failed messages, and messages that may belong to another member by now.

The generators yield commands for a driver. Everything here runs in the thread of the connection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from time import monotonic
from typing import Any, Final, TypeVar

from pika import spec
from pika.exceptions import AMQPError

from rabbit_chx.base.outages import Backoff
from rabbit_chx.base.text import described
from rabbit_chx.broker.applying.handover import pass_marker
from rabbit_chx.broker.commands import Command, Lost, Refused, exists
from rabbit_chx.consuming.member.lanes import Lane
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.working import trials
from rabbit_chx.working.attempts import Attempts
from rabbit_chx.working.markers import Kind, hold_of, kind_of
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.parking import origin_of, park
from rabbit_chx.working.settings import Settings, log, warn
from rabbit_chx.working.workers import Progress

_EXPECTED: Final = (AMQPError, OSError, Lost, Refused, RabbitChxError)
"""Errors of the connection, and those that the operator has to deal with. The message is to blame for any other."""
_ABSENT_FOR: Final = 1.0
"""How long a hold that was never found must be absent, in seconds: on Khepri, a node may learn of a new queue late."""
_T = TypeVar("_T")


class Interruptions(Attempts):
    """The paused lanes of one connection."""

    def __init__(
        self,
        settings: Settings,
        workers: Progress,
        acknowledge: Callable[[Iterable[Lane]], object],
        fail: Callable[[BaseException], object],
    ) -> None:
        super().__init__(settings, workers, _described)
        self._most_crashes = settings.crashes
        self._acknowledge, self._fail = acknowledge, fail
        self._suspects: list[tuple[Lane, Any, Delivery]] = []
        """Messages that wait until another one has been tried."""
        self._parking = Backoff()
        self._warned = False
        """Whether the log says that the parking queue rejects messages."""

    def deal_with(
        self, lane: Lane, channel: Any, message: Delivery, error: Exception | None
    ) -> Generator[Command, Any, None]:
        """Decide what to do with a message that was not handled. If the message makes that fail, it has failed itself."""
        try:
            yield from self._deal_with(lane, channel, message, error)
        except Exception as wrong:
            if isinstance(wrong, _EXPECTED):
                raise
            lane.failed += 1
            then = f"on_failure={self._settings.on_failure!r}"
            log.warning(
                "group %r: a message of queue %r made rabbit-chx fail; %s",
                *(self._settings.name, message.queue, then),
                exc_info=True,
            )
            yield from self._on_failed(lane, channel, message, wrong, Refused(0, described(wrong)))

    def _deal_with(
        self, lane: Lane, channel: Any, message: Delivery, error: Exception | None
    ) -> Generator[Command, Any, None]:
        survived = message is self._workers.noted and self._workers.survived
        if survived or (error is not None and message is self._workers.noted):
            yield from self._or_pause(lane, channel, message, self.end_trial())
        if message.given_up is not None:
            yield from self._on_failed(lane, channel, message, *message.given_up)
        elif survived:
            self._workers.finished(lane, channel, message)
            self._workers.submit(lane)
        elif error is not None:
            yield from self._on_failure(lane, channel, message, error)
        elif kind_of(message) is not Kind.MESSAGE:
            yield from self._on_marker(lane, channel, message)
        elif message.suspect and message is not self._workers.noted:
            yield from self._try(lane, channel, message)
        elif self.pause(lane, channel, message):
            # The broker was silent so long that another member may have the message by now.
            yield from self.listen(lane.queue)
            self.resume(lane, channel, message)

    def listen(self, queue: str) -> Generator[Command, Any, bool]:
        """Ask the broker whether a queue exists: any answer proves that it still knew the connection when the question was sent."""
        asked = monotonic()
        found = yield from exists(queue)
        self._workers.heard = max(self._workers.heard, asked)
        return found

    # ---- failures

    def _on_failure(
        self, lane: Lane, channel: Any, message: Delivery, error: Exception
    ) -> Generator[Command, Any, None]:
        """Retry later, or apply ``on_failure`` after the last attempt."""
        before = ""
        if message.key_error is not None:
            before = "the key function"
            message.attempt -= 1  # no call of the handler
        if not self.planned(lane, channel, message, error, before=before, place="queue"):
            yield from self._on_failed(lane, channel, message, error)

    def _on_failed(
        self, lane: Lane, channel: Any, message: Delivery, error: Exception, refused: Refused | None = None
    ) -> Generator[Command, Any, None]:
        """Apply ``on_failure``. A message that was refused is not parked whole."""
        if self._settings.on_failure == "stop":
            self._fail(error)
            self.put_back(lane, channel, message)
        elif lane.channel is channel:
            given_up = self._give_up(lane, channel, message, error, refused)
            if not (yield from self._or_pause(lane, channel, message, given_up)):
                return
        else:
            self.put_back(lane, channel, message)
        self._workers.submit(lane)

    def _or_pause(
        self, lane: Lane, channel: Any, message: Delivery, commands: Generator[Command, Any, _T]
    ) -> Generator[Command, Any, _T]:
        """Do commands; after an error of the connection, no later message may be handled before this one."""
        try:
            return (yield from commands)
        except BaseException as error:
            self._pause_unless_own(lane, channel, message, error)
            raise

    def _pause_unless_own(self, lane: Lane, channel: Any, message: Delivery, error: BaseException) -> None:
        """The broker redelivers the message, unless the error is one of this package, which the message caused."""
        if isinstance(error, _EXPECTED) or not isinstance(error, Exception):
            self.pause(lane, channel, message)

    def _give_up(
        self, lane: Lane, channel: Any, message: Delivery, error: Exception, refused: Refused | None = None
    ) -> Generator[Command, Any, bool]:
        """Dead-letter or park a message, after acknowledging the messages before it; False if it waits for the parking queue."""
        if self._settings.parking_queue is None:
            self._acknowledge([lane])
            channel.basic_reject(message.tag, requeue=False)
            self._settled(lane, channel, message)
        else:
            origin = origin_of(message, self._settings.name, error)
            try:
                yield from park(self._settings.parking_queue, message, origin, refused)
            except BrokerUnavailable as full:
                if not self._warned:
                    self._warned = True
                    warn(self._settings.name, f"{full}; trying again")
                message.given_up = error, refused
                self.pause_for(self._parking.failed(), lane, channel, message)
                return False
            self._parking.works()
            self._warned = False
            self._workers.finished(lane, channel, message)
            # If the next suspect message ended the process before that, this one would come back and be parked again.
            self._acknowledge([lane])
        return True

    # ---- suspect messages

    def _try(self, lane: Lane, channel: Any, message: Delivery) -> Generator[Command, Any, None]:
        """Let the handler have a suspect message, or give it up because it has ended too many processes."""
        if self._workers.is_trying:
            if self.pause(lane, channel, message):
                self._suspects.append((lane, channel, message))
            return
        yield from self._or_pause(lane, channel, message, self.end_dropped_trial())
        if lane.channel is channel:
            begun = self._begin_trial(lane, channel, message)
            if not (yield from self._or_pause(lane, channel, message, begun)):
                return
        else:
            self.put_back(lane, channel, message)
        self._workers.submit(lane)

    def _begin_trial(self, lane: Lane, channel: Any, message: Delivery) -> Generator[Command, Any, bool]:
        """Leave a note, or give the message up; False if it waits for the parking queue."""
        group, most = self._settings.name, self._most_crashes
        crashes = yield from trials.begun(group, message.queue)
        if most is not None and crashes >= most:
            error = RuntimeError(f"{crashes} processes have ended while they handled the message")
            lane.failed += 1
            message.attempt -= 1  # no call of the handler
            log.warning(
                "group %r: %s: %s; on_failure=%r",
                *(group, _described(message), error, self._settings.on_failure),
            )
            yield from trials.end(group, message.queue)
            return (yield from self._give_up(lane, channel, message, error))
        # A message before this one that came again would take back the note.
        self._acknowledge([lane])
        with self._workers.lock:
            self._workers.noted, self._workers.noted_in = message, lane
            self._workers.survived = False
        # Noted before: if the connection is lost meanwhile, the broker may have the note.
        yield from trials.begin(group, message.queue)
        with self._workers.lock:
            lane.put_back(message, channel)
        return True

    def end_trial(self) -> Generator[Command, Any, None]:
        """Note that the process has survived the suspect message that is being tried, if any."""
        yield from self._end_trial(trials.end)

    def end_dropped_trial(self) -> Generator[Command, Any, None]:
        """Take the note back about a suspect message that was dropped with its channel, which is no end of a process."""
        if self._workers.noted is not None and not self._workers.is_trying:
            yield from self._end_trial(trials.take_back)

    def _end_trial(
        self, take_back: Callable[[str, str], Generator[Command, Any, None]]
    ) -> Generator[Command, Any, None]:
        if self._workers.noted is not None:
            yield from take_back(self._settings.name, self._workers.noted.queue)
            self._workers.noted = None
        suspects, self._suspects = self._suspects, []
        for each in suspects:
            self.resume(*each)

    # ---- markers

    def _on_marker(self, lane: Lane, channel: Any, message: Delivery) -> Generator[Command, Any, None]:
        """Hold the lane, or acknowledge everything before a drain's marker and answer the marker."""
        if lane.channel is not channel:
            self.put_back(lane, channel, message)
            self._workers.submit(lane)
        elif hold := hold_of(message):
            if self.pause(lane, channel, message):
                lane.hold, lane.absent_since = hold.name, math.inf
                log.info("group %r: queue %r is held", self._settings.name, lane.queue)
                yield from self.release([lane])  # the marker may be left from an earlier change
        else:
            try:
                self._acknowledge([lane])
                names = {"exchange": message.exchange, "routing_key": message.routing_key}
                pass_marker(channel, spec.Basic.Deliver(delivery_tag=message.tag, **names), message)
            except BaseException as error:
                self._pause_unless_own(lane, channel, message, error)
                raise
            self._settled(lane, channel, message)
            self._workers.submit(lane)

    def release(self, lanes: Iterable[Lane]) -> Generator[Command, Any, None]:
        """Resume the held lanes whose holds are deleted."""
        lanes = list(lanes)
        asked, there = monotonic(), {}
        for hold in {lane.hold for lane in lanes if lane.hold}:
            there[hold] = yield from exists(hold)
        for lane in lanes:
            if lane.hold is None or there.get(lane.hold, True):
                lane.absent_since = -math.inf  # once it was found, it is absent only if it was deleted
                continue
            lane.absent_since = min(lane.absent_since, asked)
            if asked - lane.absent_since < _ABSENT_FOR:
                continue
            log.info("group %r: queue %r is released", self._settings.name, lane.queue)
            channel = lane.channel
            with self._workers.lock:
                marker = lane.release()
            if marker is not None:
                self._workers.finished(lane, channel, marker)
                self.resume(lane, channel, marker)

    def _settled(self, lane: Lane, channel: Any, message: Delivery) -> None:
        """Mark a message as already acknowledged or rejected."""
        with self._workers.lock:
            more = lane.finish(message, channel, settled=True)
        for _ in range(more):
            self._workers.submit(lane)


def _described(message: Delivery) -> str:
    return f"queue {message.queue!r}, key {message.routing_key!r}, message_id {message.message_id!r}"
