"""``pytest --second-try``: what failed runs once more, alone, when everything else has ended.

A test that fails because the machine was busy, or because of the test beside it, passes when it runs alone: one at a time, in a
new process. It is then printed as FLAKY with its first failure in full, and added to build/flaky.txt. What fails twice fails.

There is no second try if

* a test raised `tests.proof.Lost`: a message that is lost once in a while is lost;
* a process that ran tests crashed, or a file could not be collected;
* there are more than eight causes, since so many failures are no bad luck.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import SUPPRESS
from collections import defaultdict
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.proof import Lost

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_CAUSES: Final = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("rabbit-chx").addoption
    add("--second-try", action="store_true", help="run failed tests once more, alone, at the end")
    # The second try writes the names of the tests that passed into this file.
    add("--passed-to", type=Path, help=SUPPRESS)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    if config.getoption("--second-try"):
        config.pluginmanager.register(FirstTry(config))
    if config.getoption("--passed-to"):
        config.pluginmanager.register(Passed(config.getoption("--passed-to")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    report.final = call.excinfo is not None and isinstance(call.excinfo.value, Lost)
    return report


class FirstTry:
    """The failures of a run, and their second try when it ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failures: defaultdict[str, list[Any]] = defaultdict(list)
        """The failed reports of each test: of its setup, its call, its teardown."""
        self._uncollected = False
        self._flaky: list[Any] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failures[report.nodeid].append(report)

    def pytest_collectreport(self, report: Any) -> None:
        self._uncollected = self._uncollected or report.failed

    @pytest.hookimpl(trylast=True)  # when pytest-xdist has ended its processes
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.TESTS_FAILED:
            return
        why_not = (
            "a file could not be collected" if self._uncollected else no_second_try(self._failures.values())
        )
        terminal = self._terminal
        terminal.ensure_newline()
        if why_not:
            terminal.section(f"no second try: {why_not}", red=True)
            return
        terminal.section(f"second try, alone: {len(self._failures)} of the tests failed", yellow=True)
        terminal.flush()
        passed = run_again(self._config, list(self._failures))
        self._flaky = [*chain.from_iterable(self._failures[each] for each in passed)]
        self._forget_failures(passed)
        if passed == self._failures.keys():
            session.exitstatus = pytest.ExitCode.OK

    def _forget_failures(self, passed: set[str]) -> None:
        """Count what passed the second time as flaky, and not as failed."""
        stats = self._terminal.stats
        for outcome in ("failed", "error"):
            stats[outcome] = [each for each in stats.get(outcome, ()) if each.nodeid not in passed]
            if not stats[outcome]:
                del stats[outcome]
        if self._flaky:
            stats["flaky"] = self._flaky

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._flaky:
            return
        texts = [f"FLAKY {each.nodeid} ({each.when})\n\n{text_of(each)}\n" for each in self._flaky]
        path = self._config.rootpath / "build" / "flaky.txt"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.writelines(f"{text}\n" for text in texts)
        terminalreporter.section("flaky: failed, and passed when run alone (build/flaky.txt)")
        for text in texts:
            terminalreporter.line(text)
        for each in self._flaky:
            terminalreporter.line(f"FLAKY {each.nodeid} - {cause_of(each)}")

    @property
    def _terminal(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")


class Passed:
    """Writes which tests of a second try passed, in each of their phases."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        elif report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text("\n".join(self._passed - self._failed))


def no_second_try(failures: Iterable[list[Any]]) -> str:
    """Why failures are final; empty if they are not."""
    causes = set()
    for report in chain.from_iterable(failures):
        if getattr(report, "final", False):
            return f"{report.nodeid} broke a promise"
        if report.when not in {"setup", "call", "teardown"}:
            return f"the process that ran {report.nodeid} crashed"
        causes.add(cause_of(report) if report.when == "setup" else report.nodeid)
    return f"{len(causes)} causes, more than {MOST_CAUSES}" if len(causes) > MOST_CAUSES else ""


def cause_of(report: Any) -> str:
    """The first line of the error: tests whose setup fails with the same one wait for the same broken fixture."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return next(iter((crash.message if crash else report.longreprtext).splitlines()), "")


def text_of(report: Any) -> str:
    return "\n".join([report.longreprtext, *chain.from_iterable(report.sections)])


def run_again(config: pytest.Config, nodeids: list[str]) -> set[str]:
    """Run tests one at a time in a new process with the same options, and return those that passed."""
    given = set(config.option.file_or_dir) | {"--second-try"}
    options = [each for each in config.invocation_params.args if each not in given]
    with TemporaryDirectory() as folder:
        asked, passed = Path(folder, "asked"), Path(folder, "passed")
        asked.write_text("\n".join(nodeids))
        alone = ["-n", "0", "--passed-to", str(passed), f"@{asked}"]
        command = [sys.executable, "-m", "pytest", *options, *alone]
        subprocess.run(command, check=False, cwd=config.invocation_params.dir)
        return set(passed.read_text().splitlines()) if passed.exists() else set()
