"""The readers of streams: on the driver they plan ranges of offsets, and in tasks they read them.

PySpark passes arguments to `latestOffset` from 4.2 on; before, it passes none, and a micro-batch reads all available rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from rabbit_chx import InvalidValue
from rabbit_chx.streams import Bounds
from spark_connector.admission import AvailableNow, limits
from spark_connector.offsets import EARLIEST, LATEST, Positions
from spark_connector.ranges import (
    OffsetRange,
    between,
    check_present,
    check_same_stream,
    divided,
    limited,
)
from spark_connector.read_rows import ReadJob
from spark_connector.stream_access import StreamAccess


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The rows of one task."""

    range: OffsetRange


def _partitions(job: ReadJob, ranges: list[OffsetRange]) -> list[RangePartition]:
    return [RangePartition(one) for one in divided(ranges, job.options.min_partitions)]


def _rows(job: ReadJob, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task; none for the empty partition that Spark adds to a micro-batch without rows."""
    if isinstance(partition, RangePartition):
        yield from job.read(partition.range)


class BatchReader(DataSourceReader):
    """The reader of ``spark.read``; Spark pickles it."""

    def __init__(self, job: ReadJob) -> None:
        self._job = job

    def partitions(self) -> list[RangePartition]:
        """Ask the broker where the streams begin and end; called on the driver for each action."""
        with StreamAccess(self._job.options) as access:
            return _partitions(self._job, batch_ranges(self._job, access))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition; called in a Python worker."""
        return _rows(self._job, partition)


def batch_ranges(job: ReadJob, access: StreamAccess) -> list[OffsetRange]:
    """The range of each stream, checked against the stream's bounds."""
    found = access.bounds(access.chosen())
    options = job.options
    start = access.offsets(options.starting_offsets or Positions(EARLIEST), "startingOffsets", found)
    end = access.offsets(options.ending_offsets or Positions(LATEST), "endingOffsets", found)
    for stream, bounds in found.items():
        for option, offset in (("startingOffsets", start[stream]), ("endingOffsets", end[stream])):
            if offset > bounds.end:
                raise _beyond(option, stream, offset, bounds)
        if start[stream] > end[stream]:
            expected = f"at most {end[stream]}, where the read ends"
            raise InvalidValue(f"start of stream {stream!r}", start[stream], expected)
    start = {
        stream: job.skip(stream, first, min(found[stream].first, end[stream]))
        for stream, first in start.items()
    }
    return between(start, end)


def _beyond(option: str, stream: str, offset: int, bounds: Bounds) -> InvalidValue:
    expected = f"an offset from {bounds.first} to {bounds.end}, where the stream ends"
    return InvalidValue(f"offset of stream {stream!r} in option {option}", offset, expected)


class StreamingReader(DataSourceStreamReader, AvailableNow):  # type: ignore[misc]
    """The reader of ``spark.readStream``. It lives in a Python process of the driver, and Spark pickles a copy for tasks."""

    def __init__(self, job: ReadJob) -> None:
        if job.options.max_rows_per_trigger is not None and limits is None:
            hint = "Remove it: a micro-batch then reads all available rows"
            raise InvalidValue("option maxRowsPerTrigger", "PySpark before 4.2", "PySpark 4.2 or newer", hint)
        self._job = job
        self._access = StreamAccess(job.options)
        self._target: dict[str, Bounds] | None = None
        self._latest: dict[str, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"job": self._job}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["job"])  # type: ignore[misc]

    # -- on the driver -------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where a new query starts."""
        found = self._access.bounds(self._access.chosen())
        positions = self._job.options.starting_offsets or Positions(LATEST)
        start = self._access.offsets(positions, "startingOffsets", found)
        for stream, bounds in found.items():
            if start[stream] > bounds.end:
                raise _beyond("startingOffsets", stream, start[stream], bounds)
            start[stream] = self._job.skip(stream, start[stream], bounds.first)
        return start

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The limit of a micro-batch."""
        most = self._job.options.max_rows_per_trigger
        return limits.ReadAllAvailable() if most is None else limits.ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the streams end now: the query stops there."""
        self._target = self._access.bounds(self._access.chosen())

    def latestOffset(self, start: Mapping[str, int] | None = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        """Where the next micro-batch ends.

        A stream that is not in ``start`` joins at its first offset, which the checkpoint then holds; the next micro-batch
        is the first to read its rows.
        """
        begun = start or {}
        found = self._found(begun)
        self._latest = {stream: bounds.end for stream, bounds in found.items()}
        if start is None:
            return self._latest
        check_present(start, found, self._job.options.source)
        for stream, offset in start.items():
            check_same_stream(stream, offset, found[stream].end)
            if self._job.options.fail_on_data_loss:
                self._job.skip(stream, offset, found[stream].first)
        end = {stream: bounds.end if stream in start else bounds.first for stream, bounds in found.items()}
        most = getattr(limit, "max_rows", None)
        return end if most is None else limited(start, end, most)

    def _found(self, start: Mapping[str, int]) -> dict[str, Bounds]:
        """The bounds of all streams; with availableNow, those at the start of the query."""
        if self._target is None:
            return self._access.bounds(self._access.chosen(start), start)
        # Streams that the option keys no longer chooses, and those whose replica lagged behind.
        known = {stream: bounds.end for stream, bounds in self._target.items()}
        if missing := {stream for stream, offset in start.items() if known.get(stream, -1) < offset}:
            more = missing & set(self._access.chosen(start))
            self._target = dict(sorted({**self._target, **self._access.bounds(more, start)}.items()))
        return self._target

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """The ends of the streams when Spark asked last, for the query's progress."""
        return self._latest

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[RangePartition]:
        """Divide the rows of a micro-batch."""
        check_present(start, end, self._job.options.source)
        for stream, offset in start.items():
            check_same_stream(stream, offset, end[stream])
        first = {
            stream: bounds.first for stream, bounds in self._access.bounds(set(end) - set(start)).items()
        }
        if not self._job.options.fail_on_data_loss:
            first |= self._after_losses(start, end)
        return _partitions(self._job, between({**start, **first}, end))

    def _after_losses(self, start: Mapping[str, int], end: Mapping[str, int]) -> dict[str, int]:
        """The start of each stream after the offsets that retention has deleted, which are logged."""
        found = self._access.bounds(one.stream for one in between(start, end))
        return {
            stream: self._job.skip(stream, start[stream], min(b.first, end[stream]))
            for stream, b in found.items()
        }

    def stop(self) -> None:
        """Close the connections; called when the query ends."""
        self._access.close()

    # -- in a task -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition; called in a Python worker."""
        return _rows(self._job, partition)
