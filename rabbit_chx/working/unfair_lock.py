"""A lock that busy threads pass on only when Python switches threads."""

from __future__ import annotations

import threading
import time
from typing import Final

_TRIES: Final = 100


class UnfairLock:
    """A `threading.Lock` for threads that take it for a microsecond, again and again.

    A thread that waits for a `threading.Lock` gets it as soon as it is released, but cannot run before it has the GIL. The
    thread that has the GIL soon needs the lock again, and waits in its turn: from then on, each use of the lock costs a
    switch of threads (a lock convoy). Here, a waiting thread lets the others run and then tries again.
    """

    def __init__(self) -> None:
        lock = threading.Lock()
        self._acquire = lock.acquire
        self._release = lock.release

    def __enter__(self) -> None:
        if not self._acquire(False):
            self._wait()

    def __exit__(self, *_: object) -> None:
        self._release()

    def _wait(self) -> None:
        for _ in range(_TRIES):
            time.sleep(0)  # releases the GIL
            if self._acquire(False):
                return
        self._acquire()
