"""Stop a member on SIGTERM and Ctrl-C, unless the program handles them itself."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """Call ``stop`` on the first SIGTERM or Ctrl-C; a second signal, of either kind, takes effect at once."""
    ours, process = _ours(), os.getpid()

    def restore() -> None:
        for number in ours:
            signal.signal(number, _USUAL[number])

    def on_signal(number: int, _: FrameType | None) -> None:
        restore()
        if os.getpid() == process:
            stop()
        else:  # a child that was forked while the member ran, such as one of multiprocessing that is terminated
            signal.raise_signal(number)

    for number in ours:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()


@contextmanager
def stopped_by_signals_of_loop(stop: Callable[[], None]) -> Iterator[None]:
    """Like `stopped_by_signals`, in an event loop, where `asyncio.run` turns Ctrl-C into a cancellation."""
    loop = asyncio.get_running_loop()
    ours: list[signal.Signals] = []

    def restore() -> None:
        for number in ours:
            loop.remove_signal_handler(number)

    def on_signal() -> None:
        restore()
        stop()

    for number in _ours():
        try:
            loop.add_signal_handler(number, on_signal)
        except NotImplementedError:  # on Windows
            break
        ours.append(number)
    try:
        yield
    finally:
        restore()
