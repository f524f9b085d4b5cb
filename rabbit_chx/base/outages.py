"""What clients do about a lost connection: how long they wait before each attempt to reconnect, and what they log."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Final

_EVERY_SECONDS: Final = 60.0
"""How often to log a connection that is still lost."""
CALLER_WAITS: Final = 2.0
"""The longest pause, in seconds, of a client whose caller waits."""
_A_WHILE: Final = 10.0
_DOUBLINGS: Final = 5


def pause_after(failures: int, longest: float, share: Callable[[], float] = random.random) -> float:
    """Return a pause that doubles with each failure; ``share`` spreads clients that fail at the same moment."""
    return longest * 2.0 ** min(failures - _DOUBLINGS, 0) * (0.5 + share() / 2)


class Backoff:
    """Pauses between attempts: each is about twice as long as the one before, until it has worked for ten seconds.

    A broker that accepts connections and then closes each is asked less and less often.

    Args:
        longest: seconds of the longest pause; the first one is 32 times shorter.
        clock: seconds.
        share: returns a random number from 0 to 1, so that many clients do not try at the same moment.

    >>> backoff = Backoff(share=lambda: 1.0)
    >>> [backoff.failed() for _ in range(7)]
    [0.9375, 1.875, 3.75, 7.5, 15.0, 30.0, 30.0]
    """

    def __init__(
        self,
        longest: float = 30.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        share: Callable[[], float] = random.random,
    ) -> None:
        self._longest = longest
        self._clock = clock
        self._share = share
        self._failures = 0
        self._works_since: float | None = None
        self.failing_since: float = math.inf
        """When it first failed after it had worked for a while."""

    def works(self) -> None:
        """Note that it works; later calls before the next failure change nothing."""
        if self._works_since is None:
            self._works_since = self._clock()

    def failed(self) -> float:
        """Return how many seconds to wait before the next attempt."""
        now = self._clock()
        if self._works_since is not None and now - self._works_since >= _A_WHILE:
            self._failures = 0
        self._works_since = None
        if not self._failures:
            self.failing_since = now
        self._failures += 1
        return pause_after(self._failures - 1, self._longest, self._share)


class Outage:
    """Logs a lost connection when it is lost, once a minute, and when it is restored.

    Args:
        warn: logs a line as a warning.
        what: what uses the connection; each line begins with it.
        then: what happens next, for the end of the first line.
    """

    def __init__(self, warn: Callable[[str], None], what: str, then: str = "trying again") -> None:
        self._warn = warn
        self._what = what
        self._then = then
        self._began: float | None = None
        self._logged = 0.0

    def failed(self, error: Exception) -> None:
        """Log a failed attempt, if it is the first one or the last line is a minute old."""
        now = time.monotonic()
        if self._began is None:
            self._began = self._logged = now
            self._warn(f"{self._what}: {error}; {self._then}")
        elif now - self._logged >= _EVERY_SECONDS:
            self._logged = now
            self._warn(f"{self._what}: no connection for {now - self._began:.0f} s: {error}")

    def ended(self) -> None:
        """Log that the connection is restored, if it was lost."""
        if self._began is not None:
            self._warn(f"{self._what}: connected again after {time.monotonic() - self._began:.0f} s")
            self._began = None
