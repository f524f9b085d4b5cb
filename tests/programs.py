"""Programs that tests start, and what they print."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.members import in_background
from tests.patience import PATIENCE
from tests.proof import in_ci

ran: Final = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=5 * PATIENCE)
"""Run a program to its end; returns its exit code and its output as text."""


def loaded_after(*statements: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after these statements."""
    script = "; ".join(["import sys", *statements, "print(*sys.modules, file=sys.stderr)"])
    done = ran([sys.executable, "-c", script], cwd=Path(__file__).parents[1], check=True, timeout=PATIENCE)
    return set(done.stderr.split())


def peak(*, reset: bool = False) -> int:
    """The most bytes that this process has held since the last reset; at first, also what its parent had."""
    process = Path("/proc/self")
    if reset:
        (process / "clear_refs").write_text("5")
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def needed(*names: str) -> str:
    """Return the path of the first of these programs that is installed; a test without one is skipped, and fails in CI."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        reason = f"{' or '.join(names)} is not installed: run scripts/bootstrap.py watch"
        (pytest.fail if in_ci() else pytest.skip)(reason)
    return found


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """The command lines of all programs that run meanwhile."""
    lines: set[str] = set()

    def watch(ended: threading.Event) -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(0.1)
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended
                    lines.add((process / "cmdline").read_text(errors="replace").replace("\0", " "))

    with in_background(watch):
        yield lines


@contextmanager
def stopping(running: Any) -> Iterator[Any]:
    """Stop a query, a reader or a program at the end of the block."""
    try:
        yield running
    finally:
        running.stop()
