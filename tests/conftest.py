"""Rules for all tests: where CI is set, a test of a broker or of Spark that is skipped is a test that failed."""

from __future__ import annotations

import os

import pytest

REAL = ("broker", "spark")
"""Markers, and the folders of the same names."""


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and any(map(item.get_closest_marker, REAL)):
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
