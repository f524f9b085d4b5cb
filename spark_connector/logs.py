"""The connector's log, ``rabbit_chx.spark``."""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

log = logging.getLogger("rabbit_chx.spark")
_EVERY_SECONDS: Final = 60.0
"""How often to log a connection that is still lost."""


def log_line(level: int, text: str) -> None:
    """Log a line, and show it where logging is not configured."""
    show(log.name)
    log.log(level, "%s", text)


def show(name: str) -> None:
    """Send a logger to stderr with its times in a process without logging configuration, such as Spark's Python workers."""
    found = logging.getLogger(name)
    if found.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    found.addHandler(handler)
    found.setLevel(logging.INFO)


class Outage:
    """Logs a lost connection when it is lost, once a minute, and when it is restored; ``what`` says what uses it."""

    def __init__(self, what: str, timeout_ms: int) -> None:
        self._what = what
        self._timeout = timeout_ms / 1000
        self._began: float | None = None
        self._logged = 0.0

    def failed(self, error: Exception) -> None:
        """Log a failed attempt, if it is the first one or the last line is a minute old."""
        now = time.monotonic()
        if self._began is None:
            self._began = self._logged = now
            self._warn(f"{error}; trying to reconnect for {self._timeout:g} s")
        elif now - self._logged >= _EVERY_SECONDS:
            self._logged = now
            self._warn(f"no connection for {now - self._began:.0f} s: {error}")

    def ended(self) -> None:
        """Log that the connection is restored, if it was lost."""
        if self._began is not None:
            self._warn(f"connected again after {time.monotonic() - self._began:.0f} s")
            self._began = None

    def _warn(self, text: str) -> None:
        log_line(logging.WARNING, f"{self._what}: {text}")
