"""The line in the terminal that shows the progress of a write."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_connector.session import SessionSettings
from spark_connector.writing import between_tasks
from spark_connector.writing.between_tasks import ProgressLine


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(between_tasks.time, "monotonic", lambda: now[0])
    return now


def test_tasks_add_up_their_rows_and_print_a_line_every_five_seconds(
    tmp_path: Path, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = ProgressLine(tmp_path / "rows"), ProgressLine(tmp_path / "rows")
    found = []
    for seconds, task, confirmed in [
        (1, first, 1_000),
        (4, second, 1_500),
        (6, first, 4_000),
        (7, second, 2_500),
        (10, first, 5_000),
        (11, second, 9_000),
    ]:
        clock[0] = 100.0 + seconds
        assert task.due
        task.add(confirmed)
        assert not task.due
        found.append(capsys.readouterr().err.replace("\r\x1b[K", ""))
    assert found == [
        *("", "", "rabbitmq: 5,500 rows confirmed, 1,100 per second\n"),
        *("", "", "rabbitmq: 14,000 rows confirmed, 1,700 per second\n"),
    ]


def test_nothing_is_printed_or_stored_outside_a_terminal(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    line = ProgressLine(None)
    clock[0] += 60
    assert not line.due
    line.add(1_000)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("master", "shown", "terminal", "expected"),
    [
        ("local[2]", "true", True, True),
        ("local[2]", "true", False, False),
        ("local[2]", "false", True, False),
        ("local-cluster[1,1,1]", "true", True, False),
        ("yarn", "true", True, False),
    ],
)
def test_progress_is_shown_on_a_local_master_in_a_terminal_where_spark_shows_its_own(
    master: str, shown: str, terminal: bool, expected: bool
) -> None:
    settings = {"spark.master": master, "spark.ui.showConsoleProgress": shown}
    assert SessionSettings.of(settings, terminal=terminal).in_terminal is expected
