"""Which failures have a second try, and what is said about them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = "pytester"

REPOSITORY = Path(__file__).parents[2]

BASE = """
import os
import pytest
from pathlib import Path
from tests.proof import Lost, never, promised


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


@pytest.mark.parametrize("lanes", ["0", "2"])
def test_what_passes_the_second_time_is_flaky_and_named(run, pytester, lanes) -> None:
    result = run(FLAKY, "-n", lanes)
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


def test_what_fails_twice_fails(run, pytester) -> None:
    result = run(
        FLAKY + "\ndef test_never_passes():\n    assert tries('never') == 0\n",
        "-n",
        "2",
        "-k",
        "alone or never",
    )
    assert result.ret == 1
    assert tries(pytester, "never") == 2
    assert "1 failed" in result.outlines[-1]
    assert "3 flaky" in result.outlines[-1]


def test_a_skip_is_no_success(run) -> None:
    result = run("def test_it():\n    assert tries('it') > 1\n    pytest.skip('no broker')\n")
    assert result.ret == 1
    assert "1 failed" in result.outlines[-1]


PROMISES = {
    "raised": "raise Lost('3 messages')",
    "lost": "never(lost={7} if tries('again') else ())",
    "out_of_order": "never(lost=(), out_of_order=[1])",
    "late": "with promised(): pytest.fail('waited in vain')",
    "wrong": "with promised(): assert not 'empty'",
}


@pytest.mark.parametrize(("promise", "lanes"), [*((each, "0") for each in PROMISES), ("lost", "2")])
def test_a_broken_promise_has_no_second_try(run, pytester, promise, lanes) -> None:
    program = f"def test_promise():\n    tries('promise')\n    {PROMISES[promise]}\n"
    result = run(program + "\ndef test_other():\n    assert tries('other') > 1\n", "-n", lanes)
    assert result.ret == 1
    assert tries(pytester, "promise") == tries(pytester, "other") == 1
    result.stdout.fnmatch_lines(["*no second try: test_them.py::test_promise broke a promise*"])


def test_more_than_eight_causes_have_no_second_try(run, pytester) -> None:
    result = run("@pytest.mark.parametrize('n', range(9))\ndef test_n(n):\n    assert tries(str(n)) > 1\n")
    assert result.ret == 1
    assert tries(pytester, "0") == 1
    result.stdout.fnmatch_lines(["*no second try: 9 causes, more than 8*"])


def test_a_fixture_that_fails_for_many_tests_is_one_cause(run) -> None:
    result = run(
        "@pytest.fixture(scope='session')\ndef broker():\n    assert tries('start') > 1, 'did not start'\n\n\n"
        "@pytest.mark.parametrize('n', range(20))\ndef test_n(n, broker):\n    pass\n"
    )
    assert result.ret == 0
    assert "20 flaky" in result.outlines[-1]


def test_a_crash_has_no_second_try(run, pytester) -> None:
    result = run("def test_it():\n    if tries('it') == 1:\n        os._exit(3)\n", "-n", "2")
    assert result.ret == 1
    assert tries(pytester, "it") == 1
    result.stdout.fnmatch_lines(["*no second try: the process that ran test_them.py::test_it crashed*"])


@pytest.mark.parametrize("lanes", ["0", "2"])
def test_a_file_that_cannot_be_collected_has_no_second_try(run, pytester, lanes) -> None:
    pytester.makepyfile(test_broken="import no_such_module")
    result = run(
        "def test_it():\n    assert tries('it') > 1\n", "-n", lanes, "--continue-on-collection-errors"
    )
    assert result.ret == 1
    assert tries(pytester, "it") == 1
