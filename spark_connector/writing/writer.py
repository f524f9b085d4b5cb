"""The methods of a write that Spark calls: `write` in the tasks, `commit` and `abort` on the driver.

The driver raises the permanent errors that tasks have reported and logs a summary of a successful write. After a
successful write, `commit` never raises because of the broker: Spark would repeat the whole micro-batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from spark_connector.logs import log_line
from spark_connector.worker import Task, WriteFailed, Written, freeze_worker
from spark_connector.writing.bindings import changes
from spark_connector.writing.counts import WriteCounts, sums
from spark_connector.writing.partition import ROWS_NAMED, WriteJob, write_partition

_PROBLEMS_SHOWN: Final = 3


class Writer(DataSourceArrowWriter, DataSourceStreamWriter):
    """The writer of ``df.write`` and ``df.writeStream``; Spark pickles it.

    PySpark 4.0 passes Arrow batches of a stream only to a subclass of both.
    """

    def __init__(self, job: WriteJob, counts: WriteCounts | None = None) -> None:
        self._job = job
        self._counts = counts

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition; called in a Python worker for each attempt of a task."""
        written = write_partition(iterator, self._job, Task.current())
        freeze_worker()
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int | None = None) -> None:
        """Raise if a row is missing, else log the totals; called on the driver when every task has ended."""
        written = [one for one in messages if isinstance(one, Written)]
        if len(written) < len(messages):
            raise WriteFailed(
                "tasks reported nothing, so no row was written. Spark does not call Python sinks with "
                "trigger(continuous=...): use trigger(processingTime=...) or trigger(availableNow=True)"
            )
        confirmed = sum(one.confirmed for one in written)
        if problems := _problems(written):
            raise WriteFailed(
                f"{problems}. {confirmed} rows are in the broker already; {self._job.another_run(written[0].query_id)}"
            )
        if lost := sum(one.published for one in written) - confirmed:
            raise WriteFailed(f"{lost} rows were published but not confirmed")
        if self._counts is not None:
            self._counts.add(written)
        changed = changes(self._job.options, self._job.bindings)
        line = {
            "event": "dry run" if self._job.options.dry_run else "written",
            "exchange": self._job.options.exchange,
            "stream": self._job.options.stream or self._job.options.super_stream,
            "batch": batch_id,
            "query": next((one.query_id for one in written if one.query_id), None),
            "partitions": len(written),
            **sums(written),
            "seconds": round(max((one.seconds for one in written), default=0.0), 3),
            "bindings_changed": changed,
            "first_dropped": [row for one in written for row in one.first_dropped][:ROWS_NAMED],
        }
        log_line(
            logging.WARNING if changed else logging.INFO,
            json.dumps({name: value for name, value in line.items() if value not in (None, [])}),
        )

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int | None = None) -> None:  # noqa: ARG002
        """Report a job that failed or a query that was stopped; running tasks may still publish rows."""
        written = [one for one in messages if isinstance(one, Written)]
        if self._counts is not None:
            self._counts.add(written, failed=True)
        log_line(
            logging.WARNING,
            f"write not completed: {len(written)} of {len(messages)} partitions reported "
            f"{sum(one.confirmed for one in written)} confirmed rows; the broker keeps them",
        )


def _problems(written: list[Written]) -> str:
    """Describe the first problems of the partitions and count the others. Empty if there is no problem."""
    found = [one.problem for one in written if one.problem]
    more = len(found) - _PROBLEMS_SHOWN
    stopped = sum(one.stopped and not one.problem for one in written)
    parts = found[:_PROBLEMS_SHOWN]
    if more > 0:
        parts.append(f"and {more} more partitions")
    if stopped:
        parts.append(f"{stopped} other partitions were stopped (failFast)")
    return "; ".join(parts)
