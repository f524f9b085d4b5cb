"""What the tasks of an executor share while they write, in files: the first permanent problem, and the confirmed rows.

Spark retries a task that raises, and a sink written in Python cannot reach the driver before its task has ended. So a
task with a permanent problem writes it to a file in the executor's scratch folder, and reports it in its commit message.
A running task that finds the file stops and reports what it has published. A task that has not started raises instead: it
has published nothing, so Spark can retry it without duplicates, and the last retry ends the job.

Spark prints the stderr of local Python workers in the terminal of the program. The tasks of a batch write add up their rows
in another file, and the first task that adds rows after five seconds prints a line with the number of confirmed rows.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

_LINE_SECONDS: Final = 5.0
_ADD_SECONDS: Final = 1.0
_CLEAR_LINE: Final = "\r\x1b[K"
"""Removes Spark's own progress bar, which would end up in front of the line."""
_SCRATCH: Final = "SPARK_LOCAL_DIRS"
"""The variable in which Spark passes the executor's folders to each Python worker. Spark removes the folders with the executor."""


def scratch_file(name: str) -> Path | None:
    """A file that the tasks of this executor share; None outside Spark."""
    folder = os.environ.get(_SCRATCH, "").split(",")[0]
    return Path(folder, name) if folder else None


class Stopped(Exception):
    """Another task has failed permanently."""


@dataclass(frozen=True)
class Verdict:
    """Whether a write has failed, as far as this executor knows."""

    file: Path | None
    """Exists once the write has failed; None if the tasks do not share their problems."""

    @classmethod
    def on(cls, write: str) -> Verdict:
        """Return the verdict for the write with this id."""
        return cls(scratch_file(f"rabbit-chx-failed-{write}"))

    def check(self) -> None:
        """Raise `Stopped` if a task has failed permanently."""
        if self.file is not None and self.file.exists():
            raise Stopped

    def problem(self) -> str | None:
        """The problem of the failed task; None if no task has failed."""
        try:
            return self.file.read_text("utf-8") if self.file is not None else None
        except OSError:
            return None

    def share(self, problem: str) -> None:
        """Share a problem with the other tasks. The file is renamed so that it appears with its whole text."""
        if self.file is None:
            return
        hidden = self.file.with_name(f"{self.file.name}-{os.getpid()}")
        with suppress(OSError):  # if the disk is full, the other tasks meet the problem themselves
            hidden.write_text(problem, "utf-8", "backslashreplace")
            hidden.replace(self.file)


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
