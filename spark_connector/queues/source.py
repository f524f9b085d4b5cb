"""``spark.readStream`` of a queue, at least once: the driver receives messages, and acknowledges finished micro-batches.

Only the connection that received a message can acknowledge it. So the driver's Python process for the query consumes the
queue, and the rows travel to the tasks inside their partitions.

A micro-batch is finished when Spark asks where the next one ends: by then the sink has written its rows, and the checkpoint
records it. Spark calls `commit` later, and for the last micro-batch before a pause only after the pause: until then its
messages would stay unacknowledged, and the broker's ``consumer_timeout`` could expire.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from rabbit_chx import RabbitChxError
from rabbit_chx.consuming import Batch, Message, QueueReader
from spark_connector.connections import credentials_of, tls_of
from spark_connector.queues.options import QueueOptions
from spark_connector.queues.rows import RowsPartition, partitions, rows
from spark_connector.reading.offsets import check_of_queue
from spark_connector.reading.schema import AvailableNow, limits
from spark_connector.worker import log_line, show


class _Part(NamedTuple):
    start: int
    end: int
    batch: Batch


@dataclass
class HandedOut:
    """The batches of one session that Spark has not finished and acknowledged, oldest first. Values in, values out.

    An offset is ``{"queue": "orders.0", "session": ..., "rows": 120}``: the number of rows that a session, one run of the query,
    has handed out. A micro-batch that ends in an earlier session has no rows: its messages were acknowledged, or the broker
    redelivers them, and then they are rows of this session. If the repeated micro-batch returned them as well, a sink that has
    already written that micro-batch would skip the rows, and the reader would acknowledge their messages.
    """

    queue: str
    session: str
    _rows: int = 0
    _parts: list[_Part] = field(default_factory=list)

    @property
    def start(self) -> dict[str, Any]:
        """The offset before the first row."""
        return {"queue": self.queue, "session": self.session, "rows": 0}

    @property
    def offset(self) -> dict[str, Any]:
        """The offset after the last row."""
        return {"queue": self.queue, "session": self.session, "rows": self._rows}

    def add(self, batch: Batch) -> dict[str, Any]:
        """Add a batch, and return the offset after it."""
        if batch.messages:
            start, self._rows = self._rows, self._rows + len(batch.messages)
            self._parts.append(_Part(start, self._rows, batch))
        return self.offset

    def between(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Message]:
        """The messages of a range; none if it ends in another session."""
        if end["session"] != self.session:
            return []
        first = start["rows"] if start["session"] == self.session else 0
        found = [
            message
            for part in self._parts
            if first <= part.start and part.end <= end["rows"]
            for message in part.batch.messages
        ]
        if len(found) != end["rows"] - first:
            raise RabbitChxError(
                f"Spark requested the rows {first} to {end['rows']} of a queue, but only {len(found)} are kept: the others are "
                "acknowledged. Restart the query: the broker redelivers all messages that were not acknowledged"
            )
        return found

    def finished(self, end: Mapping[str, Any] | None) -> Batch | None:
        """Forget all batches up to an offset and return the last batch; acknowledging it acknowledges the others."""
        if end is None or end["session"] != self.session:
            return None
        done = [part for part in self._parts if part.end <= end["rows"]]
        del self._parts[: len(done)]
        return done[-1].batch if done else None


_MOST_BYTES: Final = 32 << 20
"""Limit for a micro-batch: Spark sends each task in one message, of at most 128 MiB by default."""
_WAIT: Final = 1.0
_PATIENCE: Final = 10.0
"""How long a query with availableNow waits for ready messages that the broker does not deliver."""


class QueueStreamReader(DataSourceStreamReader, AvailableNow):  # type: ignore[misc]
    """The reader of ``spark.readStream`` with the option queue. Spark pickles a copy for the tasks."""

    def __init__(self, options: QueueOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._handed_out = HandedOut(options.queue, uuid4().hex)
        self._reader: QueueReader | None = None
        self._planned: Mapping[str, Any] | None = None
        self._until_empty = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    # -- on the driver -------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query starts; Spark asks twice."""
        return self._handed_out.start

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The limit of a micro-batch."""
        return limits.ReadMaxRows(self._options.max_rows_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query ends when the queue is empty."""
        self._until_empty = True

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Acknowledge finished micro-batches, and hand out the messages that have arrived since.

        Before PySpark 4.2 Spark does not pass ``start``: the next micro-batch starts where the last planned one ended.
        """
        self._acknowledge(self._planned if start is None else start)
        most = min(getattr(limit, "max_rows", 2**31), self._options.max_rows_per_trigger)
        batch = self._take(most)
        if self._until_empty:
            batch = self._unless_empty(batch, most)
        end = self._handed_out.add(batch)
        return end if batch.messages or start is None else start

    def _unless_empty(self, batch: Batch, most: int) -> Batch:
        """If a batch is empty, wait for messages while the broker has some for this query."""
        reader, end = self._opened(), monotonic() + _PATIENCE
        while not batch.messages:
            waiting = reader.waiting()
            batch = self._take(most)  # messages that the broker sent before it counted
            if waiting == 0:
                break
            if waiting is None:
                end = monotonic() + _PATIENCE
            elif monotonic() > end:
                text = f"queue {self._options.queue!r} has {waiting} messages that the broker does not deliver to this query; the query ends"
                log_line(logging.WARNING, text)
                break
        return batch

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[RowsPartition]:
        """Pack the rows of a micro-batch; one of an earlier session has none, as the broker redelivers its messages."""
        for offset in (start, end):
            check_of_queue(offset, self._options.queue)
        self._planned = end
        messages = self._handed_out.between(start, end)
        return partitions(messages, self._schema, self._options.min_partitions)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Acknowledge the messages of a finished micro-batch."""
        self._acknowledge(end)

    def stop(self) -> None:
        """Close the connection; the broker then requeues the unacknowledged messages in order."""
        if self._reader is not None:
            self._reader.close()

    def _acknowledge(self, end: Mapping[str, Any] | None) -> None:
        if end is not None:
            check_of_queue(end, self._options.queue)
        batch = self._handed_out.finished(end)
        if batch is not None:
            self._opened().acknowledge(batch)

    def _take(self, most: int) -> Batch:
        return self._opened().take(most, most_bytes=_MOST_BYTES, timeout=_WAIT)

    def _opened(self) -> QueueReader:
        if self._reader is None:
            options = self._options
            show("rabbit_chx.consuming")
            self._reader = QueueReader(
                options.urls,
                options.queue,
                prefetch=2 * options.max_rows_per_trigger,
                timeouts=options.timeouts,
                heartbeat=options.heartbeat_seconds,
                connection_name=f"{options.connection_name} driver",
                credentials=credentials_of(options),
                tls=tls_of(options),
            )
            self._reader.open()
        return self._reader

    # -- in a task -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition; called in a Python worker."""
        return rows(partition)
