"""A test that leaves one of our clients running fails itself, and not the test after it.

What a fixture has started may serve all tests of a file, so the last of them fails if it still runs.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

import pytest

FOLDERS: Final = {"broker", "faults", "cluster"}
NAMES: Final = ("rabbit-chx", "watch-server")
"""How the threads of our clients are named."""
SECONDS: Final = 30.0
"""A client that was closed needs a moment to end its threads."""

BEFORE: Final = pytest.StashKey[set[threading.Thread]]()
FILE: Final = pytest.StashKey[tuple[Path, set[threading.Thread]]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item):
    """Note the threads before the first test of a file, whose fixtures may serve all its tests, and before each call."""
    path, _ = item.session.stash.get(FILE, (None, set()))
    if path != item.path:
        item.session.stash[FILE] = item.path, set(threading.enumerate())
    try:
        return (yield)
    finally:
        item.stash[BEFORE] = set(threading.enumerate())


@pytest.hookimpl(wrapper=True, tryfirst=True)  # so that all fixtures have ended
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None):
    yield
    is_last = nextitem is None or nextitem.path != item.path
    before = item.session.stash[FILE][1] if is_last else item.stash[BEFORE]
    if item.path.parent.name in FOLDERS and (left := left_running(before, SECONDS)):
        pytest.fail(f"the test left these threads running: {', '.join(left)}", pytrace=False)


def left_running(before: set[threading.Thread], seconds: float) -> list[str]:
    """The names of the threads of our clients that are new and do not end in time."""
    ours = [each for each in threading.enumerate() if each not in before and each.name.startswith(NAMES)]
    deadline = time.monotonic() + seconds
    for each in ours:
        each.join(max(0.0, deadline - time.monotonic()))
    return [each.name for each in ours if each.is_alive()]
