"""A test that leaves a thread of a client running is the one that fails."""

from __future__ import annotations

from pathlib import Path

pytest_plugins = "pytester"

PROGRAM = """
import threading
import pytest
import tests.leaks

tests.leaks.SECONDS = 0.1


def start(name):
    event = threading.Event()
    thread = threading.Thread(target=event.wait, name=name, daemon=True)
    thread.start()
    return event


@pytest.fixture(scope="module")
def shared():
    event = start("rabbit-chx group")
    yield
    event.set()


@pytest.fixture
def untidy():
    start("rabbit-chx handler")


def test_leaks(shared):
    start("rabbit-chx publisher")


def test_is_tidy(shared):
    start("of another library")


def test_has_an_untidy_fixture(untidy):
    pass
"""


def test_the_test_that_leaves_a_thread_behind_fails(pytester, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("COLUMNS", "200")
    pytester.mkdir("faults").joinpath("test_them.py").write_text(PROGRAM)
    result = pytester.runpytest_subprocess("-p", "tests.leaks")
    result.assert_outcomes(passed=3, errors=2)
    found = [line for line in result.outlines if line.startswith("ERROR")]
    assert "test_leaks - Failed: the test left these threads running: rabbit-chx publisher" in found[0]
    assert "rabbit-chx handler" in found[1]
    assert "rabbit-chx group" not in "".join(found)
