"""The first permanent problem of a write, shared by the tasks of an executor.

Spark retries a task that raises, and a sink written in Python cannot reach the driver before its task has ended. So a
task with a permanent problem writes it to a file in the executor's scratch folder, and reports it in its commit message.
A running task that finds the file stops and reports what it has published. A task that has not started raises instead: it
has published nothing, so Spark can retry it without duplicates, and the last retry ends the job.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
