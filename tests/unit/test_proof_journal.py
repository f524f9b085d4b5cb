"""A proof that is interrupted continues with the tests that have not ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof_journal import PATH, read

pytest_plugins = "pytester"

PROGRAM = """
import os, signal, time
from pathlib import Path
import pytest
from tests.proof import Check, record_result

@pytest.mark.parametrize("name", "abcd")
def test_it(name):
    with Path("called").open("a") as file:
        file.write(name)
    if name == "c" and Path("called").read_text().count("c") == 1:
        os.kill(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid(), signal.SIGINT)
        time.sleep(60)
    record_result(Check("Ring", name, "4.3", 5, 0, 1.0, ""))
    assert name != "b"
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_an_interrupted_proof_continues_after_the_tests_that_have_ended(pytester, monkeypatch, workers):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("RABBIT_CHX_SEED", "5")
    pytester.makepyfile(test_them=PROGRAM)
    pytester.makeini("[pytest]\nmarkers =\n    proves\n    proof")

    def run(*more: str) -> int:
        plugins = ("-p", "tests.proof_report", "-p", "tests.proof_journal")
        return pytester.runpytest_subprocess(*plugins, "--proof", "page.md", "-n", workers, *more).ret

    assert run() == pytest.ExitCode.INTERRUPTED
    page, called, journal = (pytester.path / each for each in ("page.md", "called", PATH))
    assert "The run was interrupted.\n\n0 scenarios" in page.read_text()
    assert called.read_text() == "abc"
    with journal.open("ab") as file:
        file.write(journal.read_bytes()[:50])  # killed while it wrote
    assert len(read(journal).done) == 2
    kept = journal.read_bytes()
    assert run("test_them.py::test_it[a]") == pytest.ExitCode.OK  # other arguments are another proof
    assert called.read_text() == "abca"
    journal.write_bytes(kept)
    monkeypatch.setenv("RABBIT_CHX_SEED", "6")
    assert run() == pytest.ExitCode.TESTS_FAILED
    assert called.read_text() == "abcacd"
    assert "20 cases checked: **0 wrong**. Tests: 3 passed, 1 failed." in page.read_text()
    assert ", seed 5 and 6, " in page.read_text()
    assert not journal.exists()
