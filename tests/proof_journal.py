"""A plugin of pytest's with which `make proof` continues an interrupted run of the same sources.

The main process appends the report of each phase of a test to a file. The next run of the same tests replays these
reports in place of the tests that have ended, so that their results, failures and minutes count. A complete run deletes the file.
"""

from __future__ import annotations

import pickle
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.proof import SEED

PATH: Final = Path("build/proof.pickle")


@dataclass
class Journal:
    """What was run, the seed, start and end of each run, and the reports."""

    of: tuple[str, ...] = ("",)
    """The commit and the chosen tests."""
    runs: list[tuple[int, float, float]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    def add(self, entry: tuple[int, float, float] | dict[str, Any]) -> None:
        """Add the start of a run, or a report."""
        if isinstance(entry, tuple):
            self.runs.append(entry)
        else:
            seed, start, end = self.runs[-1]
            self.runs[-1] = seed, start, max(end, entry["stop"])
            self.reports.append(entry)

    @property
    def done(self) -> set[str]:
        """The tests that have ended."""
        return {each["nodeid"] for each in self.reports if each["when"] == "teardown"}

    def __str__(self) -> str:
        seeds = " and ".join(str(seed) for seed, _, _ in self.runs)
        minutes = sum(end - start for _, start, end in self.runs) / 60
        day = time.strftime("%-d %B %Y", time.gmtime(self.runs[-1][2]))
        return f"{day}, commit {self.of[0]}, seed {seeds}, {minutes:.0f} minutes"


def read(path: Path) -> Journal:
    """The journal in a file; the last report may be cut off. Without the file, an empty journal."""
    journal = Journal()
    with suppress(FileNotFoundError, EOFError, pickle.UnpicklingError), path.open("rb") as file:
        journal.of = pickle.load(file)
        while True:
            journal.add(pickle.load(file))
    return journal


def commit() -> str:
    """The commit of the sources, and whether they have changed since; the pages may have."""

    def git(*arguments: str) -> str:
        return subprocess.run(("git", *arguments), capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":!*.md")
    return git("rev-parse", "--short=8", "HEAD") + " with changes" * bool(changed)


class Recorder:
    """Keeps the reports of this run, and replays those of earlier runs at its end."""

    def __init__(self, config: pytest.Config) -> None:
        of = commit(), *config.args, config.option.keyword, config.option.markexpr
        self.journal = read(PATH)
        if self.journal.of != of or of[0].endswith("changes"):
            self.journal = Journal(of)
        self._config = config
        self._earlier: list[dict[str, Any]] | None = [*self.journal.reports]
        now = time.time()
        self.journal.runs.append((SEED, now, now))
        PATH.parent.mkdir(exist_ok=True)
        new = PATH.with_suffix(".new")  # the last report of the old file may be cut off
        with new.open("wb") as file:
            for entry in (of, *self.journal.runs, *self.journal.reports):
                pickle.dump(entry, file)
        new.replace(PATH)

    def pytest_report_header(self) -> list[str]:
        done = len(self.journal.done)
        return [f"proof: continues an interrupted run, in which {done:,} tests have ended"] if done else []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._earlier is not None:
            entry = report._to_json()
            entry.pop("node", None)  # the worker
            if report.passed:
                entry["sections"] = []  # what it printed and logged
            self.journal.add(entry)
            with PATH.open("ab") as file:
                pickle.dump(entry, file)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        earlier, self._earlier = self._earlier, None
        for each in earlier or ():
            report = pytest.TestReport._from_json(dict(each))
            self._config.hook.pytest_runtest_logreport(report=report)
        if exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode(bool(session.testsfailed))
        if exitstatus not in {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR}:
            PATH.unlink(missing_ok=True)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--proof") is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config), "proof_recorder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--proof") is not None:
        done = read(PATH).done
        config.hook.pytest_deselected(items=[each for each in items if each.nodeid in done])
        items[:] = [each for each in items if each.nodeid not in done]
