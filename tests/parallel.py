"""Which tests share a worker of ``pytest -n 2``, which run first, and a line when another broker or Spark is started.

Brokers, clusters and Sparks take long to start, so tests that share one make a group and stay on one worker. All other
tests stay with their file, for its fixtures. An idle worker takes the next group.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import PurePosixPath
from typing import Any, Final

import pytest

LONGEST_FIRST: Final = ("spark", "faults", "broker", "cluster", "property", "unit")
"""The folders in the order in which they run, so that no worker starts a long group after the other has finished."""

NEWEST: Final = "4.3"
"""The release with most tests: its broker tests make three groups, and its fault tests two, as all tests of Spark do."""

CONSUMERS: Final = ("async_group", "group", "handover", "queue_reader", "rebalance", "scaling", "stream")
OWN_SPARKS: Final = ("archives", "connect", "demo", "order", "progress", "readme", "secrets", "session")
PARTS: Final = {
    "broker": {"consumers": CONSUMERS, "topology": ("topology",)},
    "faults": {"spark": ("spark",)},
    "spark": {"processes": OWN_SPARKS},
}
"""The files of these groups, by the beginnings of their names; one more group of each folder has all other files."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores, since tests often wait; at most four, since each has its own broker."""
    return min(4, (os.cpu_count() or 1) + 1)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: sort_key(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        """Keeps the tests of a group on one worker."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    # Run in the order of LONGEST_FIRST, and not the groups with most tests first.
    config.option.loadscopereorder = False
    return Groups(config, log)


class Progress:
    """Prints a line whenever the run starts another broker or Spark: which one, for how many tests, and what is done."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._groups: Counter[str] = Counter()
        self._started: set[str] = set()
        self._done = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._count([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Count the tests of a worker; all workers have collected the same."""
        self._count(ids)

    def _count(self, ids: list[str]) -> None:
        self._groups = Counter(map(group_of, ids))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        group = group_of(nodeid)
        if group in self._started or folder_of(nodeid) in {"property", "unit"}:
            return
        self._started.add(group)
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        terminal.ensure_newline()
        terminal.write_line(self.line(group))

    def line(self, group: str) -> str:
        real = [one for one in self._groups if not one.startswith("tests/")]
        return (
            f"[{self._done:,} of {self._groups.total():,} tests done] starting {what_starts(group)} ({len(self._started)} "
            f"of {len(real)}) for {self._groups[group]} tests in tests/{group.split(maxsplit=1)[0]}"
        )

    def pytest_runtest_logfinish(self) -> None:
        self._done += 1


def what_starts(group: str) -> str:
    """The broker or Spark that the tests of a group share."""
    folder, release, *_ = [*group.split(), ""]
    if folder == "spark":
        return "Spark"
    if not release:
        return "brokers"
    return f"a cluster of RabbitMQ {release}" if folder == "cluster" else f"RabbitMQ {release}"


def group_of(nodeid: str) -> str:
    """The folder, the release of RabbitMQ and the part of a long folder; or the file of a test that needs no broker."""
    path = nodeid.partition("::")[0]
    folder = folder_of(nodeid)
    if folder in {"property", "unit"}:
        return path
    release = release_of(nodeid)
    part = part_of(folder, path) if release == NEWEST or folder == "spark" else ""
    return " ".join(filter(None, (folder, release, part)))


def part_of(folder: str, path: str) -> str:
    """The part of the tests of a folder to which a file belongs."""
    name = PurePosixPath(path).name.removeprefix("test_")
    return next((part for part, names in PARTS.get(folder, {}).items() if name.startswith(names)), "")


def sort_key(nodeid: str) -> tuple[int, ...]:
    """Order tests by folder, the newest release first, since it has most tests."""
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
