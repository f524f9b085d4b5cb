"""Write one partition: prepare each Arrow batch, send it, and wait until the broker has confirmed every row.

Spark runs a failed task again, and that publishes all its rows again. So a task raises only errors that another
attempt may not meet, such as a lost connection. A task reports a permanent error in its commit message, the
other tasks end early (`Verdict`), and the driver raises the error when every task has ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

import pyarrow as pa

from rabbit_chx import InvalidValue
from rabbit_chx.errors import BrokerUnavailable, MissingDependency
from spark_connector.worker import Task, WriteFailed, Written
from spark_connector.writing.between_tasks import ProgressLine, Stopped, Verdict, scratch_file
from spark_connector.writing.bindings import Bound
from spark_connector.writing.options import WriteOptions, no_speculation
from spark_connector.writing.prepare import prepare
from spark_connector.writing.rules import Layout, Rule, row_rules
from spark_connector.writing.sinks import BrokerSink, DryRunSink, PermanentFailure
from spark_connector.writing.stream_sink import StreamSink

ROWS_NAMED: Final = 5
"""Maximum number of dropped rows to describe."""


@dataclass(frozen=True)
class WriteJob:
    """The checked options and columns of a write, for its tasks."""

    options: WriteOptions
    layout: Layout
    id: str = field(default_factory=lambda: uuid4().hex)
    """Shared by all tasks of a write, or of a micro-batch."""
    bindings: tuple[Bound, ...] | None = None
    """The bindings of the exchange before the write; None if the write does not compare them."""
    in_terminal: bool = False
    """Whether the tasks of a batch print their progress, because their stderr is a terminal."""

    def another_run(self, query_id: str) -> str:
        """Describe what happens to the rows that the broker already has if the write runs again."""
        if not self.options.exactly_once_to_streams:
            return "another run would write them again"
        if query_id:
            return "the restarted query adds only the missing rows"
        name = self.options.producer_name or self.id
        return f"another run of the same rows with producerName={name} adds only the missing rows"


def write_partition(batches: Iterator[pa.RecordBatch], job: WriteJob, task: Task) -> Written:
    """Publish the rows of a partition. Return when the broker has confirmed all rows, or when the write has failed permanently."""
    began, problem, progress = time.monotonic(), "", _Progress()
    verdict = Verdict.on(job.id) if job.options.fail_fast else Verdict(None)
    _check_verdict(verdict, job.another_run(task.query_id))
    sink = _sink(job, verdict, task)
    try:
        _check_speculation(job.options, task)
        progress.stopped = not _write_batches(batches, job, task, sink, progress)
        sink.finish()
    except (PermanentFailure, InvalidValue, MissingDependency, BrokerUnavailable) as error:
        if isinstance(error, BrokerUnavailable) and not error.permanent:
            raise
        problem = str(error)
        verdict.share(problem)
    finally:
        sink.close()
    return Written(
        task.partition,
        task.attempt,
        task.query_id,
        task.batch_id,
        rows=progress.rows,
        dropped=progress.dropped,
        first_dropped=tuple(progress.first_dropped),
        seconds=time.monotonic() - began,
        problem=problem,
        exactly_once=job.options.exactly_once_to_streams,
        stopped=progress.stopped,
        **sink.counts(),
    )


def _sink(job: WriteJob, verdict: Verdict, task: Task) -> DryRunSink:
    if job.options.dry_run:
        return DryRunSink(job.options, verdict)
    shown = job.in_terminal and not task.query_id  # Spark reports the progress of queries
    progress = ProgressLine(scratch_file(f"rabbit-chx-rows-{job.id}") if shown else None)
    if job.options.to_streams:
        return StreamSink(job.options, verdict, task, progress, job.id)
    return BrokerSink(job.options, verdict, task, progress)


@dataclass
class _Progress:
    """The counts of a partition so far, and the rules for its rows."""

    rules: list[Rule] = field(default_factory=list)
    rows: int = 0
    dropped: int = 0
    first_dropped: list[str] = field(default_factory=list)
    stopped: bool = False


def _write_batches(
    batches: Iterator[pa.RecordBatch],
    job: WriteJob,
    task: Task,
    sink: DryRunSink,
    progress: _Progress,
) -> bool:
    """Send all rows; return False if the problem of another task stopped this one."""
    try:
        for batch in batches:
            sink.verdict.check()
            if batch.num_rows:
                _write_batch(batch, job, task, sink, progress)
    except Stopped:
        return False
    return True


def _write_batch(
    batch: pa.RecordBatch, job: WriteJob, task: Task, sink: DryRunSink, progress: _Progress
) -> None:
    if not progress.rules:  # limits() connects, so an empty partition opens no connection
        null_is_empty = job.options.null_value == "empty"
        progress.rules = [*row_rules(job.layout, sink.limits(), null_is_empty=null_is_empty)]
    prepared = prepare(batch, job.layout, progress.rules)
    if prepared.invalid:
        named = [
            f"row {progress.rows + row} of partition {task.partition}: {reason}"
            for row, reason in prepared.invalid
        ]
        if job.options.invalid_rows == "fail":
            sink.finish()
            raise PermanentFailure(_invalid(named))
        progress.dropped += len(named)
        progress.first_dropped += named[: ROWS_NAMED - len(progress.first_dropped)]
    first, progress.rows = progress.rows, progress.rows + batch.num_rows
    sink.send(prepared, first)


def _invalid(named: list[str]) -> str:
    others = f" (and {len(named) - 1} more in the same Arrow batch)" if len(named) > 1 else ""
    return (
        f"{named[0]}{others}. No row of this Arrow batch was published; use split_valid(df) to separate invalid rows, "
        "or invalidRows=drop to leave them out"
    )


def _check_verdict(verdict: Verdict, another_run: str) -> None:
    if (problem := verdict.problem()) is not None:
        raise WriteFailed(
            f"{problem}. Other tasks were stopped (failFast). Published rows are in the broker already; {another_run}"
        )


def _check_speculation(options: WriteOptions, task: Task) -> None:
    if task.speculation and options.refuses_speculation:
        raise no_speculation()
