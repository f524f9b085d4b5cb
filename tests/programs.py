"""Programs that tests start, and what they print."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import Final

ran: Final = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=600)
"""Run a program to its end; returns its exit code and its output as text."""
