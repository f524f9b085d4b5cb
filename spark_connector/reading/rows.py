"""The rows of one range, as a Spark task reads them: Arrow batches, in order, each offset once.

After a lost connection the task reconnects and continues after the last row.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rabbit_chx.base.outages import CALLER_WAITS, Backoff
from rabbit_chx.errors import CorruptChunk, InvalidMessage, StreamUnavailable
from rabbit_chx.streams.messages.arrow.batch import HEADERS_AS_STRUCTS
from spark_connector.connections import stream_reader
from spark_connector.reading.offsets import DataLoss, OffsetRange
from spark_connector.reading.options import ReadOptions
from spark_connector.reading.schema import batch_of, of_streams
from spark_connector.worker import Task, log_line, outage_of


@dataclass(frozen=True)
class ReadJob:
    """A read, as Spark ships it to the executors."""

    options: ReadOptions
    schema: pa.Schema
    """Of the rows, with the types that the user declares."""

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range.

        Raises:
            CorruptChunk: a part of the stream is damaged, or decompresses to too much.
            DataLoss: retention has deleted some of them, and ``failOnDataLoss`` is true.
            InvalidMessage: a message cannot be decoded, and ``invalidRows`` is ``fail``.
            StreamUnavailable: the broker refused the read, or was unreachable for ``reconnectTimeoutMs``.
        """
        try:
            yield from self._rows(wanted)
        except CorruptChunk as error:  # its hint names a parameter of Python
            raise CorruptChunk(error.reason, error.stream, error.offset) from None

    def _drop(self, error: InvalidMessage) -> None:
        """Log the message that the read leaves out, or raise if ``invalidRows`` is ``fail``."""
        if self.options.invalid_rows == "fail":
            hint = "To leave out such messages, and log their offsets, set invalidRows=drop"
            raise InvalidMessage(f"{error.reason}. {hint}", error.stream, error.offset) from None
        warn("invalid message", error.stream, offset=error.offset)

    def _rows(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; after a lost connection the task reconnects."""
        backoff = Backoff(CALLER_WAITS)
        start, last_seen, leader = wanted.start, time.monotonic(), False
        outage = outage_of(f"task for stream {wanted.stream!r}", self.options.timeouts.reconnect)
        while start < wanted.end:
            try:
                for start, batch in self._batches(wanted, start, leader=leader):  # noqa: B007, B020 - where the next attempt continues
                    outage.ended()
                    backoff.works()
                    yield batch
                    last_seen = time.monotonic()
            except StreamUnavailable as error:
                if error.problem == "truncated" and error.first is not None:
                    start = self.skip(wanted.stream, start, min(error.first, wanted.end))
                elif error.problem == "beyond the end" and not leader:
                    leader = True  # this replica may lag behind the one that the driver asked
                elif error.permanent or time.monotonic() - last_seen > self.options.timeouts.reconnect:
                    raise
                else:
                    outage.failed(error)
                    time.sleep(backoff.failed())
            else:
                return

    def _batches(
        self, wanted: OffsetRange, start: int, *, leader: bool
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches over one connection, each with the offset after it. Leave out invalid messages, or raise."""
        name = Task.current().connection_name(self.options.connection_name)
        with stream_reader(self.options, wanted.stream, connection_name=name, leader=leader) as reader:
            if wanted.seen is not None:
                reader._check_same(*wanted.seen)  # a check that needs the reader's connection
            binary = HEADERS_AS_STRUCTS in self.schema.types
            pending = [(start, wanted.end)]
            while pending:
                start, end = pending.pop()
                try:
                    for batch in reader.read(start, end, columns=self._decoded, binary_headers=binary):
                        if batch.num_rows:
                            start = batch.column("offset")[-1].as_py() + 1
                            yield start, self._returned(batch)
                except InvalidMessage as error:
                    self._drop(error)
                    pending += [(error.offset + 1, end), (start, error.offset)]

    def skip(self, stream: str, start: int, first: int) -> int:
        """Return where a read from ``start`` continues if retention has deleted the offsets before ``first``. Log the deleted rows.

        Raises:
            DataLoss: offsets from ``start`` on are deleted, and ``failOnDataLoss`` is true.
        """
        if first <= start:
            return start
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"stream {stream!r} no longer has the offsets {start} to {first - 1}: its retention deleted them before "
                f"they were read. To continue without them, and count them in the log, set failOnDataLoss=false"
            )
        warn("data loss", stream, first=start, end=first, offsets=first - start)
        return first

    @property
    def _decoded(self) -> tuple[str, ...]:
        """The columns of the rows, and those needed to filter them and to continue after a lost connection."""
        needed = ("offset",) if self.options.keys is None else ("offset", "routing_key")
        names = self.schema.names
        return of_streams(names) + tuple(name for name in needed if name not in names)

    def _returned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.options.keys is not None:
            chosen = pc.is_in(batch.column("routing_key"), pa.array(self.options.keys, pa.string()))
            batch = batch.filter(chosen)
        return batch_of([batch.column(name) for name in of_streams(self.schema.names)], self.schema)


def warn(event: str, stream: str, **more: int) -> None:
    """Log an event of a stream as a line of JSON."""
    log_line(logging.WARNING, json.dumps({"event": event, "stream": stream, **more}))
