"""What the tasks of a write share: a permanent problem, after which they stop, and the line in the terminal that shows their progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_connector import WriteFailed
from spark_connector.session import SessionSettings
from spark_connector.worker import Task, Written
from spark_connector.writing import between_tasks
from spark_connector.writing.between_tasks import ProgressLine, WriteJob
from spark_connector.writing.partition import write_partition
from tests.unit.spark.test_writer import BATCH, job

INVALID = pa.record_batch([pa.array(["a"]), pa.array([None], pa.string())], names=["value", "key"])
EMPTY = BATCH.slice(0, 0)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/another")
    return tmp_path


def written(write: WriteJob, *batches: pa.RecordBatch, partition: int = 0) -> Written:
    return write_partition(iter(batches), write, Task(partition))


def test_after_a_permanent_error_no_other_task_of_the_write_starts() -> None:
    failing, other = job(dryRun="true"), job(dryRun="true")
    assert "routing_key is null" in written(failing, INVALID).problem
    for _attempt in range(2):
        with pytest.raises(
            WriteFailed, match=r"row 0 of partition 0: routing_key is null.* in the broker already"
        ):
            written(failing, EMPTY, partition=1)
    assert not written(other, EMPTY, partition=1).stopped


def test_a_running_task_stops_before_its_next_batch() -> None:
    write = job()  # publishing would fail: there is no broker
    dry = replace(job(dryRun="true"), id=write.id)  # its tasks share problems with those of the write

    def batches() -> Iterator[pa.RecordBatch]:
        yield EMPTY
        assert written(dry, INVALID).problem
        yield BATCH

    found = write_partition(batches(), write, Task(1))
    assert (found.stopped, found.problem, found.published) == (True, "", 0)


@pytest.mark.parametrize(
    ("fail_fast", "folder"),
    [("false", None), ("true", ""), ("true", "/no/such/folder")],
    ids=["without failFast", "without a scratch folder", "where the folder does not exist"],
)
def test_the_other_tasks_write_their_rows_where_no_task_is_told_of_the_error(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, fail_fast: str, folder: str | None
) -> None:
    if folder is not None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folder)
    write = job(dryRun="true", failFast=fail_fast)
    assert written(write, INVALID).problem
    assert not written(write, EMPTY, partition=1).stopped
    assert [*scratch.iterdir()] == []


# ---- progress


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
