"""Several tests at a time, ``pytest -n 2``: which of them stay together, and which are begun first.

Brokers, clusters and Sparks take long to start, so tests that share one make a room and stay on one worker; all others
stay with their file, for its fixtures. A worker that is done takes the next room.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any, Final

import pytest

LONGEST_FIRST: Final = ("broker", "spark", "faults", "cluster", "property", "unit")
"""Folders, so that no worker begins a long room when the others are done. Of each, the newest release has most tests."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Rooms(LoadScopeScheduling):
        """Keeps the tests of a room on one worker."""

        def _split_scope(self, nodeid: str) -> str:
            return room_of(nodeid)

    # In the order of LONGEST_FIRST, not in that of their numbers of tests.
    config.option.loadscopereorder = False
    return Rooms(config, log)


def room_of(nodeid: str) -> str:
    """The folder, the release of RabbitMQ and the half of a long folder; or the file of a test that needs no broker."""
    path = nodeid.partition("::")[0]
    folder = folder_of(nodeid)
    if folder in {"property", "unit"}:
        return path
    half = "topology" if path.startswith("tests/broker/test_topology_") else ""
    return " ".join(filter(None, (folder, release_of(nodeid), half)))


def place_of(nodeid: str) -> tuple[int, ...]:
    """By which tests are sorted."""
    return LONGEST_FIRST.index(folder_of(nodeid)), *(
        -int(part) for part in release_of(nodeid).split(".") if part
    )


def release_of(nodeid: str) -> str:
    """The release of RabbitMQ that a test runs on, where there are several."""
    found = re.search(r"[\[-](\d+\.\d+)[]-]", nodeid)
    return found[1] if found and folder_of(nodeid) in {"broker", "cluster", "faults"} else ""


def folder_of(nodeid: str) -> str:
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    return next((part for part in parts if part in LONGEST_FIRST), LONGEST_FIRST[-1])
