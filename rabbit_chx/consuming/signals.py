"""Stop a member on SIGTERM and Ctrl-C, unless the program handles them itself."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

_USUAL: Final[dict[signal.Signals, Any]] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}


def _ours() -> list[signal.Signals]:
    """The signals that the program does not handle itself; none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number, handler in _USUAL.items() if signal.getsignal(number) is handler]


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and on the first Ctrl-C."""
    ours = _ours()

    def on_signal(number: int, _: FrameType | None) -> None:
        signal.signal(number, _USUAL[signal.Signals(number)])  # a second signal takes effect at once
        stop()

    for number in ours:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, _USUAL[number])


@contextmanager
def stopped_by_signals_of_loop(stop: Callable[[], None]) -> Iterator[None]:
    """Like `stopped_by_signals`, in an event loop, where `asyncio.run` turns Ctrl-C into a cancellation."""
    loop = asyncio.get_running_loop()
    ours = []

    def on_signal(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)  # a second signal takes effect at once
        stop()

    for number in _ours():
        try:
            loop.add_signal_handler(number, partial(on_signal, number))
        except NotImplementedError:  # on Windows
            break
        ours.append(number)
    try:
        yield
    finally:
        for number in ours:
            loop.remove_signal_handler(number)
