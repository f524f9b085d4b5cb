"""What Spark calls to write: the task's part is `partition`'s, the driver's part is here.

The driver raises what the tasks have reported, so that Spark does not try again what would fail again, and says in
one line what is done. Nothing here talks to the broker: a commit that failed would repeat a whole micro-batch.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

from rabbit_chx import RabbitChxError
from spark_connector.partition import ROWS_NAMED, write_partition
from spark_connector.task import Task, Written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage

    from spark_connector.options import WriteOptions
    from spark_connector.partition import WriteJob

__all__ = ["BatchWriter", "StreamWriter", "WriteFailed", "conclude", "tell"]

log = logging.getLogger("rabbit_chx.spark")

_PROBLEMS_SHOWN: Final = 3


class WriteFailed(RabbitChxError):
    """A write that did not put every row into a queue; the message says what is there nevertheless."""


def conclude(
    messages: Sequence[WriterCommitMessage | None], batch_id: int | None, options: WriteOptions
) -> None:
    """Raise what is not complete, and say in one line what is."""
    written = [one for one in messages if isinstance(one, Written)]
    if len(written) < len(messages):
        raise WriteFailed(
            "tasks reported nothing, so no row was written: with trigger(continuous=...) Spark never calls a sink "
            "that is written in Python; use trigger(processingTime=...) or trigger(availableNow=True)"
        )
    problems = [one for one in written if one.problem]
    if problems:
        raise WriteFailed(_complaint(problems, written))
    lost = sum(one.published - one.confirmed for one in written)
    if lost:
        raise WriteFailed(f"{lost} rows were published and not confirmed")  # no task ends so; never say done
    _summarise(written, batch_id, options)


def _complaint(problems: list[Written], written: list[Written]) -> str:
    shown = "; ".join(f"{one.problem}" for one in problems[:_PROBLEMS_SHOWN])
    more = (
        f"; and {len(problems) - _PROBLEMS_SHOWN} more partitions" if len(problems) > _PROBLEMS_SHOWN else ""
    )
    confirmed = sum(one.confirmed for one in written)
    return f"{shown}{more}. {confirmed} rows are in the broker already, and will be there twice after another run"


def _summarise(written: list[Written], batch_id: int | None, options: WriteOptions) -> None:
    """One line of JSON. The process that runs this has no logging of its own, so it goes to stderr."""
    line = {
        "event": "dry run" if options.dry_run else "written",
        "exchange": options.exchange,
        "batch": batch_id,
        "query": next((one.query_id for one in written if one.query_id), None),
        "partitions": len(written),
        **{
            name: sum(getattr(one, name) for one in written)
            for name in ("rows", "confirmed", "dropped", "resent", "bytes", "connections")
        },
        "seconds": round(max((one.seconds for one in written), default=0.0), 3),
        "first_dropped": [row for one in written for row in one.first_dropped][:ROWS_NAMED],
    }
    tell(logging.INFO, json.dumps({name: value for name, value in line.items() if value not in (None, [])}))


def tell(level: int, text: str) -> None:
    """Log a line, and see to it that it can be seen in a process where nobody has set up logging."""
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    log.log(level, "%s", text)


class BatchWriter(DataSourceArrowWriter):
    """The writer of ``df.write``; it is pickled, so it holds values only."""

    def __init__(self, job: WriteJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Runs in a Python worker, once for each attempt at a partition."""
        return write_partition(iterator, self._job, Task.current())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs beside the driver when every task has ended."""
        conclude(messages, None, self._job.options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs beside the driver when the job has failed; other tasks may publish on for a moment."""
        _mourn(messages)


class StreamWriter(DataSourceArrowWriter, DataSourceStreamWriter):
    """The writer of ``df.writeStream``: both classes, since only so PySpark 4.0 hands over Arrow batches."""

    def __init__(self, job: WriteJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Runs in a Python worker, once for each attempt at a partition of a micro-batch."""
        return write_partition(iterator, self._job, Task.current())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override] # noqa: N803
        """Runs beside the driver when every task of a micro-batch has ended."""
        conclude(messages, batchId, self._job.options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override] # noqa: ARG002, N803
        """Runs beside the driver when a micro-batch has failed, or its query was stopped."""
        _mourn(messages)


def _mourn(messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [one for one in messages if isinstance(one, Written)]
    confirmed = sum(one.confirmed for one in written)
    tell(
        logging.WARNING,
        f"the write was not completed; at least {confirmed} rows from {len(written)} of {len(messages)} partitions are in "
        "the broker and cannot be taken back",
    )
