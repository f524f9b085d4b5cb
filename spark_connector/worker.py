"""The Spark task that writes a partition, its report to the driver, and the Python worker it runs in, with its log."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from rabbit_chx import RabbitChxError
from rabbit_chx.base.outages import Outage

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_first_batches: dict[str, int] = {}
"""For each run of a query, the first micro-batch that this Python worker wrote."""


class WriteFailed(RabbitChxError):
    """A write did not store every row; the message says how many rows the broker has."""


@dataclass(frozen=True)
class Task:
    """The Spark task that is running. Spark does not document a task's local properties, so any may be missing."""

    partition: int = 0
    attempt: int = 0
    application: str = ""
    query_id: str = ""
    batch_id: str = ""
    run: str = ""
    """The job group; in a query, Spark sets it to the id of the run."""
    speculation: bool = False

    @classmethod
    def current(cls) -> Task:
        """The task of this Python worker; outside Spark, a default."""
        context = TaskContext.get()
        if context is None:
            return cls()

        def local(name: str) -> str:
            return context.getLocalProperty(name) or ""

        return cls(
            context.partitionId(),
            context.attemptNumber(),
            local("spark.app.name"),
            local("sql.streaming.queryId"),
            local("streaming.sql.batchId"),
            local("spark.jobGroup.id"),
            local("spark.speculation").lower() == "true",
        )

    def connection_name(self, prefix: str) -> str:
        """The name of this task's connection on the broker."""
        query = f"query {self.query_id} batch {self.batch_id}" if self.query_id else "batch"
        place = f"partition {self.partition} attempt {self.attempt} pid {os.getpid()}"
        return " ".join(filter(None, (prefix, self.application, query, place)))

    def may_repeat_a_run(self) -> bool:
        """Whether an earlier run of the query may have written rows of this micro-batch.

        Only the first micro-batch of a run can be a repeated one. A worker that wrote an earlier one of the same run knows that this is not
        the first; other workers do not know.
        """
        if not self.batch_id:
            return False
        if _UUID.fullmatch(self.run) is None:  # the program has set a job group of its own
            return True
        return int(self.batch_id) <= _first_batches.setdefault(self.run, int(self.batch_id))

    @property
    def headers(self) -> dict[str, Any]:
        """The headers that the option ``taskHeaders`` adds to each message."""
        named = {"query-id": self.query_id, "batch-id": self.batch_id}
        found: dict[str, Any] = {f"x-spark-{name}": value for name, value in named.items() if value}
        return {**found, "x-spark-partition": self.partition, "x-spark-attempt": self.attempt}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The outcome of a partition."""

    partition: int
    attempt: int = 0
    query_id: str = ""
    rows: int = 0
    published: int = 0
    confirmed: int = 0
    already_stored: int = 0
    """Rows that a stream already had from an earlier attempt."""
    dropped: int = 0
    first_dropped: tuple[str, ...] = ()
    resent: int = 0
    bytes: int = 0
    connections: int = 0
    """Opened by this task; 0 if it reused the connection of an earlier task."""
    seconds: float = 0.0
    problem: str = ""
    """Why the partition is incomplete, if another attempt would fail as well."""
    exactly_once: bool = False
    """Whether the broker drops a message that is sent again."""
    stopped: bool = False
    """Whether the problem of another partition stopped this one."""
    earlier_partitions: int = 0
    """How many partitions this attempt and earlier ones had at least; 0 if this task has not asked the streams."""

    @property
    def possible_duplicates(self) -> int:
        """The messages that were sent again; all messages, if an earlier attempt of the task may have published them."""
        if self.exactly_once:
            return 0
        return self.published if self.attempt else self.resent


@cache
def freeze_worker() -> None:
    """Exempt everything this Python worker has loaded from garbage collection, which Spark runs after every task.

    Spark's `daemon.py` calls `gc.collect`, and for a task of 100 rows that used to take most of the CPU time: it
    visits every module. A collection still finds the objects of later tasks. Outside Spark, this does nothing.
    """
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()


log = logging.getLogger("rabbit_chx.spark")


def log_line(level: int, text: str) -> None:
    """Log a line, and show it where logging is not configured."""
    show(log.name)
    log.log(level, "%s", text)


def show(name: str) -> None:
    """Send a logger to stderr with its times in a process without logging configuration, such as Spark's Python workers."""
    found = logging.getLogger(name)
    if found.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    found.addHandler(handler)
    found.setLevel(logging.INFO)


def outage_of(what: str, timeout: float) -> Outage:
    """An outage in this log; ``what`` says what uses the connection, which it tries to restore for so many seconds."""
    return Outage(partial(log_line, logging.WARNING), what, f"trying to reconnect for {timeout:g} s")
