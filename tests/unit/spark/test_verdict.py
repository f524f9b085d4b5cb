"""The tasks of a write share a permanent problem and stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_connector import WriteFailed
from spark_connector.worker import Task, Written
from spark_connector.writing.between_tasks import WriteJob
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

    def batches() -> Iterator[pa.RecordBatch]:
        yield EMPTY
        assert written(dry_run_of(write), INVALID).problem
        yield BATCH

    found = write_partition(batches(), write, Task(1))
    assert (found.stopped, found.problem, found.published) == (True, "", 0)


def dry_run_of(write: WriteJob) -> WriteJob:
    """Return a dry run with the id of a write, so that its tasks share problems with those of the write."""
    dry = job(dryRun="true")
    return WriteJob(dry.options, dry.layout, write.id)


def test_without_fail_fast_the_other_tasks_write_their_rows(scratch: Path) -> None:
    write = job(dryRun="true", failFast="false")
    assert written(write, INVALID).problem
    assert not written(write, EMPTY, partition=1).stopped
    assert [*scratch.iterdir()] == []


@pytest.mark.parametrize("folder", ["", "/no/such/folder"])
def test_a_task_without_a_scratch_folder_still_reports_its_error(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", folder)
    write = job(dryRun="true")
    assert written(write, INVALID).problem
    assert not written(write, EMPTY, partition=1).stopped
