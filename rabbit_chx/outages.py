"""What clients log about a lost connection, however often they try to reconnect."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_EVERY_SECONDS: Final = 60.0
"""How often to log a connection that is still lost."""


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
