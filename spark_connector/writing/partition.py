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

import pyarrow as pa

from rabbit_chx import InvalidValue
from rabbit_chx.base.text import sentences
from rabbit_chx.errors import BrokerUnavailable, MissingDependency
from spark_connector.worker import Task, WriteFailed, Written
from spark_connector.writing.between_tasks import Stopped, WriteJob
from spark_connector.writing.prepare import prepare
from spark_connector.writing.rules import Rule, row_rules
from spark_connector.writing.sinks import BrokerSink, DryRunSink, PermanentFailure
from spark_connector.writing.stream_sink import StreamSink

ROWS_NAMED: Final = 5
"""Maximum number of dropped rows to describe."""


def write_partition(batches: Iterator[pa.RecordBatch], job: WriteJob, task: Task) -> Written:
    """Publish the rows of a partition. Return when the broker has confirmed all rows, or when the write has failed permanently."""
    began, problem = time.monotonic(), ""
    to = DryRunSink if job.options.dry_run else StreamSink if job.options.to_streams else BrokerSink
    sink = to(job, task)
    if (shared := sink.verdict.problem()) is not None:
        problem = sentences(shared, "Other tasks were stopped (failFast)")
        raise WriteFailed(job.failure(problem, "Published rows", task.query_id))
    progress = _Progress(job, task, sink)
    try:
        job.options.check_speculation(on=task.speculation)
        progress.write(batches)
        sink.finish(whole=not progress.stopped)
    except (PermanentFailure, InvalidValue, MissingDependency, BrokerUnavailable) as error:
        if isinstance(error, BrokerUnavailable) and not error.permanent:
            raise
        problem = str(error)
        sink.verdict.share(problem)
    finally:
        sink.close()
    return Written(
        task.partition,
        task.attempt,
        task.query_id,
        rows=progress.rows,
        dropped=progress.dropped,
        first_dropped=tuple(progress.first_dropped),
        seconds=time.monotonic() - began,
        problem=problem,
        exactly_once=job.options.exactly_once_to_streams,
        stopped=progress.stopped,
        **sink.counts(),
    )


@dataclass
class _Progress:
    """The rows of a partition so far, and the rules for them."""

    job: WriteJob
    task: Task
    sink: DryRunSink
    rules: list[Rule] = field(default_factory=list)
    rows: int = 0
    dropped: int = 0
    first_dropped: list[str] = field(default_factory=list)
    stopped: bool = False
    """Whether the problem of another task stopped this one."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Send all rows."""
        try:
            for batch in batches:
                self.sink.verdict.check()
                if batch.num_rows:
                    self._write(batch)
        except Stopped:
            self.stopped = True

    def _write(self, batch: pa.RecordBatch) -> None:
        options, layout = self.job.options, self.job.layout
        if not self.rules:  # limits() connects, so an empty partition opens no connection
            null_is_empty = options.null_value == "empty"
            self.rules = [*row_rules(layout, self.sink.limits(), null_is_empty=null_is_empty)]
        prepared = prepare(batch, layout, self.rules)
        if prepared.invalid:
            where = f"of partition {self.task.partition}"
            named = [f"row {self.rows + row} {where}: {reason}" for row, reason in prepared.invalid]
            if options.invalid_rows == "fail":
                self.sink.finish(whole=False)
                others = f" (and {len(named) - 1} more in the same Arrow batch)" if len(named) > 1 else ""
                raise PermanentFailure(
                    f"{named[0]}{others}. No row of this Arrow batch was published; use split_valid(df) to separate "
                    "invalid rows, or invalidRows=drop to leave them out"
                )
            self.dropped += len(named)
            self.first_dropped += named[: ROWS_NAMED - len(self.first_dropped)]
        first, self.rows = self.rows, self.rows + batch.num_rows
        self.sink.send(prepared, first)
