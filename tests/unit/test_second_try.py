"""Which failures have a second try, and what is said about them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.proof import Lost, never, promised
from tests.second_try import no_second_try

pytest_plugins = "pytester"

REPOSITORY = Path(__file__).parents[2]

BASE = """
import os
import pytest
from pathlib import Path
from tests.proof import Lost


def tries(name):
    '''How often this was called, in all processes.'''
    path = Path(__file__).with_name(f"{name}.tries")
    count = len(path.read_text()) + 1 if path.exists() else 1
    path.write_text("x" * count)
    return count
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Run tests with a second try; the result has the lines that `fnmatch` compares."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("COLUMNS", "200")

    def run(program: str, *options: str):
        pytester.makepyfile(test_them=BASE + program)
        return pytester.runpytest_subprocess("-p", "tests.second_try", "--second-try", *options)

    return run


def tries(pytester, name: str) -> int:
    return len((pytester.path / f"{name}.tries").read_text())


FLAKY = """
@pytest.fixture
def tidy():
    yield
    assert tries("tidy") > 1, "left a thread behind"


@pytest.mark.parametrize("odd", ["a b", "[x] :: ü"])
def test_passes_alone(odd):
    print("what it printed")
    assert tries(f"alone {odd[0]}") > 1, "the machine was busy"


def test_is_tidy_alone(tidy):
    pass


def test_passes():
    assert tries("passes") == 1
"""


def test_what_passes_the_second_time_is_flaky_and_named(run, pytester) -> None:
    result = run(FLAKY)
    assert result.ret == 0
    assert "3 flaky" in result.outlines[-1]
    flaky = [line for line in result.outlines if line.startswith("FLAKY") and " - " in line]
    assert sorted(line.partition(" - ")[2].partition("\n")[0] for line in flaky) == [
        "AssertionError: left a thread behind",
        "AssertionError: the machine was busy",
        "AssertionError: the machine was busy",
    ]
    assert not [line for line in result.outlines if line.startswith(("FAILED", "ERROR"))]
    written = (pytester.path / "build" / "flaky.txt").read_text()
    assert written.count("FLAKY test_them.py::") == 3
    assert "what it printed" in written
    assert "test_is_tidy_alone (teardown)" in written


NEVER = """
def test_never_passes():
    assert tries("never") == 0


def test_is_skipped_alone():
    assert tries("skipped") > 1
    pytest.skip("no broker")
"""


def test_what_fails_twice_fails_and_a_skip_is_no_success(run, pytester) -> None:
    result = run(FLAKY + NEVER, "-n", "2")
    assert result.ret == 1
    assert tries(pytester, "never") == 2
    assert "2 failed" in result.outlines[-1]
    assert "3 flaky" in result.outlines[-1]


PROMISE = "def test_promise():\n    raise Lost('3 messages')\n"
CRASH = "def test_crash():\n    os._exit(3)\n"
OTHER = "def test_other():\n    assert tries('other') > 1\n"


@pytest.mark.parametrize(
    ("program", "another_file", "why"),
    [
        (PROMISE, "", "test_them.py::test_promise broke a promise"),
        (CRASH, "", "the process that ran test_them.py::test_crash crashed"),
        ("", "import no_such_module", "a file could not be collected"),
    ],
    ids=["a broken promise", "a crash", "a file that cannot be collected"],
)
def test_there_is_no_second_try(run, pytester, program, another_file, why) -> None:
    pytester.makepyfile(test_another=another_file)
    result = run(f"{OTHER}\n\n{program}", "-n", "2", "--continue-on-collection-errors")
    assert result.ret == 1
    assert tries(pytester, "other") == 1
    result.stdout.fnmatch_lines([f"*no second try: {why}*"])


def test_a_loss_and_a_wait_in_vain_break_a_promise() -> None:
    with pytest.raises(Lost):
        never(lost=(), out_of_order=[1])
    with pytest.raises(Lost), promised():
        pytest.fail("waited in vain")
    with pytest.raises(Lost), promised():
        assert not "empty"
    never(lost=())


def failures(count: int, when: str) -> list[list[SimpleNamespace]]:
    text = "AssertionError: did not start"
    return [
        [SimpleNamespace(nodeid=f"test_{n}", when=when, longrepr=None, longreprtext=text)]
        for n in range(count)
    ]


def test_more_than_eight_causes_have_no_second_try() -> None:
    assert no_second_try(failures(8, "call")) == ""
    assert no_second_try(failures(9, "call")) == "9 causes, more than 8"
    assert no_second_try(failures(20, "setup")) == ""  # a fixture that fails for all of them
