"""A machine that needs more time gets it everywhere."""

from __future__ import annotations

from pathlib import Path

pytest_plugins = "pytester"

LIMITS = """
import pytest

def test_of_the_usual_limit(request):
    assert request.node.get_closest_marker("timeout").args == (600 * 3,)

@pytest.mark.timeout(20)
def test_of_a_limit_of_its_own(request):
    assert request.node.get_closest_marker("timeout").args == (20 * 3,)
"""


def test_limits_of_tests_grow_with_the_patience(pytester, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("RABBIT_CHX_PATIENCE", "3")
    pytester.makeini("[pytest]\ntimeout = 600")
    pytester.makepyfile(LIMITS)
    pytester.runpytest_subprocess("-p", "tests.patience").assert_outcomes(passed=2)
