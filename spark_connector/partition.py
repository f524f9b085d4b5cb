"""What a task does with its partition: check each Arrow batch whole, publish it, and wait for every confirm.

An error that another attempt would not mend is never raised here: Spark would publish all the rows again, three
times over. It travels in the commit message, and the driver raises it once every task has ended. Only what a
later attempt may find mended, a connection above all, is raised where it happens.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from rabbit_chx.errors import BrokerUnavailable, InvalidValue, PublishFailed
from spark_connector.connections import borrow, check_access, discard, give_back
from spark_connector.limits import Limits
from spark_connector.rows import arguments, invalid_rows, rows_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from rabbit_chx.publishing import Failure, Publisher, Totals
    from spark_connector.columns import Layout
    from spark_connector.options import Options
    from spark_connector.rows import InvalidRow

__all__ = ["ROWS_NAMED", "Plan", "Task", "Written", "write_partition"]

ROWS_NAMED: Final = 5
"""How many of the rows that were dropped are named."""

_BATCHES_REMEMBERED: Final = 100


@dataclass(frozen=True)
class Plan:
    """All that a task has to know: options and columns, checked."""

    options: Options
    layout: Layout


@dataclass(frozen=True)
class Task:
    """Where in Spark this is. The names of local properties are Spark's own business: one may be missing."""

    partition: int = 0
    attempt: int = 0
    application: str = ""
    query_id: str = ""
    batch_id: str = ""
    speculation: bool = False

    @classmethod
    def current(cls) -> Task:
        """The task that this worker runs; outside of Spark, one that stands for it."""
        context = TaskContext.get()
        if context is None:
            return cls()

        def known(name: str) -> str:
            return context.getLocalProperty(name) or ""

        return cls(
            context.partitionId(),
            context.attemptNumber(),
            known("spark.app.name"),
            known("sql.streaming.queryId"),
            known("streaming.sql.batchId"),
            known("spark.speculation").lower() == "true",
        )

    def connection_name(self, prefix: str) -> str:
        """What the broker calls a connection that this task opens."""
        query = f"query {self.query_id} batch {self.batch_id}" if self.query_id else "batch"
        place = f"partition {self.partition} attempt {self.attempt} pid {os.getpid()}"
        return " ".join(filter(None, (prefix, self.application, query, place)))

    @property
    def headers(self) -> dict[str, Any]:
        """What the option ``taskHeaders`` adds to each message."""
        named = {"query-id": self.query_id, "batch-id": self.batch_id}
        found: dict[str, Any] = {f"x-spark-{name}": value for name, value in named.items() if value}
        return {**found, "x-spark-partition": self.partition, "x-spark-attempt": self.attempt}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What became of a partition."""

    partition: int
    attempt: int = 0
    query_id: str = ""
    batch_id: str = ""
    rows: int = 0
    published: int = 0
    confirmed: int = 0
    dropped: int = 0
    first_dropped: tuple[str, ...] = ()
    resent: int = 0
    bytes: int = 0
    connections: int = 0
    """Opened by this task; none where it had one from the task before it."""
    seconds: float = 0.0
    problem: str = ""
    """Why the partition is not complete, where another attempt would meet the same."""


def write_partition(batches: Iterator[pa.RecordBatch], plan: Plan, task: Task) -> Written:
    """Publish the rows of a partition, and return when each is confirmed, or when it is clear that one never will be."""
    if task.speculation and not plan.options.allow_speculation:
        problem = (
            "spark.speculation is on: a second attempt of a slow task would publish its rows again. "
            "Switch it off for this job, or say allowSpeculation=true if consumers can bear that"
        )
        return _message(task, problem=problem)
    partition = _DryRun(plan, task) if plan.options.dry_run else _Partition(plan, task)
    problem = ""
    try:
        for batch in batches:
            if batch.num_rows:
                partition.take(batch)
        partition.finish()
    except (_Hopeless, InvalidValue) as error:
        problem = str(error)
    except BrokerUnavailable as error:
        if not error.permanent:
            raise
        problem = str(error)
    finally:
        partition.close()
    return partition.message(problem)


class _Hopeless(Exception):
    """Another attempt would end the same way."""


def _message(task: Task, **facts: Any) -> Written:
    return Written(task.partition, task.attempt, task.query_id, task.batch_id, **facts)


class _Partition:
    """A partition on its way: the publisher it has borrowed, and the books of its rows."""

    def __init__(self, plan: Plan, task: Task) -> None:
        self._plan, self._options, self._task = plan, plan.options, task
        self._publisher: Publisher | None = None
        self._before: Totals | None = None
        self._after: Totals | None = None
        self._seen = self._dropped = 0
        self._first_dropped: list[str] = []
        self._sent: deque[tuple[int, Sequence[int]]] = deque(maxlen=_BATCHES_REMEMBERED)
        self._began = self._due = time.monotonic()
        self._all_well = False

    # -- rows --------------------------------------------------------------------------------------

    def take(self, batch: pa.RecordBatch) -> None:
        """Check a batch whole, then let its rows leave."""
        limits = self._connect()
        kept: Sequence[int] = range(self._seen, self._seen + batch.num_rows)
        invalid = invalid_rows(
            batch, self._plan.layout, limits, empty_for_null=self._options.null_value == "empty"
        )
        if invalid:
            batch, kept = self._without(batch, invalid)
        self._seen += len(invalid) + len(kept)
        self._send(batch, kept)

    def _without(
        self, batch: pa.RecordBatch, invalid: list[InvalidRow]
    ) -> tuple[pa.RecordBatch, Sequence[int]]:
        named = [
            f"row {self._seen + one.row} of partition {self._task.partition}: {one.reason}" for one in invalid
        ]
        if self._options.invalid_rows == "fail":
            self.finish()
            others = f" (and {len(named) - 1} more in the same Arrow batch)" if len(named) > 1 else ""
            raise _Hopeless(
                f"{named[0]}{others}. Nothing of its Arrow batch was published; "
                "split_valid(df) parts such rows from the others, invalidRows=drop leaves them out"
            )
        self._dropped += len(invalid)
        self._first_dropped += named[: ROWS_NAMED - len(self._first_dropped)]
        left_out = {one.row for one in invalid}
        kept = [row for row in range(batch.num_rows) if row not in left_out]
        return batch.take(kept), [self._seen + row for row in kept]

    def _connect(self) -> Limits:
        """Borrow a publisher when the first row is there: an empty partition opens no connection."""
        if self._publisher is None:
            self._publisher = borrow(self._options, self._task.connection_name(self._options.connection_name))
            before = self._publisher.totals
            # A publisher that has published nothing was opened just now.
            self._before = before if before.published else replace(before, connections=0)
        return Limits(self._publisher.max_message_bytes, self._publisher.max_property_bytes)

    def _send(self, batch: pa.RecordBatch, rows: Sequence[int]) -> None:
        assert self._publisher is not None
        own = self._task.headers if self._options.task_headers else {}
        given = {"exchange": self._options.exchange, "routing_keys": self._options.routing_key}
        fixed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._sent.append((self._publisher.totals.published, rows))
        step = self._step(batch)
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            self._wait_for_turn(part.num_rows)
            self._publisher.publish_many(**fixed, **arguments(part, self._plan.layout, own))
            if self._publisher.totals.failed:
                self.finish()  # which says what failed: there is no use in sending more

    def _step(self, batch: pa.RecordBatch) -> int:
        rate = self._options.max_rate_per_task
        return min(rows_at_once(batch), max(rate // 20, 1) if rate else batch.num_rows) or 1

    def _wait_for_turn(self, rows: int) -> None:
        """Spread rows over time where ``maxRatePerTask`` asks for it; a second that was missed is not made up for."""
        if self._options.max_rate_per_task:
            time.sleep(max(self._due - time.monotonic(), 0.0))
            self._due = max(self._due, time.monotonic() - 1.0) + rows / self._options.max_rate_per_task

    # -- the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait until every row has its outcome."""
        if self._publisher is None:
            return
        try:
            self._publisher.flush()
        except PublishFailed as failed:
            raise self._verdict(failed, self._publisher) from None
        self._all_well = True

    def _verdict(self, failed: PublishFailed, publisher: Publisher) -> Exception:
        """What a flush that failed means: a broken connection is worth another attempt, a refusal is not."""
        totals = failed.totals
        first: Failure = failed.failures[0]
        text = f"{totals.failed} rows were not confirmed; the first is {self._named(first)}"
        error = publisher.error
        if totals.returned or totals.rejected or (isinstance(error, BrokerUnavailable) and error.permanent):
            return _Hopeless(text)
        return BrokerUnavailable(text)

    def _named(self, failure: Failure) -> str:
        at = bisect_right(self._sent, failure.row, key=lambda sent: sent[0]) - 1
        start, rows = self._sent[at] if at >= 0 else (0, range(0))
        place = failure.row - start
        name = f"row {rows[place]}" if 0 <= place < len(rows) else "a row"
        target = f"exchange {failure.exchange!r}, routing key {failure.routing_key!r}"
        return (
            f"{name} of partition {self._task.partition} ({target}), {failure.outcome.value}: {failure.reply}"
        )

    def close(self) -> None:
        """Hand the publisher on to the next task if all went well with it."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None and self._all_well:
            self._after = publisher.totals
            give_back(self._options, publisher)
        elif publisher is not None:
            discard(publisher)
            self._after = publisher.totals

    def message(self, problem: str = "") -> Written:
        """What the driver is told."""
        facts: dict[str, Any] = {}
        if self._before is not None and self._after is not None:
            facts = {
                name: getattr(self._after, name) - getattr(self._before, name)
                for name in ("published", "confirmed", "resent", "bytes", "connections")
            }
        return _message(
            self._task,
            rows=self._seen,
            dropped=self._dropped,
            first_dropped=tuple(self._first_dropped),
            seconds=time.monotonic() - self._began,
            problem=problem,
            **facts,
        )


class _DryRun(_Partition):
    """A dry run: the same checks, and a question to the broker in place of a message."""

    def __init__(self, plan: Plan, task: Task) -> None:
        super().__init__(plan, task)
        self._asked: set[str] = set()

    def _connect(self) -> Limits:
        return Limits.unasked(self._options.max_message_bytes)

    def _send(self, batch: pa.RecordBatch, rows: Sequence[int]) -> None:  # noqa: ARG002 - none leaves
        at = self._plan.layout.positions.get("exchange")
        exchanges = {self._options.exchange} if at is None else set(batch.column(at).unique().to_pylist())
        new = {exchange for exchange in exchanges if exchange is not None} - self._asked
        if new:
            check_access(self._options, sorted(new))
            self._asked |= new
