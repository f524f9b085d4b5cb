"""The threads that run the handler, each on one lane at a time; and the decisions shared with `AsyncWorkers`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Protocol

from rabbit_chx.consuming.lanes import Lane
from rabbit_chx.consuming.messages import Kind, Message, kind_of

_TURN: Final = 0.05
"""Seconds that a thread spends on one lane while other lanes wait."""


class Owner(Protocol):
    """The member. With `Workers`, any worker thread may call it."""

    def on_progress(self) -> None:
        """Called when a message can be acknowledged, or a lane has become idle."""

    def fail(self, error: BaseException) -> None:
        """Called with an error that does not belong to a message, such as SystemExit."""

    def on_interruption(self, lane: Lane, channel: Any, message: Message, error: Exception | None) -> None:
        """Called with a message that was not handled; the lane stays busy until the owner submits it again."""


class Fate(Enum):
    """What happens to a message next."""

    HANDLE = "handle"
    REPORT = "report"
    """It is a canary."""
    INTERRUPT = "interrupt"
    """The owner decides about it."""


class Progress(ABC):
    """What becomes of each message, and which lanes have messages to acknowledge."""

    def __init__(
        self, lock: AbstractContextManager[Any], heartbeat: int, report: Callable[[Message], object]
    ) -> None:
        self.lock = lock
        """The lock that guards all lanes."""
        self.heard = 0.0
        """The time of the last sign that the broker still knows the connection."""
        self._heartbeat = heartbeat
        self._report = report
        self._progress: set[Lane] = set()

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether no further message is given out."""

    @abstractmethod
    def submit(self, lane: Lane) -> None:
        """Queue a busy lane for the next free worker."""

    def fate(self, message: Message) -> Fate:
        """Decide what to do with a message; after a long silence of the broker, another member may have it by now."""
        kind = kind_of(message.headers)
        if kind is Kind.CANARY:
            return Fate.REPORT
        silent = monotonic() - self.heard > self._heartbeat
        return Fate.INTERRUPT if silent or kind is not Kind.MESSAGE else Fate.HANDLE

    def finished(self, lane: Lane, channel: Any, message: Message, *, counted: bool = True) -> None:
        """Mark a message as handled, so that it can be acknowledged."""
        with self.lock:
            if lane.finish(message, channel, counted=counted):
                self._progress.add(lane)

    def progress(self) -> list[tuple[Lane, Any, int]]:
        """The lanes with messages handled since the last call, each with its channel and the last tag."""
        with self.lock:
            lanes, self._progress = self._progress, set()
            return [(lane, lane.channel, lane.done) for lane in lanes if lane.done > lane.acked]


class Workers(Progress):
    """Threads that call the handler with the messages of lanes, and ``report`` with canaries."""

    def __init__(
        self,
        handler: Callable[[Message], object],
        threads: int,
        heartbeat: int,
        report: Callable[[Message], object],
    ) -> None:
        super().__init__(threading.Lock(), heartbeat, report)
        self.stopping = threading.Event()
        self._handler = handler
        self._ready: SimpleQueue[Lane | None] = SimpleQueue()
        self._threads = threads

    @property
    def stopped(self) -> bool:
        """Whether no further message is given out."""
        return self.stopping.is_set()

    def start(self, owner: Owner) -> None:
        """Start the threads. They are daemons, so the process can exit without `end`."""
        for number in range(self._threads):
            name = f"rabbit-chx handler {number}"
            threading.Thread(target=self._work, args=(owner,), name=name, daemon=True).start()

    def end(self) -> None:
        """Let each thread end after its current message."""
        for _ in range(self._threads):
            self._ready.put(None)

    def submit(self, lane: Lane) -> None:
        """Queue a busy lane for the next free thread."""
        self._ready.put(lane)

    def _work(self, owner: Owner) -> None:
        while (lane := self._ready.get()) is not None:
            try:
                self._work_on(lane, owner)
            except BaseException as error:  # noqa: BLE001 - the member raises it from `run`
                owner.fail(error)  # first, so that no later message is handled and acknowledges this one
                with self.lock:
                    lane.busy = False

    def _work_on(self, lane: Lane, owner: Owner) -> None:
        turn_ends = monotonic() + _TURN
        while True:
            with self.lock:
                channel = lane.channel
                message = None if self.stopping.is_set() else lane.take()
                if message is None:
                    lane.busy = False
            if message is None:
                owner.on_progress()
                return
            fate = self.fate(message)
            if fate is Fate.REPORT:
                self._report(message)
            elif fate is Fate.INTERRUPT:
                owner.on_interruption(lane, channel, message, None)
                return
            else:
                try:
                    self._handler(message)
                except Exception as error:  # noqa: BLE001 - a handler may raise anything
                    owner.on_interruption(lane, channel, message, error)
                    return
            self.finished(lane, channel, message, counted=fate is Fate.HANDLE)
            owner.on_progress()
            if monotonic() > turn_ends and not self._ready.empty():
                self._ready.put(lane)
                return
