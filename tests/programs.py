"""Programs that tests start, and what they print."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from typing import Final

import pytest

from tests.proof import in_ci

ran: Final = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=600)
"""Run a program to its end; returns its exit code and its output as text."""


def needed(*names: str) -> str:
    """Return the path of the first of these programs that is installed; a test without one is skipped, and fails in CI."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        reason = f"{' or '.join(names)} is not installed: run scripts/bootstrap.py watch"
        (pytest.fail if in_ci() else pytest.skip)(reason)
    return found
