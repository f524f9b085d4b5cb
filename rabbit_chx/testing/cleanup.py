"""Stop the nodes that are still running when the program ends.

The ``atexit`` hook runs at a normal exit and after an uncaught error. SIGTERM would skip it: while a node runs, it raises ``SystemExit``, unless the
program handles that signal itself. After SIGKILL the nodes keep running.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

# The process id: a forked child inherits the hook and the list, but must not stop the nodes of its parent.
_running: dict[Callable[[], None], int] = {}


def stop_at_exit(stop: Callable[[], None]) -> None:
    """Call ``stop`` when the program ends, unless `forget` is called first."""
    if not _running:
        _replace_handler(signal.SIG_DFL, _exit_on_signal)
    _running[stop] = os.getpid()


def forget(stop: Callable[[], None]) -> None:
    """Do not call ``stop`` at exit; does nothing if it was not registered."""
    _running.pop(stop, None)
    if not _running:
        _replace_handler(_exit_on_signal, signal.SIG_DFL)


def _replace_handler(old: object, new: signal._HANDLER) -> None:
    """Replace the handler of SIGTERM, unless the program has installed its own."""
    in_main_thread = threading.current_thread() is threading.main_thread()  # only it may set handlers
    if in_main_thread and signal.getsignal(signal.SIGTERM) is old:
        signal.signal(signal.SIGTERM, new)


def _exit_on_signal(signum: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signum)


@atexit.register
def _stop_all() -> None:
    for stop, owner in list(_running.items()):
        if owner == os.getpid():
            # stop the other nodes even if this one fails
            with contextlib.suppress(Exception):
                stop()
