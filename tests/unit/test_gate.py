"""`.ci/run`: which stage of it failed, and which stages run after a failure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

GATE = Path(__file__).parents[2] / ".ci" / "run"
MAKE = """#!/bin/sh
for target; do echo "$target" >> made; done
case " $* " in *" $BROKEN "*) exit 2 ;; esac
"""
ALL = ["lint", "unit", "long", "oldest-spark", "oldest", "site", "newest"]

pytestmark = pytest.mark.skipif(not GATE.exists(), reason="an archive of the sources has no .ci/run")


@pytest.fixture
def run(tmp_path):
    """Run it in an empty folder, with a `make` that only writes down its targets and fails for one of them."""
    gate, make = tmp_path / ".ci" / "run", tmp_path / "bin" / "make"
    for path in (gate, make):
        path.parent.mkdir()
    shutil.copy(GATE, gate)
    make.write_text(MAKE)
    make.chmod(0o755)

    def run(broken: str) -> tuple[int, list[str]]:
        """The exit status, and the targets in the order in which it says what they took."""
        environment = {**os.environ, "PATH": f"{make.parent}:{os.environ['PATH']}", "BROKEN": broken}
        ended = subprocess.run(["bash", gate], env=environment, check=False, capture_output=True, text=True)
        told = re.findall(r"^ci: make (\S+) took", ended.stdout, re.MULTILINE)
        made = (tmp_path / "made").read_text().split()
        assert sorted(told) == sorted(each for each in made if not each.startswith("-"))
        return ended.returncode, told

    return run


LATER = {"long": 13, "oldest": 15, "oldest-spark": 15, "newest": 16, "site": 17}


@pytest.mark.parametrize(
    ("broken", "status", "made"),
    [
        ("nothing", 0, ALL),
        ("lint", 11, ["lint"]),
        ("unit", 12, ["lint", "unit"]),
        *((stage, status, ALL) for stage, status in LATER.items()),
    ],
)
def test_lint_and_unit_tests_end_the_run_and_a_later_stage_does_not(run, broken, status, made) -> None:
    assert run(broken) == (status, made)
