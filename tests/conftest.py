"""Rules for all tests: Spark gets a Java that it can use; where CI is set, to skip a real broker or Spark is to fail.

A test that an older PySpark cannot pass says so, and is skipped there: ``pytest.mark.pyspark("4.1", "why")``.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rabbit_chx.errors import MissingDependency
from rabbit_chx.testing.node import CannotSupply
from spark_connector.java import find_java
from tests.proof import in_ci
from tests.spark import BRIEF_JAVA

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # Hundreds of tests start Python, which takes three times as long without compiled modules.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(
        Path(__file__).parents[1] / ".pytest_cache/bytecode"
    )

pytest_plugins = [
    f"tests.{each}"
    for each in (
        "proof_report",
        "proof_journal",
        "long_part",
        "parallel",
        "patience",
        "second_try",
        "leaks",
        "canary",
        "wheels",
    )
]

REAL = ("broker", "spark")
"""Markers, and the folders of the same names."""


# No deadline, because other processes share the machine. CI tries the same examples in each run, so that only a change
# can make a test fail; other runs try new ones.
settings.register_profile(
    "rabbit-chx",
    deadline=None,
    derandomize=in_ci(),
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("rabbit-chx")


def pytest_configure() -> None:
    """A run that a shell has put into the background ignores SIGINT, and so would what it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def why_no_spark() -> str:
    """Have PySpark take a Java that it can use, here and in programs started from here; or why there is none."""
    try:
        os.environ["JAVA_HOME"] = str(find_java().home)
        os.environ.setdefault("SPARK_SUBMIT_OPTS", BRIEF_JAVA)
    except MissingDependency as error:
        return str(error)
    return ""


def why_not_on_this_pyspark(item) -> str:
    """Why a test cannot pass on the PySpark that is installed; nothing where it can."""
    for least, reason in (mark.args for mark in item.iter_markers("pyspark")):
        here = metadata.version("pyspark")
        if [int(part) for part in here.split(".")[:2]] < [int(part) for part in least.split(".")]:
            return f"PySpark {here} is older than {least}: {reason}"
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    if why := why_not_on_this_pyspark(item):
        pytest.skip(why)
    if item.get_closest_marker("spark") and why_no_spark():
        pytest.skip(why_no_spark())
    try:
        return (yield)
    except CannotSupply as reason:  # of a fixture that starts a broker
        pytest.skip(str(reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    forbidden = any(map(item.get_closest_marker, REAL)) and not why_not_on_this_pyspark(item)
    if report.skipped and forbidden and not hasattr(report, "wasxfail"):
        _forbid(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if report.skipped and collector.path.parent.name in REAL:  # a whole file, as by importorskip
        _forbid(report)
    return report


def _forbid(report) -> None:
    if in_ci():
        report.outcome = "failed"
        report.longrepr = f"CI is set, and a test of a broker or of Spark was skipped: {report.longrepr[2]}"
