"""The first permanent problem of a write, which the tasks of an executor tell each other.

Spark retries whatever a task raises, and a sink written in Python cannot reach the driver before its task has ended.
So a task with a permanent problem leaves it in a file in the executor's scratch folder, and reports it in its commit
message. A running task that sees the file stops and reports what it has published. A task that has not begun raises:
it has published nothing, so Spark's retries of it are harmless, and the last one ends the job.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SCRATCH: Final = "SPARK_LOCAL_DIRS"
"""Spark names the executor's own folders here, in each Python worker, and removes them with the executor."""


class Stopped(Exception):
    """Another task has failed for good."""


@dataclass(frozen=True)
class Verdict:
    """Whether a write has failed, as far as this executor knows."""

    file: Path | None
    """Exists if it has; None if nobody is to be told."""

    @classmethod
    def on(cls, write: str) -> Verdict:
        """The verdict on the write with this id."""
        folder = os.environ.get(_SCRATCH, "").split(",")[0]
        return cls(Path(folder, f"rabbit-chx-failed-{write}") if folder else None)

    def known(self) -> bool:
        """Whether a task has failed for good; costs about a microsecond."""
        return self.file is not None and self.file.exists()

    def check(self) -> None:
        """Raise `Stopped` if a task has failed for good."""
        if self.known():
            raise Stopped

    def problem(self) -> str | None:
        """The problem of that task; None if there is none."""
        try:
            return self.file.read_text("utf-8") if self.file is not None else None
        except OSError:
            return None

    def leave(self, problem: str) -> None:
        """Tell the other tasks, all at once: no task reads half of the text."""
        if self.file is None:
            return
        hidden = self.file.with_name(f"{self.file.name}-{os.getpid()}")
        with suppress(OSError):  # a full disk: the tasks fail one by one, and none is retried
            hidden.write_text(problem, "utf-8", "backslashreplace")
            hidden.replace(self.file)
