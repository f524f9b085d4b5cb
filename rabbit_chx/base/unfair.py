"""A lock for threads that take it for a microsecond, again and again."""

from __future__ import annotations

import threading
import time
from typing import Final

_TRIES: Final = 100


class UnfairCondition(threading.Condition):
    """A `threading.Condition`, or just its lock, without lock convoys.

    A thread that waits for a lock of `threading` gets it as soon as it is released, but cannot run before it has the GIL. The
    thread that has the GIL soon needs the lock again, and waits in its turn: from then on, each use of the lock costs a
    switch of threads (a lock convoy). Here, a waiting thread lets the others run and then tries again.

    Only `with` does so: `acquire`, and the end of `wait`, queue up as in Python. The lock is re-entrant, so a signal handler
    may take it.
    """

    def __enter__(self) -> bool:
        return self.acquire(False) or self._patiently()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _patiently(self) -> bool:
        for _ in range(_TRIES):
            time.sleep(0)  # releases the GIL
            if self.acquire(False):
                return True
        return self.acquire()
