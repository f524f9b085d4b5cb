"""Ctrl-C and SIGTERM: when they take effect."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn, TypeAlias


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


def _raise_terminated(_: int, __: FrameType | None) -> NoReturn:
    raise Terminated


_RAISES: Final[dict[signal.Signals, Any]] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: _raise_terminated,
}
"""The handlers that raise an exception wherever the main thread is; a program may have others."""


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` in this block, unless the program handles or ignores it."""
    in_main = threading.current_thread() is threading.main_thread()  # only it may set handlers
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C or SIGTERM take effect at the end of the block; a second signal takes effect at once.

    pika may lose an answer if it is interrupted while it reads it. Every later command then waits for that answer, the
    one that releases the lock included. Nothing changes for a signal that the program handles itself, or outside the
    main thread.
    """
    in_main = threading.current_thread() is threading.main_thread()
    ours = [number for number, handler in _RAISES.items() if in_main and signal.getsignal(number) is handler]
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if came:
            _RAISES[signal.Signals(number)](number, frame)
        came.append(number)

    for number in ours:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, _RAISES[number])
    if came:
        _RAISES[signal.Signals(came[0])](came[0], None)


# ---- a member of a group, which stops on them

_USUAL: Final[dict[signal.Signals, Any]] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}
_Stop: TypeAlias = Callable[[], object]
_stops: Final[list[tuple[int, _Stop]]] = []
"""Of the members that run in the main thread, several of which may share an event loop; each with its process."""


@contextmanager
def stopped_by_signals(stop: _Stop) -> Iterator[None]:
    """Call ``stop`` on the first SIGTERM or Ctrl-C; a second signal, of either kind, takes effect at once.

    In `asyncio.run`, Ctrl-C remains a cancellation.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    ours = [
        number
        for number, usual in _USUAL.items()
        if in_main_thread and any(signal.getsignal(number) is each for each in (usual, _on_signal))
    ]
    if not ours:
        yield
        return
    own = (os.getpid(), stop)
    _stops.append(own)
    for number in ours:
        signal.signal(number, _on_signal)
    try:
        yield
    finally:
        _stops.remove(own)
        if not _own_stops():
            _restore()


def _on_signal(number: int, _: FrameType | None) -> None:
    _restore()
    if not (stops := _own_stops()):
        # A child that was forked while the member ran, such as one of multiprocessing that is terminated.
        signal.raise_signal(number)
    for stop in stops:
        stop()


def _own_stops() -> list[_Stop]:
    return [stop for process, stop in _stops if process == os.getpid()]


def _restore() -> None:
    """Restore the usual handlers, but not where the program has set its own while a member ran."""
    for number, usual in _USUAL.items():
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, usual)
