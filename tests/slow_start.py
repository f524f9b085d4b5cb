"""Run a test of Spark once more if Spark stopped waiting for a Python process to start.

Spark gives the process of a streaming source ten seconds to start (`PythonWorkerFactory.createSimpleWorker`), and has no
setting for this time. A machine that is busy or halts for a moment may need longer. Only this error makes a test run again, and
the report of the test mentions the first run.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol

TOO_SLOW = "Python worker failed to connect back"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if not item.get_closest_marker("spark"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(_too_slow(report) for report in reports):
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        reports[-1].sections.append(("run again", f"the first run failed: {TOO_SLOW}"))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _too_slow(report: pytest.TestReport) -> bool:
    """Whether a test failed, and this error is in its own error or in what Spark logged meanwhile."""
    return report.failed and any(TOO_SLOW in text for text in (report.longreprtext, report.capstderr))
