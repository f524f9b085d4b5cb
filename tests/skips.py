"""The summary of skipped tests: one line for each reason, with the number of tests.

Without a broker, hundreds of tests are skipped for a few long reasons, which pytest would print once for each test.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter) -> None:
    for line in lines(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)


def lines(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """One line for each reason, the most frequent first."""
    reasons = Counter(reason(report) for report in reports)
    return [f"SKIPPED [{count}] {text}" for text, count in reasons.most_common()]


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason of a skipped test, or of a file that was skipped as a whole."""
    _, _, text = report.longrepr
    return " ".join(text.removeprefix("Skipped: ").split())
