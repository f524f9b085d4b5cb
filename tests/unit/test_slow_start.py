"""Which failures make a test of Spark run again."""

from __future__ import annotations

pytest_plugins = "pytester"

PROGRAM = """
import sys

import pytest
from tests.slow_start import TOO_SLOW

runs = {}


@pytest.fixture
def fresh(tmp_path):
    assert not list(tmp_path.iterdir())
    (tmp_path / "used").touch()


def run(name):
    runs[name] = runs.get(name, 0) + 1
    return runs[name]


@pytest.mark.spark
def test_passes_the_second_time(fresh):
    if run("slow") == 1:
        raise RuntimeError(f"the query ended: {TOO_SLOW}.")


@pytest.mark.spark
def test_passes_the_second_time_if_only_the_log_of_spark_has_the_reason():
    if run("logged") == 1:
        print(f"org.apache.spark.SparkException: {TOO_SLOW}.", file=sys.stderr)
        raise RuntimeError("the query ended")


@pytest.mark.spark
def test_fails_twice(fresh):
    raise RuntimeError(f"{TOO_SLOW}: run {run('never')}")


@pytest.mark.spark
def test_another_error():
    raise RuntimeError(f"another error: run {run('another')}")


def test_no_spark():
    raise RuntimeError(f"{TOO_SLOW}: run {run('no spark')}")
"""


def test_only_a_slow_start_of_spark_makes_a_test_run_again_once(pytester, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    pytester.makepyfile(test_them=PROGRAM)
    pytester.makeini("[pytest]\nmarkers = spark")
    result = pytester.runpytest_inprocess("-p", "tests.slow_start", "-p", "no:cacheprovider", "-rA")
    result.assert_outcomes(passed=2, failed=3)
    for line in (
        "PASSED test_them.py::test_passes_the_second_time",
        "PASSED test_them.py::test_passes_the_second_time_if_only_the_log_of_spark_has_the_reason",
        "FAILED test_them.py::test_fails_twice - RuntimeError: Python worker failed to connect back: run 2",
        "FAILED test_them.py::test_another_error - RuntimeError: another error: run 1",
        "FAILED test_them.py::test_no_spark - RuntimeError: Python worker failed to connect back: run 1",
    ):
        result.stdout.fnmatch_lines_random([line])
