"""The tasks that run the handler in the program's event loop, each on one lane at a time.

The member's thread hands over lanes: a busy lane crosses from thread to thread once, however many messages it has.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from time import monotonic
from typing import Final

from rabbit_chx.messages.message import Message
from rabbit_chx.working.settings import log
from rabbit_chx.working.workers import TURN, Progress, Work

_OTHERS: Final = 0.005
"""Seconds after which handlers that never wait give other tasks a turn."""
_CLEAN_UP: Final = 1.0
"""Seconds that cancelled handlers have to end."""


class LoopWorkers(Progress):
    """Tasks that await the handler with the messages of lanes.

    Made in the event loop; the member's thread calls `submit` and `end`.
    """

    def __init__(self, handler: Callable[[Message], Awaitable[object]], tasks: int, heartbeat: int) -> None:
        super().__init__(heartbeat)
        self._handler = handler
        self._most = tasks
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._ready: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._run = asyncio.current_task()
        self._cancelled_before = self._run.cancelling() if self._run is not None else 0
        self._ending = False
        self._turn_ends = 0.0

    # ---- in the thread of the member

    def submit(self, lane: Work) -> None:
        """Queue a busy lane for the next free task."""
        try:
            self._loop.call_soon_threadsafe(self._begin, lane, context=self._context)
        except RuntimeError:  # the loop is closed
            if not self.stopped:
                log.warning(
                    "the event loop of a group is closed: its member ends, and others get its messages"
                )
            self.stopping.set()
            with self.lock:
                lane.leave()

    def end(self) -> None:
        """Cancel the handlers that still run, and give them a second to clean up."""
        ended = threading.Event()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel, ended)
            ended.wait(_CLEAN_UP)

    # ---- in the event loop

    def _begin(self, *lanes: Work) -> None:
        self._ready.extend(lanes)
        if len(self._tasks) < self._most:
            task = self._loop.create_task(self._work(), name="rabbit-chx handler")
            self._tasks.add(task)
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Replace a task that the program has cancelled; in a run that ends, the member waits until no task has a lane."""
        self._tasks.discard(task)
        if task.cancelled() and self._ready and not self._ending:
            self._begin()

    @property
    def _is_ending(self) -> bool:
        """Whether a cancelled task ends: the member cancels all, or the program cancels the run with them, as `asyncio.run` does."""
        return self._ending or (self._run is not None and self._run.cancelling() > self._cancelled_before)

    def _cancel(self, ended: threading.Event) -> None:
        self._ending = True
        if not self._tasks:
            ended.set()
            return
        for task in self._tasks:
            task.cancel()
        waiting = self._loop.create_task(asyncio.wait({*self._tasks}))
        waiting.add_done_callback(lambda _: ended.set())

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while self._ready:
                lane = self._ready.popleft()
                try:
                    await self._work_on(lane, task)
                except asyncio.CancelledError:
                    self._ready.append(lane)
                    raise
                except Exception as error:  # noqa: BLE001 - the member raises it from `run`
                    self.failed(lane, error)
                if task.cancelling():
                    await self._give_way(task)
        finally:
            # Not in a callback of the task, which would come after a `_begin` that still counts this task.
            self._tasks.discard(task)

    async def _work_on(self, lane: Work, task: asyncio.Task[None]) -> None:
        turn_ends = monotonic() + TURN
        taken = self.next_of(lane)
        while taken is not None:
            channel, message = taken
            try:
                await self._handler(message)
                if task.cancelling():
                    await asyncio.sleep(0)  # raises a cancellation that no `await` of the handler has raised
                    _uncancel(task)
            except Exception as error:  # noqa: BLE001 - a handler may raise anything
                self._owner.on_interruption(lane, channel, message, error)
                return
            except asyncio.CancelledError as error:
                if self._is_ending and task.cancelling():
                    with self.lock:
                        lane.put_back(message, channel)
                    raise
                cancelled = RuntimeError(f"the handler was cancelled: {error!r}")
                self._owner.on_interruption(lane, channel, message, cancelled)
                return
            except BaseException as error:  # noqa: BLE001 - the member raises it from `run`
                self.failed(lane, error)
                return
            if message is self.noted and self.was_trial(lane, channel, message):
                return
            if monotonic() <= self._turn_ends:
                taken = self.next_of(lane, taken)
                continue
            self.finished(lane, channel, message)
            await self._give_way(task)
            self._turn_ends = monotonic() + _OTHERS
            if self._ready and monotonic() > turn_ends:
                self._ready.append(lane)
                return
            taken = self.next_of(lane)

    async def _give_way(self, task: asyncio.Task[None]) -> None:
        """Give other tasks a turn. A cancellation by the program that comes between two handlers has no effect."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._is_ending:
                raise
        _uncancel(task)


def _uncancel(task: asyncio.Task[None]) -> None:
    while task.uncancel():
        pass
