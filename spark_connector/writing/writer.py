"""The methods of a write that Spark calls: `write` in the tasks, `commit` and `abort` on the driver.

The driver raises the permanent errors that tasks have reported and logs a summary of a successful write. If all rows are stored,
`commit` does not raise because the broker does not answer: Spark would repeat the whole micro-batch.

`register` returns the counts of a program's writes. Spark's progress has no metrics for a sink written in Python, and the
sink logs in a separate process. An accumulator reaches the program. `commit` and `abort` add to the accumulator, so an
attempt that Spark repeats is not counted twice.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import pyarrow as pa
from pyspark import Accumulator, AccumulatorParam
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from spark_connector.worker import Task, WriteFailed, Written, freeze_worker, log_line
from spark_connector.writing.between_tasks import WriteJob
from spark_connector.writing.bindings import changes
from spark_connector.writing.partition import ROWS_NAMED, write_partition
from spark_connector.writing.publishing_ids import SAME_PARTITIONS

_PROBLEMS_SHOWN: Final = 3


@dataclass(frozen=True)
class Counts:
    """Sums over batches and micro-batches."""

    writes: int = 0
    """Batches and micro-batches that succeeded."""
    failed_writes: int = 0
    rows: int = 0
    confirmed: int = 0
    already_stored: int = 0
    """Rows that a stream already had from an earlier attempt."""
    dropped: int = 0
    """Invalid rows that ``invalidRows=drop`` left out."""
    resent: int = 0
    """Messages that were sent again: after a lost connection, or because the broker returned or rejected them."""
    possible_duplicates: int = 0
    """Messages that were sent again, plus all messages of tasks that Spark ran again."""
    bytes: int = 0
    connections: int = 0
    """Connections that the tasks opened."""


def sums(written: Collection[Written]) -> dict[str, int]:
    """Add up the counts of the tasks of a write."""
    names = [one.name for one in fields(Counts) if hasattr(Written, one.name)]
    return {name: sum(getattr(one, name) for one in written) for name in names}


class _Sums(AccumulatorParam[dict[str, int]]):
    def zero(self, value: dict[str, int]) -> dict[str, int]:  # noqa: ARG002 - PySpark's signature
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:  # noqa: N802
        return dict(Counter(value1) + Counter(value2))


class WriteCounts:
    """The counts of all writes since `register` was first called in this Spark application."""

    def __init__(self, sums: Accumulator[dict[str, int]]) -> None:
        self._sums = sums

    @property
    def now(self) -> Counts:
        """The current counts; only the driver can read them."""
        value: Mapping[str, int] = self._sums.value
        return Counts(**{one.name: value.get(one.name, 0) for one in fields(Counts)})

    def add(self, written: Collection[Written], *, failed: bool = False) -> None:
        """Add a batch, or a micro-batch."""
        self._sums.add({"failed_writes" if failed else "writes": 1, **sums(written)})


_by_application: dict[str, WriteCounts] = {}


def counts_of(context: Any) -> WriteCounts | None:
    """Return the counts of an application, or None with Spark Connect, whose client has no accumulators."""
    if context is None:
        return None
    name = context.applicationId
    if name not in _by_application:
        _by_application[name] = WriteCounts(context.accumulator({}, _Sums()))
    return _by_application[name]


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
        written = self._complete(messages)
        changed = changes(self._job.options, self._job.bindings)
        if changed.deleted and self._job.options.fail_on_data_loss:
            confirmed = sum(one.confirmed for one in written)
            raise WriteFailed(
                f"rows are lost: {'; '.join(changed.deleted)}. The broker has confirmed all {confirmed} rows, and another run would "
                "write them again; failOnDataLoss=false logs a warning instead"
            )
        if self._counts is not None:
            self._counts.add(written)
        all_changes = [*changed.deleted, *changed.others]
        line = {
            "event": "dry run" if self._job.options.dry_run else "written",
            "exchange": self._job.options.exchange,
            "stream": self._job.options.stream or self._job.options.super_stream,
            "batch": batch_id,
            "query": next((one.query_id for one in written if one.query_id), None),
            "partitions": len(written),
            **sums(written),
            "seconds": round(max((one.seconds for one in written), default=0.0), 3),
            "bindings_changed": all_changes,
            "first_dropped": [row for one in written for row in one.first_dropped][:ROWS_NAMED],
        }
        log_line(
            logging.WARNING if all_changes else logging.INFO,
            json.dumps({name: value for name, value in line.items() if value not in (None, [])}),
        )

    def _complete(self, messages: list[WriterCommitMessage | None]) -> list[Written]:
        """The reports of the tasks, after checking that no row is missing or stored twice."""
        written = [one for one in messages if isinstance(one, Written)]
        if len(written) < len(messages):
            raise WriteFailed(
                "tasks reported nothing, so no row was written. Spark does not call Python sinks with "
                "trigger(continuous=...): use trigger(processingTime=...) or trigger(availableNow=True)"
            )
        confirmed = sum(one.confirmed for one in written)
        if (before := max((one.earlier_partitions for one in written), default=0)) > len(written):
            producer = self._job.producer_of(written[0].query_id)
            raise WriteFailed(
                f"the write has {len(written)} partitions, but an earlier attempt with the producer name {producer!r} had at least "
                f"{before}, so rows may be stored twice. {SAME_PARTITIONS}"
            )
        if problems := _problems(written):
            stored = confirmed + sum(one.already_stored for one in written)
            raise WriteFailed(self._job.failure(problems, f"{stored} rows", written[0].query_id))
        if lost := sum(one.published for one in written) - confirmed:
            raise WriteFailed(f"{lost} rows were published but not confirmed")
        return written

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
