"""A group stops at the first SIGTERM or Ctrl-C and ends at once at a second signal of either kind."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace

import pytest

from rabbit_chx.consuming import AsyncGroup, async_group
from rabbit_chx.consuming.signals import stopped_by_signals, stopped_by_signals_of_loop

USUAL = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
FIRST = pytest.mark.parametrize("first", USUAL)


@pytest.fixture(autouse=True)
def usual_handlers():
    before = {number: signal.signal(number, handler) for number, handler in USUAL.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> dict[signal.Signals, object]:
    return {number: signal.getsignal(number) for number in USUAL}


@FIRST
def test_after_the_first_signal_any_other_takes_effect_at_once(first) -> None:
    stops: list[str] = []
    with stopped_by_signals(lambda: stops.append("stop")):
        signal.raise_signal(first)
        assert stops == ["stop"]
        assert handlers() == USUAL
    assert handlers() == USUAL


@FIRST
def test_after_the_first_signal_in_a_loop_any_other_takes_effect_at_once(first) -> None:
    async def main() -> None:
        stopped = asyncio.Event()
        with stopped_by_signals_of_loop(stopped.set):
            signal.raise_signal(first)
            await stopped.wait()
            assert handlers() == USUAL

    loop = asyncio.new_event_loop()  # `asyncio.run` would handle Ctrl-C
    loop.run_until_complete(main())
    loop.close()


def test_ctrl_c_after_sigterm_does_not_wait_for_handlers(monkeypatch) -> None:
    patiences: list[float | None] = []

    class Member:
        def __init__(self, *_: object) -> None:
            self.workers = SimpleNamespace(stopped=False)
            self._ended = asyncio.Event()

        def stop(self, patience: float | None = None) -> None:
            self.workers.stopped = True
            patiences.append(patience)
            if len(patiences) == 2:
                self._ended.set()
            else:
                asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)

        async def run(self) -> None:
            signal.raise_signal(signal.SIGTERM)
            await self._ended.wait()

    async def handle(_: object) -> None: ...

    monkeypatch.setattr(async_group, "AsyncMember", Member)
    group = AsyncGroup("amqp://127.0.0.1:1", exchange="orders", name="billing", queues=["a"])
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(group.run(handle))
    assert patiences == [None, 0.0]
