"""Stopping what was started when the program ends without leaving its ``with`` blocks.

An ordinary end and an uncaught error run the ``atexit`` hook. SIGTERM would skip it, so while a node runs
and nobody else listens to that signal, it is turned into ``SystemExit``, which leaves the blocks in order.
Nothing helps against SIGKILL.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

# A forked child inherits the hook and the list, but the nodes are its parent's: hence the process id.
_running: dict[Callable[[], None], int] = {}


def stop_at_exit(stop: Callable[[], None]) -> None:
    """Call ``stop`` when the program ends, unless `forget` came first."""
    if not _running:
        _replace_handler(signal.SIG_DFL, _exit_on_signal)
    _running[stop] = os.getpid()


def forget(stop: Callable[[], None]) -> None:
    """Take ``stop`` off the list; fine if it never was on it."""
    _running.pop(stop, None)
    if not _running:
        _replace_handler(_exit_on_signal, signal.SIG_DFL)


def _replace_handler(old: object, new: signal._HANDLER) -> None:
    """Change what SIGTERM does, unless it means something else to this program already."""
    in_main_thread = threading.current_thread() is threading.main_thread()  # others may not set handlers
    if in_main_thread and signal.getsignal(signal.SIGTERM) is old:
        signal.signal(signal.SIGTERM, new)


def _exit_on_signal(signum: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signum)


@atexit.register
def _stop_all() -> None:
    for stop, owner in list(_running.items()):
        if owner == os.getpid():
            # the next node has to be stopped whatever becomes of this one
            with contextlib.suppress(Exception):
                stop()
