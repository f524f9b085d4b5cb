"""A group stops at the first SIGTERM or Ctrl-C and ends at once at a second signal of either kind."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Coroutine
from functools import partial
from types import SimpleNamespace

import pytest

from rabbit_chx.base.interruption import stopped_by_signals
from rabbit_chx.consuming import AsyncGroup
from tests.unit.conftest import USUAL

pytestmark = pytest.mark.usefixtures("usual_handlers")

FIRST = pytest.mark.parametrize("first", USUAL)


def handlers() -> dict[signal.Signals, object]:
    return {number: signal.getsignal(number) for number in USUAL}


def run(main: Coroutine[None, None, None]) -> None:
    """Run in an event loop that does not handle Ctrl-C, which `asyncio.run` does."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main)
    loop.close()


@FIRST
def test_members_that_share_a_loop_are_all_stopped(first) -> None:
    stops: list[str] = []
    one, other = (stopped_by_signals(partial(stops.append, name)) for name in ("one", "other"))
    with one, other:
        signal.raise_signal(first)
        assert stops == ["one", "other"]
        assert handlers() == USUAL
    assert handlers() == USUAL


@FIRST
def test_a_member_that_began_first_and_ends_first_leaves_the_signals_to_the_other(first) -> None:
    stops: list[str] = []
    one, other = (stopped_by_signals(partial(stops.append, name)) for name in ("one", "other"))
    one.__enter__()
    with other:
        one.__exit__(None, None, None)
        signal.raise_signal(first)
        assert stops == ["other"]
    assert handlers() == USUAL


@FIRST
def test_a_handler_that_the_program_sets_during_a_run_stays(first) -> None:
    def of_the_program(*_: object) -> None: ...

    with stopped_by_signals(lambda: None):
        signal.signal(first, of_the_program)
    assert handlers() == {**USUAL, first: of_the_program}


@FIRST
def test_after_the_first_signal_in_a_loop_any_other_takes_effect_at_once(first) -> None:
    async def main() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        with stopped_by_signals(partial(loop.call_soon_threadsafe, stopped.set)):
            # From another thread, so that the loop waits for events when the signal arrives.
            threading.Timer(0.2, os.kill, [os.getpid(), first]).start()
            async with asyncio.timeout(30):
                await stopped.wait()
            assert handlers() == USUAL

    run(main())


def test_ctrl_c_after_sigterm_does_not_wait_for_handlers(monkeypatch) -> None:
    patiences: list[float | None] = []

    class Member:
        def __init__(self, *_: object) -> None:
            self.workers = SimpleNamespace(stopped=False)
            self._loop = asyncio.get_running_loop()
            self._ended = threading.Event()

        def stop(self, patience: float | None = None) -> None:
            self.workers.stopped = True
            patiences.append(patience)
            if len(patiences) == 2:
                self._ended.set()
            else:
                self._loop.call_soon(signal.raise_signal, signal.SIGINT)

        def run(self) -> None:
            self._loop.call_soon_threadsafe(signal.raise_signal, signal.SIGTERM)
            self._ended.wait(30)

    async def handle(_: object) -> None: ...

    monkeypatch.setattr("rabbit_chx.consuming.group.Member", Member)
    group = AsyncGroup("amqp://127.0.0.1:1", exchange="orders", name="billing", queues=["a"])
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(group.run(handle))
    assert patiences == [None, 0.0]


def test_a_program_that_handles_the_signals_itself_keeps_its_handlers() -> None:
    seen: list[dict[signal.Signals, object]] = []

    async def main(group: AsyncGroup) -> None:
        async with asyncio.timeout(30):
            running = asyncio.create_task(group.run(handle, signals=False))
            await asyncio.sleep(0)
            seen.append(handlers())
            group.stop()
            await running

    async def handle(_: object) -> None: ...

    run(main(AsyncGroup("amqp://127.0.0.1:1", exchange="orders", name="billing", queues=["a"])))
    assert seen == [USUAL]


def test_a_forked_child_of_a_running_member_ends_at_sigterm() -> None:
    ready, running = os.pipe()

    def work() -> None:
        os.write(running, b".")
        while True:  # one long wait would not end if the signal came just before it
            time.sleep(0.01)

    with stopped_by_signals(lambda: None):
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        os.read(ready, 1)  # Python forgets a signal that arrives while it forks
        child.terminate()
        child.join(30)
        ended = child.exitcode
        child.kill()
    os.close(ready)
    os.close(running)
    assert ended == -signal.SIGTERM
