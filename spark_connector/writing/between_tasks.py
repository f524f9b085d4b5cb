"""What the tasks of a write share: the write itself, and in files of an executor the first permanent problem and the confirmed rows.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from rabbit_chx.base.text import sentences
from spark_connector.writing.bindings import Bound
from spark_connector.writing.options import WriteOptions
from spark_connector.writing.publishing_ids import HOW_TO_CONTINUE
from spark_connector.writing.rules import Layout

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


@dataclass(frozen=True)
class WriteJob:
    """The checked options and columns of a write, for its tasks."""

    options: WriteOptions
    layout: Layout
    id: str = field(default_factory=lambda: uuid4().hex)
    """Shared by all tasks of a write, or of a micro-batch."""
    bindings: tuple[Bound, ...] | None = None
    """The bindings of the exchange before the write; None if the write does not compare them."""
    in_terminal: bool = False
    """Whether the tasks of a batch print their progress, because their stderr is a terminal."""

    def producer_of(self, query_id: str = "") -> str:
        """The name of the write in streams: partition 0 publishes as ``NAME/0``."""
        return self.options.producer_name or query_id or self.id

    def failure(self, problem: str, stored: str, query_id: str) -> str:
        """The problem, the rows that the broker already has, and what happens to them if the write runs again."""
        if HOW_TO_CONTINUE in problem:  # running again is no help
            return problem
        if not self.options.exactly_once_to_streams:
            then = "another run would write them again"
        elif query_id:
            then = "the restarted query adds only the missing rows, if it has the same partitions"
        else:
            then = f"another run of the same partitions with producerName={self.producer_of()} adds only the missing rows"
        return sentences(problem, f"{stored} are in the broker already; {then}")


class Stopped(Exception):
    """Another task has failed permanently."""


class Verdict:
    """Whether a write has failed, as far as this executor knows."""

    def __init__(self, job: WriteJob) -> None:
        self._file = scratch_file(f"rabbit-chx-failed-{job.id}") if job.options.fail_fast else None
        """Exists once the write has failed; None if the tasks do not share their problems."""

    def check(self) -> None:
        """Raise `Stopped` if a task has failed permanently."""
        if self.problem() is not None:
            raise Stopped

    def problem(self) -> str | None:
        """The problem of the failed task; None if no task has failed."""
        try:
            return self._file.read_text("utf-8") if self._file is not None else None
        except OSError:
            return None

    def share(self, problem: str) -> None:
        """Share a problem with the other tasks. The file is renamed so that it appears with its whole text."""
        if self._file is None:
            return
        hidden = self._file.with_name(f"{self._file.name}-{os.getpid()}")
        with suppress(OSError):  # if the disk is full, the other tasks meet the problem themselves
            hidden.write_text(problem, "utf-8", "backslashreplace")
            hidden.replace(self._file)


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
            if sys.platform != "win32":  # without the lock, a line may be missing or occur twice
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            now = time.monotonic()
            file.seek(0)
            text = file.read()
            rows, shown_rows, shown_at = json.loads(text) if text else (0, 0, now)
            rows += confirmed - self._added
            if now >= shown_at + _LINE_SECONDS:
                rate = (rows - shown_rows) / (now - shown_at)
                sys.stderr.write(f"{_CLEAR_LINE}rabbitmq: {rows:,} rows confirmed, {rate:,.0f} per second\n")
                sys.stderr.flush()
                shown_rows, shown_at = rows, now
            file.truncate(0)
            json.dump([rows, shown_rows, shown_at], file)
        self._added, self._due = confirmed, time.monotonic() + _ADD_SECONDS
