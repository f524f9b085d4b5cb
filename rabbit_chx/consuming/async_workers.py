"""Handle messages in an event loop: in tasks that call the handler, or in ``async for`` loops of the program."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from time import monotonic
from typing import Any, Final, TypeAlias

from rabbit_chx.consuming.lanes import Lane
from rabbit_chx.consuming.messages import Message
from rabbit_chx.consuming.workers import Fate, Owner, Progress

Taken: TypeAlias = tuple[Lane, Any, Message]
"""A message that is being handled, with its lane and the channel that delivered it."""
_TURN: Final = 0.005
"""Seconds after which handlers that never wait give other tasks a turn."""


class AsyncWorkers(Progress):
    """Gives out the messages of the lanes in turn, one at a time from each lane, and calls ``report`` with canaries."""

    def __init__(
        self,
        handler: Callable[[Message], Awaitable[object]] | None,
        concurrency: int,
        heartbeat: int,
        report: Callable[[Message], object],
    ) -> None:
        super().__init__(nullcontext(), heartbeat, report)
        self.handler: Final = handler
        self._concurrency = concurrency
        self._ready: deque[Lane] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._stopped = False
        self._error: BaseException | None = None
        self._turn_ends = 0.0
        self._owner: Owner

    @property
    def stopped(self) -> bool:
        """Whether no further message is given out."""
        return self._stopped

    def start(self, owner: Owner) -> None:
        """Begin to report to the member."""
        self._owner = owner

    def stop(self) -> None:
        """Stop giving out messages."""
        self._stopped = True
        while self._ready:
            self._ready.popleft().busy = False
        if self.handler is None:
            self._wake(len(self._waiting))

    async def end(self) -> None:
        """Cancel the handlers that still run, and give them a second to clean up."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    def fail(self, error: BaseException | None) -> None:
        """Stop giving out messages and raise this error in the loops that ask for one."""
        self._error = error
        self.stop()

    def submit(self, lane: Lane) -> None:
        """Queue a busy lane for the next free worker."""
        if self._stopped:
            lane.busy = False
            self._owner.on_progress()
            return
        self._ready.append(lane)
        if self.handler is None:
            self._wake(1)
        elif len(self._tasks) < self._concurrency:
            task = asyncio.create_task(self._work(self.handler), name="rabbit-chx handler")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _take(self) -> Taken | None:
        """Return the next message that can be handled now."""
        while self._ready:
            lane = self._ready.popleft()
            channel, message = lane.channel, lane.take()
            if message is None:
                self._owner.on_progress()
                continue
            fate = self.fate(message)
            if fate is Fate.REPORT:
                self._report(message)
                self.done((lane, channel, message), counted=False)
            elif fate is Fate.INTERRUPT:
                self._owner.on_interruption(lane, channel, message, None)
            else:
                return lane, channel, message
        return None

    def done(self, taken: Taken, *, counted: bool = True) -> None:
        """Mark a message as handled. Wakes no other worker, because the caller takes the next message itself."""
        lane, channel, message = taken
        self.finished(lane, channel, message, counted=counted)
        self._owner.on_progress()
        if self._stopped:
            lane.busy = False
        else:
            self._ready.append(lane)

    # ---- tasks

    async def _work(self, handler: Callable[[Message], Awaitable[object]]) -> None:
        while (taken := self._take()) is not None:
            try:
                await handler(taken[2])
            except Exception as error:  # noqa: BLE001 - a handler may raise anything
                self._owner.on_interruption(*taken, error)
            except BaseException as error:
                if not isinstance(error, asyncio.CancelledError):
                    self._owner.fail(error)  # such as SystemExit
                    taken[0].busy = False
                    return
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self._owner.on_interruption(*taken, RuntimeError(f"the handler was cancelled: {error!r}"))
            else:
                self.done(taken)
                await self._let_others()

    async def _let_others(self) -> None:
        """Let the event loop receive and acknowledge now and then."""
        if monotonic() > self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = monotonic() + _TURN

    # ---- loops of the program

    async def next(self) -> Taken | None:
        """Wait for a message; None after `stop`."""
        await self._let_others()
        while (taken := self._take()) is None:
            if self._error is not None:
                raise self._error
            if self._stopped:
                return None
            await self._wait()
        return taken

    def give_back(self, taken: Taken) -> None:
        """Put a message that was not handled back to the front of its lane."""
        lane, channel, message = taken
        lane.put_back(message, channel)
        self.submit(lane)

    async def _wait(self) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        try:
            await woken
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                self._wake(1)
            else:
                self._waiting.remove(woken)
            raise

    def _wake(self, most: int) -> None:
        while most and self._waiting:
            woken = self._waiting.popleft()
            if not woken.done():
                woken.set_result(None)
                most -= 1
