"""Where the rows of a partition go: to the broker, or in a dry run nowhere."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.publishing import Bulk, Failure, Publisher, PublishFailed
from spark_connector.worker import Task
from spark_connector.writing.between_tasks import ProgressLine, Verdict, WriteJob, scratch_file
from spark_connector.writing.prepare import Prepared
from spark_connector.writing.publishers import borrow, check_access, check_streams, discard, give_back
from spark_connector.writing.rules import Limits

_BATCHES_REMEMBERED: Final = 100
TOTALS: Final = ("published", "confirmed", "resent", "bytes", "connections")
"""The totals of a publisher that are fields of `Written`."""


class PermanentFailure(Exception):
    """Another attempt would fail the same way."""


@contextmanager
def stream_errors() -> Iterator[None]:
    """Turn permanent errors of a stream into `PermanentFailure`, others into errors after which Spark retries the task."""
    try:
        yield
    except StreamUnavailable as error:
        raise (PermanentFailure if error.permanent else BrokerUnavailable)(str(error)) from None


class DryRunSink:
    """Checks each exchange with the broker and publishes nothing. The other sinks have the same methods."""

    def __init__(self, job: WriteJob, task: Task) -> None:
        self._options = job.options
        self._task = task
        self.verdict = Verdict(job)
        self._asked: set[str] = set()

    def limits(self) -> Limits:
        """What the broker accepts: the default, since nothing connects before an exchange is known."""
        return Limits.default(self._options.max_body_bytes)

    def send(self, prepared: Prepared, first: int) -> None:  # noqa: ARG002 - for the sinks that publish
        """Take the valid rows of a batch, whose first row has this number in the partition."""
        if self._options.to_streams:
            if not self._asked:
                self._asked = {"streams"}
                with stream_errors():
                    check_streams(self._options)
            return
        exchanges = prepared.exchanges() if self._options.exchange is None else {self._options.exchange}
        if new := exchanges - self._asked:
            check_access(self._options, sorted(new))
            self._asked |= new

    def finish(self, *, whole: bool) -> None:
        """Wait until the broker has confirmed each row; raise the first failure. ``whole``: these are all rows of the partition."""

    def close(self) -> None:
        """Release the connection."""

    def counts(self) -> dict[str, int]:
        """What was published, as fields of `Written`."""
        return {}


class PublishingSink(DryRunSink):
    """The base class of the sinks for exchanges and for streams."""

    def __init__(self, job: WriteJob, task: Task) -> None:
        super().__init__(job, task)
        shown = job.in_terminal and not task.query_id  # Spark reports the progress of queries
        self._progress = ProgressLine(scratch_file(f"rabbit-chx-rows-{job.id}") if shown else None)
        self._due = time.monotonic()
        """When the next rows may be sent, with ``maxRatePerTask``."""

    @property
    def _headers(self) -> dict[str, Any]:
        """The headers of the option ``taskHeaders``."""
        return self._task.headers

    def _chunks(self, prepared: Prepared) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each chunk when it is due, as its number of rows and the arguments for publishing it."""
        given = {"exchange": self._options.exchange, "routing_keys": self._options.routing_key}
        fixed = {name: value for name, value in given.items() if value is not None}
        headers = self._headers if self._options.task_headers else {}
        rate = self._options.max_rate_per_task
        most_rows = max(rate // 20, 1) if rate else prepared.batch.num_rows
        for count, arguments in prepared.chunks(most_rows, headers):
            self.verdict.check()
            if self._progress.due:
                self._progress.add(self.counts()["confirmed"])
            if rate:
                time.sleep(max(self._due - time.monotonic(), 0.0))
                # After a pause, at most one second is caught up.
                self._due = max(self._due, time.monotonic() - 1.0) + count / rate
            yield count, fixed | arguments


class BrokerSink(PublishingSink):
    """Publishes over the connection of this Python worker."""

    def __init__(self, job: WriteJob, task: Task) -> None:
        super().__init__(job, task)
        self._publisher: Publisher | None = None
        self._bulk: Bulk | None = None
        self._opened = 0
        self._counts: dict[str, int] = {}
        self._sent: deque[tuple[int, Sequence[int], int]] = deque(maxlen=_BATCHES_REMEMBERED)
        self._complete = False

    def limits(self) -> Limits:
        """Connect, and return the limits of the connection."""
        name = self._task.connection_name(self._options.connection_name)
        self._publisher = publisher = borrow(self._options, name, self._task.query_id)
        # A publisher that has published nothing was opened just now.
        self._opened = 0 if publisher.totals.published else publisher.totals.connections
        self._bulk = publisher.bulk()
        return Limits(publisher.max_message_bytes, publisher._max_property_bytes)

    def send(self, prepared: Prepared, first: int) -> None:
        """Publish chunk by chunk, and stop at the first failure of this or another task."""
        assert self._bulk is not None
        self._sent.append((self._bulk.totals.published, prepared.rows, first))
        for _, arguments in self._chunks(prepared):
            self._bulk.add_many(**arguments)
            if self._bulk.totals.failed:
                self.finish(whole=False)

    def finish(self, *, whole: bool) -> None:  # noqa: ARG002 - for streams
        """Flush. A refusal by the broker is permanent; after a lost connection another attempt may succeed."""
        if self._bulk is None or self._publisher is None:
            return
        try:
            self._bulk.flush()
        except PublishFailed as failed:
            totals, error = failed.totals, self._bulk.error
            text = f"{totals.failed} rows were not confirmed; the first is {self._named(failed.failures[0])}"
            refused = isinstance(error, BrokerUnavailable) and error.permanent
            permanent = totals.returned or totals.rejected or refused
            raise (PermanentFailure if permanent else BrokerUnavailable)(text) from None
        self._complete = True
        self._progress.add(self.counts()["confirmed"])

    def _named(self, failure: Failure) -> str:
        """The failed row by its number in the partition, if its batch is still remembered."""
        at = bisect_right(self._sent, failure.row, key=lambda sent: sent[0]) - 1
        start, rows, first = self._sent[at] if at >= 0 else (0, range(0), 0)
        place = failure.row - start
        name = f"row {first + rows[place]}" if 0 <= place < len(rows) else "a row"
        target = f"exchange {failure.exchange!r}, routing key {failure.routing_key!r}"
        partition = self._task.partition
        return f"{name} of partition {partition} ({target}), {failure.outcome.value}: {failure.reply}"

    def close(self) -> None:
        """Keep the connection for the next task if every row was confirmed; close it otherwise."""
        if self._publisher is None:
            return
        if not self._complete:
            discard(self._publisher)
        self._counts = self.counts()  # the next task adds to the publisher's bytes
        publisher, self._publisher = self._publisher, None
        if self._complete:
            give_back(self._options, publisher, self._task.query_id)

    def counts(self) -> dict[str, int]:
        """The totals of this task."""
        if self._bulk is None or self._publisher is None:
            return self._counts
        totals = self._bulk.totals
        totals = replace(totals, connections=self._opened + totals.connections)
        return {name: getattr(totals, name) for name in TOTALS}
