"""Print the number of confirmed rows of a batch write in the terminal every five seconds.

Spark prints the stderr of local Python workers in the terminal of the program. The tasks of a write add up their rows in
a file in Spark's scratch folder, and the first task that adds rows after five seconds prints the line.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

_LINE_SECONDS: Final = 5.0
_ADD_SECONDS: Final = 1.0
_CLEAR_LINE: Final = "\r\x1b[K"
"""Removes Spark's own progress bar, which would end up in front of the line."""


class ProgressLine:
    """Adds the rows of one task to the progress of a write."""

    def __init__(self, file: Path | None) -> None:
        """``file`` is shared by the tasks of a write; without a file, nothing is printed."""
        self._file = file
        self._added = 0
        self._due = time.monotonic() + _ADD_SECONDS

    @property
    def due(self) -> bool:
        """Whether to call `add` now."""
        return self._file is not None and time.monotonic() >= self._due

    def add(self, confirmed: int) -> None:
        """Add the rows that were confirmed since the last call; ``confirmed`` is the number of all confirmed rows of this task."""
        if self._file is None:
            return
        with suppress(OSError, ValueError), self._file.open("a+", encoding="utf-8") as file:
            _lock(file)
            self._add_to(file, confirmed - self._added)
        self._added, self._due = confirmed, time.monotonic() + _ADD_SECONDS

    def _add_to(self, file: IO[str], more: int) -> None:
        now = time.monotonic()
        file.seek(0)
        text = file.read()
        rows, shown_rows, shown_at = json.loads(text) if text else (0, 0, now)
        rows += more
        if now >= shown_at + _LINE_SECONDS:
            rate = (rows - shown_rows) / (now - shown_at)
            sys.stderr.write(f"{_CLEAR_LINE}rabbitmq: {rows:,} rows confirmed, {rate:,.0f} per second\n")
            sys.stderr.flush()
            shown_rows, shown_at = rows, now
        file.truncate(0)
        json.dump([rows, shown_rows, shown_at], file)


def _lock(file: IO[Any]) -> None:
    """Lock a file until it is closed. Windows has no such locks, so a line may be missing or occur twice there."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
