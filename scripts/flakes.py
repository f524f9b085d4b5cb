"""Run the tests repeatedly and count the failures.

    .venv/bin/python scripts/flakes.py [--page FILE] unit=20 broker=5

It prints a line for each run and a table for each suite. ``--page`` also writes the table to a file after each run, and
leaves the tables of other suites there unchanged. The exit code is 1 if any test of any run failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pages import filled, table

SUITES = {"unit": ["tests/unit"], "broker": ["tests/broker"]}
HEAD = ("tests", "runs", "tests in all", "failed", "minutes a run")


@dataclass
class Suite:
    """The results of all runs of a suite."""

    name: str
    seconds: list[float] = field(default_factory=list)
    passed: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """How often each test failed, by name; other failures are named too."""

    def add(self, output: str, code: int, seconds: float) -> str:
        """Count one run from pytest's output, and return a summary."""
        last = (output.strip().splitlines() or [""])[-1]
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
        if code and not failed:
            failed = [f"pytest ended with exit code {code}"]
        self.seconds.append(seconds)
        self.failed.update(failed)
        self.passed += int(found[1]) if (found := re.search(r"(\d+) passed", last)) else 0
        return last

    def row(self) -> tuple[str, ...]:
        """Return the suite's row of the table."""
        tests, failures = self.passed + self.failed.total(), self.failed.total()
        minutes = " to ".join(f"{seconds / 60:.1f}" for seconds in (min(self.seconds), max(self.seconds)))
        where = " ".join(f"`{path}`" for path in SUITES[self.name])
        return where, str(len(self.seconds)), f"{tests:,}", str(failures), minutes


def main() -> int:
    """Run the suites named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="+", metavar="NAME=RUNS", type=runs_of, help="unit=20 broker=5")
    parser.add_argument("--page", type=Path, help="the file whose tables are to be renewed")
    parser.add_argument("--workers", default="auto", help="tests at a time, as pytest's -n has it")
    asked = parser.parse_args()
    failed = False
    for name, runs in asked.suites:
        suite = Suite(name)
        for number in range(1, runs + 1):
            print(f"{name} {number} of {runs}: {run(suite, asked.workers)}", flush=True)
            if asked.page:  # after each run, since the next one may be killed
                asked.page.write_text(filled(asked.page.read_text(), {f"flakes {name}": written(suite)}))
        print(f"\n{written(suite)}\n", flush=True)
        failed |= bool(suite.failed)
    return int(failed)


def runs_of(text: str) -> tuple[str, int]:
    """Read NAME=RUNS."""
    name, _, runs = text.partition("=")
    if name not in SUITES or not re.fullmatch("[1-9][0-9]{0,3}", runs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=RUNS, with a name of {', '.join(SUITES)}: unit=20"
        )
    return name, int(runs)


def run(suite: Suite, workers: str) -> str:
    """Run the tests of a suite once; if some fail, print their whole output."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", workers, *SUITES[suite.name]]
    started = time.monotonic()
    done = subprocess.run(pytest, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", flush=True)
    return suite.add(done.stdout, done.returncode, time.monotonic() - started)


def written(suite: Suite) -> str:
    """Return the table, followed by each failed test and how often it failed."""
    failed = [f"* {name}: {times}" for name, times in suite.failed.most_common()]
    return "\n".join([table(HEAD, [suite.row()]), *([""] if failed else []), *failed])


if __name__ == "__main__":
    sys.exit(main())
