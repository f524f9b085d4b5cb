"""The threads that run the handler, each on one lane at a time; and the decisions shared with `LoopWorkers`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias

from rabbit_chx.base.unfair import UnfairCondition
from rabbit_chx.broker.applying.handover import MARKER
from rabbit_chx.messages.message import Message
from rabbit_chx.working.markers import HOLD, Kind, kind_of
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.retries import check_returned
from rabbit_chx.working.settings import log

Taken: TypeAlias = tuple[Any, Any]
"""The channel that delivered a message, and the message."""
TURN: Final = 0.05
"""Seconds that a worker spends on one lane while other lanes wait."""
_WARN_EVERY: Final = 60.0


class Work(ABC):
    """A lane, as far as workers know it: a queue or a stream whose messages are handed out in order.

    Its caller holds the lock of the workers.
    """

    channel: Any = None
    """The channel on which the queue is consumed now, or what stands for the assignment of the stream, if any."""
    failed = 0
    """How many attempts have failed."""

    # ---- what workers do

    @abstractmethod
    def take(self) -> Any | None:
        """Take the next message; without one, the worker has left the lane."""

    @abstractmethod
    def leave(self) -> None:
        """Mark that a worker has left the lane."""

    @abstractmethod
    def abandon(self) -> None:
        """Mark that a worker has left the lane in the middle of a message, after which no other is handled."""

    @abstractmethod
    def finish(self, message: Any, channel: Any) -> int:
        """Mark a message that was taken as handled; return how many more workers the lane needs.

        It can be acknowledged on the channel that delivered it.
        """

    @abstractmethod
    def put_back(self, message: Any, channel: Any) -> bool:
        """Put a message that was taken back to its place; return False if its channel is no longer the lane's."""

    # ---- what the member does

    @abstractmethod
    def pause(self, message: Any, channel: Any) -> tuple[bool, bool]:
        """Put a message that was taken back to its place, and wait before it.

        Returns:
            Whether it is paused, which it is not if its channel is no longer the lane's; and whether to submit the lane to
            a worker, for other messages.
        """

    @abstractmethod
    def resume(self, message: Any, channel: Any) -> bool:
        """Continue with a message that was paused; return whether to submit the lane to a worker."""

    def is_full_behind(self, message: Any) -> bool:  # noqa: ARG002 - only of keys
        """Whether so many messages of its key wait behind a message that other keys might soon get no message."""
        return False


class OneByOne(Work):
    """A lane that one worker at a time may have, and that waits as a whole."""

    busy = False
    """Whether a worker has the lane or is about to take it."""
    paused = False
    """Whether a busy lane waits for a release or for the next attempt at a message."""

    @property
    def is_idle(self) -> bool:
        """Whether no worker has the lane or is about to take it."""
        return self.paused or not self.busy

    def leave(self) -> None:
        """Mark that the worker has left the lane."""
        self.busy = False

    abandon = leave

    def pause(self, message: Any, channel: Any) -> tuple[bool, bool]:
        """Put what was taken back to the front, and pause the lane."""
        self.paused = self.put_back(message, channel)
        return self.paused, not self.paused

    def resume(self, message: Any, channel: Any) -> bool:  # noqa: ARG002 - the first one
        """Continue with the lane."""
        if self.channel is not channel or not self.paused:
            return False
        self.paused = False
        return True

    def end_pause(self) -> None:
        """End a pause, so that the lane can begin again with other messages."""
        if self.paused:
            self.paused = self.busy = False


class Owner(Protocol):
    """The member. Any worker may call it, from its own thread."""

    def on_progress(self) -> None:
        """Called when a message can be acknowledged, or a lane has become idle."""

    def fail(self, error: BaseException) -> None:
        """Called with an error that does not belong to a message, such as SystemExit."""

    def on_interruption(self, lane: Any, channel: Any, message: Any, error: Exception | None) -> None:
        """Called with a message that was not handled; the lane stays busy until the owner submits it again."""


class Progress(ABC):
    """What becomes of each message, and which lanes have messages to acknowledge."""

    def __init__(self, heartbeat: int) -> None:
        self.lock: Final = UnfairCondition()
        """The lock that guards all lanes."""
        self.stopping: Final = threading.Event()
        """Set when no further message is given out."""
        self.heard = 0.0
        """The time of the last sign that the broker still knows the connection."""
        self._heartbeat = heartbeat
        self.noted: Any = None
        """The suspect message that is being tried, with a note on the broker (`trials`)."""
        self.noted_in: Any = None
        """Its lane."""
        self.survived = False
        """Whether its handler has returned."""
        self._progress: set[Work] = set()
        self._owner: Owner
        self._warn_again = 0.0

    @property
    def stopped(self) -> bool:
        """Whether no further message is given out."""
        return self.stopping.is_set()

    def start(self, owner: Owner) -> None:
        """Begin to work, and to report to the member."""
        self._owner = owner

    @abstractmethod
    def submit(self, lane: Work) -> None:
        """Queue a busy lane for the next free worker."""

    @abstractmethod
    def end(self) -> None:
        """End the workers after their current messages; what can be cancelled is cancelled now."""

    @property
    def broker_is_silent(self) -> bool:
        """Whether the broker has been silent for so long that another member may have the messages by now."""
        return monotonic() - self.heard > self._heartbeat

    def next_of(self, lane: Work, handled: Taken | None = None) -> Taken | None:
        """Mark what was handled, if anything, and take the next message; None if the worker is done with the lane."""
        with self.lock:
            more, news = (0, False) if handled is None else self._finish(lane, *handled)
            channel, message = lane.channel, None
            if self.stopped:
                lane.leave()
            else:
                message = lane.take()
        if more or news:
            self._tell(lane, more)
        if message is None:
            self._owner.on_progress()
            return None
        kind = Kind.MESSAGE
        if message.may_be_ours:
            kind = kind_of(message)
            if kind is Kind.MESSAGE and (HOLD in message.headers or MARKER in message.headers):
                self._warn_of(message)
        if kind is not Kind.MESSAGE or self._must_ask(message):
            self._owner.on_interruption(lane, channel, message, message.key_error)
            return None
        return channel, message

    @property
    def is_trying(self) -> bool:
        """Whether a suspect message is being tried, and was not dropped with its connection before a worker took it."""
        with self.lock:
            return self.noted is not None and any(each is self.noted for each in self.noted_in.unfinished)

    def _must_ask(self, message: Delivery) -> bool:
        """Whether the handler must not get a message before the member has decided about it."""
        if message.key_error is not None or message.given_up is not None:
            return True
        return (message.suspect and message is not self.noted) or self.broker_is_silent

    def was_trial(self, lane: Work, channel: Any, message: Any) -> bool:
        """Whether a handled message is the suspect one, whose note the member takes back before it goes on with the lane."""
        if message is not self.noted:
            return False
        self.survived = True
        self._owner.on_interruption(lane, channel, message, None)
        return True

    def _warn_of(self, message: Delivery) -> None:
        """Log that a message looks like a marker, at most once a minute: any publisher can send many."""
        if monotonic() > self._warn_again:
            self._warn_again = monotonic() + _WARN_EVERY
            text = "%r has the headers of a marker, but no change of the queues has sent it; it goes to the handler"
            log.warning(text, message)

    def finished(self, lane: Work, channel: Any, message: Delivery) -> None:
        """Mark a message as handled, so that it can be acknowledged."""
        with self.lock:
            more, _ = self._finish(lane, channel, message)
        self._tell(lane, more)

    def _finish(self, lane: Work, channel: Any, message: Any) -> tuple[int, bool]:
        """Return how many more workers the lane needs, and whether the member must be told that the lane has progress."""
        more = lane.finish(message, channel)
        told = lane in self._progress
        self._progress.add(lane)
        return more, not told

    def _tell(self, lane: Work, more: int) -> None:
        for _ in range(more):
            self.submit(lane)
        self._owner.on_progress()

    def failed(self, lane: Work, error: BaseException) -> None:
        """End the member because of an error that does not belong to a message."""
        self._owner.fail(error)  # first, so that no later message is handled and acknowledges this one
        with self.lock:
            lane.abandon()

    def progress(self) -> set[Any]:
        """The lanes of which a message was handled since the last call."""
        with self.lock:
            lanes, self._progress = self._progress, set()
        return lanes


class Workers(Progress):
    """Threads that call the handler with the messages of lanes."""

    def __init__(self, handler: Callable[[Message], object], threads: int, heartbeat: int) -> None:
        super().__init__(heartbeat)
        self._handler = handler
        self._ready: SimpleQueue[Work | None] = SimpleQueue()
        self._threads = threads

    def start(self, owner: Owner) -> None:
        """Start the threads. They are daemons, so the process can exit without `end`."""
        super().start(owner)
        for number in range(self._threads):
            name = f"rabbit-chx handler {number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def end(self) -> None:
        """Let each thread end after its current message."""
        for _ in range(self._threads):
            self._ready.put(None)

    def submit(self, lane: Work) -> None:
        """Queue a busy lane for the next free thread."""
        self._ready.put(lane)

    def _work(self) -> None:
        while (lane := self._ready.get()) is not None:
            try:
                self._work_on(lane)
            except BaseException as error:  # noqa: BLE001 - the member raises it from `run`
                self.failed(lane, error)

    def _work_on(self, lane: Work) -> None:
        turn_ends = monotonic() + TURN
        taken = self.next_of(lane)
        while taken is not None:
            channel, message = taken
            try:
                returned = self._handler(message)
                if returned is not None:
                    check_returned("result of the handler", returned)
            except Exception as error:  # noqa: BLE001 - a handler may raise anything
                self._owner.on_interruption(lane, channel, message, error)
                return
            if message is self.noted and self.was_trial(lane, channel, message):
                return
            if monotonic() > turn_ends and not self._ready.empty():
                self.finished(lane, channel, message)
                self._ready.put(lane)
                return
            taken = self.next_of(lane, taken)
