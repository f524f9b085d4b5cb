"""One run of a member at a time: in a thread of its own, until it is stopped. The same for groups of queues and of streams."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from threading import Thread
from time import monotonic, sleep
from typing import Final, Generic, TypeVar

from rabbit_chx.base.interruption import stopped_by_signals
from rabbit_chx.base.outages import Backoff, Outage
from rabbit_chx.broker.guards import Guard
from rabbit_chx.errors import InvalidValue
from rabbit_chx.working.retries import Retries
from rabbit_chx.working.settings import log
from rabbit_chx.working.workers import Progress

_LOOK: Final = 0.05
"""Seconds between two looks at handlers that still run."""


class Running(ABC):
    """A member that consumes until it is stopped, from any thread."""

    _error: BaseException | None = None
    _give_up_at = math.inf
    """When a member that was stopped waits no longer for its handlers."""
    _has_ended = False
    """Whether the workers were ended."""

    def __init__(self, settings: Retries, workers: Progress) -> None:
        self.workers = workers
        self.why_not = "it has not connected yet"
        """Why the member consumes nothing now; empty if it consumes."""
        self._name = settings.name
        self._patience = settings.timeouts.close
        self._calls: deque[Callable[[], object]] = deque()
        self._backoff = Backoff()
        self._outage = Outage(log.warning, f"group {settings.name!r}")

    @abstractmethod
    def run(self) -> None:
        """Consume until it is stopped."""

    @abstractmethod
    def _wake(self) -> None:
        """Let the thread of `run` notice that something changed."""

    def _ask(self, call: Callable[[], object]) -> None:
        """Have a function called in the thread of `run`."""
        self._calls.append(call)
        self._wake()

    def stop(self, patience: float | None = None) -> None:
        """Finish the current messages and end: by default within ``timeouts.close`` seconds of the first stop."""
        if patience is not None:
            self._patience = patience
        self._give_up_at = min(self._give_up_at, monotonic() + self._patience)
        self.workers.stopping.set()
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Stop and raise this error from `run`."""
        self._error = self._error or error
        self.stop()

    # ---- in the thread of `run`, with or without a connection

    @abstractmethod
    def _busy(self) -> list[str]:
        """The queues or streams whose messages are being handled, or about to be."""

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """At the end of the block, however it ends, let the handlers return; a second signal waits for none."""
        try:
            yield
        except KeyboardInterrupt:
            self.stop(patience=0.0)
            raise
        finally:
            # If they have ended, no worker takes what the broker has delivered since, so waiting for it would be in vain.
            if not self._has_ended:
                self._wait_for_handlers(self._pass_time)
                self._end_workers()

    def _wait_for_handlers(self, turn: Callable[[float], object]) -> None:
        """Take turns until the handlers have returned, or until the stop gives up on them."""
        self.stop()  # workers without an event loop have only stopped themselves
        while self._busy() and monotonic() < self._give_up_at:
            turn(_LOOK)

    def _pass_time(self, seconds: float) -> None:
        """Take a turn without a connection. The broker delivers again what handlers fail to handle meanwhile."""
        sleep(seconds)
        while self._calls:
            with suppress(Exception):  # most need a connection
                self._calls.popleft()()

    def _end_workers(self) -> None:
        """Log which handlers are cut, and end the workers."""
        self._has_ended = True
        if late := self._busy():
            log.warning(
                "group %r: the handler did not return within %g s of the stop; its messages from %s will be delivered again",
                *(self._name, self._patience, ", ".join(map(repr, late))),
            )
        self.workers.end()


_M = TypeVar("_M", bound=Running)


class Runs(Generic[_M]):
    """The runs of a group's member."""

    def __init__(self) -> None:
        self._guard = Guard(type(self).__name__, again="run()")
        self._member: _M | None = None
        self._stopped = False
        self._error: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """The error that ended the last run; None while the group runs, and after a stop."""
        return self._error

    def _why_not(self) -> str:
        if self._error is None:
            return "it is not running"
        return f"it ended with {type(self._error).__name__}: {self._error}"

    def stop(self) -> None:
        """End the run after the current messages; every later run returns at once. Can be called from any thread."""
        self._guard.check()
        self._stopped = True
        if (member := self._member) is not None:
            member.stop()

    def _begin(self, new: Callable[[], _M]) -> tuple[_M, Future[None]]:
        """Start a new member in a thread of its own; the future has its error."""
        if self._member is not None and not self._guard.inherited:
            raise InvalidValue(
                f"the {type(self).__name__} is already running", hint="Stop it before the next run"
            )
        self._guard.opened()
        self._member = member = new()
        self._error = None
        if self._stopped:
            member.stop()
        outcome: Future[None] = Future()
        outcome.set_running_or_notify_cancel()  # so it cannot be cancelled
        run = self._run_member
        Thread(target=run, args=(member, outcome), name="rabbit-chx group", daemon=True).start()
        return member, outcome

    def _run_member(self, member: _M, outcome: Future[None]) -> None:
        # The member is forgotten here too: the block of the run may go on, and a run never ends if its loop is
        # closed before.
        try:
            member.run()
        except BaseException as error:  # noqa: BLE001 - raised where the outcome is read
            self._error = error
            self._forget(member)
            outcome.set_exception(error)
        else:
            self._forget(member)
            outcome.set_result(None)

    def _forget(self, member: _M) -> None:
        """End a run, unless another has begun: its member had ended before."""
        if self._member is member:
            self._member = None

    def _run(self, new: Callable[[], _M], *, signals: bool) -> None:
        member, outcome = self._begin(new)
        try:
            with stopped_by_signals(member.stop) if signals else nullcontext():
                while not outcome.done():
                    wait([outcome], timeout=1.0)
        finally:
            member.stop()
            self._forget(member)
        outcome.result()


class AsyncRuns(Runs[_M]):
    """The same in an event loop."""

    async def _run_in_loop(self, new: Callable[[], _M], *, signals: bool) -> None:
        member, outcome = self._begin(new)
        # A signal may interrupt the loop while it holds a lock that `stop` needs.
        stop = partial(asyncio.get_running_loop().call_soon_threadsafe, member.stop)
        try:
            with stopped_by_signals(stop) if signals else nullcontext():
                await _ended(outcome)
        except asyncio.CancelledError:
            # In `asyncio.run`, Ctrl-C after SIGTERM is a cancellation too.
            with suppress(Exception):
                await _end(member, outcome, patience=0.0 if member.workers.stopped else None)
            raise
        finally:
            self._forget(member)
        outcome.result()

    @asynccontextmanager
    async def _run_while_block(self, new: Callable[[], _M]) -> AsyncIterator[None]:
        member, outcome = self._begin(new)
        block = asyncio.current_task()
        assert block is not None
        before, failed, in_block = block.cancelling(), False, True

        def on_end(_: asyncio.Future[None]) -> None:
            nonlocal failed
            if outcome.exception() is not None and in_block:
                failed = True
                block.cancel()

        _ended(outcome).add_done_callback(on_end)
        raised: BaseException | None = None
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised = error
        in_block = False
        self._forget(member)
        # As in `asyncio.timeout`: if others have cancelled the block too, it ends as they want.
        if failed and block.uncancel() <= before and isinstance(raised, asyncio.CancelledError):
            raised = None
        with suppress(Exception) if raised else nullcontext():
            await _end(member, outcome)
        if raised is not None:
            raise raised


async def _end(member: Running, outcome: Future[None], patience: float | None = None) -> None:
    """Stop the member and wait until it has ended; a cancellation lets it wait for no handler any longer."""
    member.stop(patience)
    try:
        await _ended(outcome)
    except asyncio.CancelledError:
        member.stop(patience=0.0)
        await _ended(outcome)
        raise
    outcome.result()


def _ended(outcome: Future[None]) -> asyncio.Future[None]:
    """Return a future of the event loop that is done when the outcome is, and does not have its error.

    asyncio cannot pass on a StopIteration, and turns the CancelledError of an executor's future into its own.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ended.done():  # its task may have been cancelled
            ended.set_result(None)

    def on_done(_: Future[None]) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(wake)

    outcome.add_done_callback(on_done)
    return ended
