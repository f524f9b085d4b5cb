"""The readers of streams: the driver plans ranges of offsets, and the tasks read them.

PySpark passes arguments to `latestOffset` from 4.2 on; before, it passes none, and a micro-batch reads all available rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from rabbit_chx import InvalidValue
from rabbit_chx.streams.ends import Bounds
from spark_connector.reading.offsets import (
    SEEN,
    DataLoss,
    OffsetRange,
    OffsetTracker,
    SavedOffset,
    between,
    check_of_streams,
    check_present,
    divided,
    earlier,
    limited,
    offsets_in,
)
from spark_connector.reading.positions import EARLIEST, LATEST
from spark_connector.reading.rows import ReadJob, warn
from spark_connector.reading.schema import AvailableNow, limits
from spark_connector.reading.stream_access import StreamAccess
from spark_connector.worker import freeze_worker


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The rows of one task."""

    range: OffsetRange


def _partitions(
    job: ReadJob, start: Mapping[str, int], end: Mapping[str, SavedOffset]
) -> list[RangePartition]:
    """Divide the rows between offsets. Each task checks that its stream is still the one that the driver has seen."""
    ranges = [
        one._replace(seen=tuple(seen)) if (seen := end[one.stream].get(SEEN)) else one
        for one in between(start, offsets_in(end))
    ]
    return [RangePartition(one) for one in divided(ranges, job.options.min_partitions)]


def _rows(job: ReadJob, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task. Spark adds an empty partition, without a range, to a micro-batch without rows."""
    if isinstance(partition, RangePartition):
        yield from job.read(partition.range)
    freeze_worker()


class BatchReader(DataSourceReader):
    """The reader of ``spark.read``; Spark pickles it."""

    def __init__(self, job: ReadJob) -> None:
        self._job = job

    def partitions(self) -> list[RangePartition]:
        """Ask the broker where the streams begin and end, and check the range of each; called on the driver for each action."""
        job = self._job
        with closing(StreamAccess(job.options)) as access:
            found = access.bounds(access.chosen())
            wanted = job.options.start(EARLIEST)
            start = access.offsets(wanted, found)
            end = access.offsets(job.options.end, found)
            saved = OffsetTracker(access.stored_at).to_save(end, {})
        for stream in found:
            # Retention may have deleted all rows before the end of the read.
            if wanted.of(stream) == EARLIEST:
                start[stream] = min(start[stream], end[stream])
            if start[stream] > end[stream]:
                expected = f"at most {end[stream]}, where the read ends"
                raise InvalidValue(f"start of stream {stream!r}", start[stream], expected)
        first = {
            stream: job.skip(stream, offset, min(found[stream].first, end[stream]))
            for stream, offset in start.items()
        }
        return _partitions(job, first, saved)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition; called in a Python worker."""
        return _rows(self._job, partition)


def _ends(found: Mapping[str, Bounds]) -> dict[str, int]:
    return {stream: bounds.end for stream, bounds in found.items()}


class StreamingReader(DataSourceStreamReader, AvailableNow):  # type: ignore[misc]
    """The reader of ``spark.readStream``. Spark keeps the reader in a Python process of the driver, and pickles copies for tasks.

    The offsets that Spark passes map each stream to its saved offset.
    """

    def __init__(self, job: ReadJob) -> None:
        if job.options.max_rows_per_trigger is not None and limits is None:
            hint = "Remove it: a micro-batch then reads all available rows"
            raise InvalidValue("option maxRowsPerTrigger", "PySpark before 4.2", "PySpark 4.2 or newer", hint)
        self._job = job
        self._access = StreamAccess(job.options)
        self._tracker = OffsetTracker(self._access.stored_at)
        self._checked: dict[str, SavedOffset] = {}
        """The saved offsets that the last `latestOffset` checked, of streams that were not created again."""
        self._target: dict[str, Bounds] | None = None
        self._latest: dict[str, int] | None = None
        self._planned: Mapping[str, SavedOffset] = {}
        """Where the last micro-batch ends: PySpark before 4.2 does not pass it to `latestOffset`, but after a restart any
        version first asks for the `partitions` between this offset and itself."""
        self._initial: dict[str, SavedOffset] | None = None
        """The answer of `initialOffset`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._job,)

    # -- on the driver -------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, SavedOffset]:  # noqa: N802 - Spark's name
        """Where a new query starts. Spark asks until a micro-batch is committed, and expects the same answer each time."""
        if self._initial is None:
            self._initial = self._tracker.to_save(self._start(), {})
        self._planned = self._initial
        return self._initial

    def _start(self) -> dict[str, int]:
        found = self._access.bounds(self._access.chosen())
        start = self._access.offsets(self._job.options.start(LATEST), found)
        return {
            stream: self._job.skip(stream, start[stream], bounds.first) for stream, bounds in found.items()
        }

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The limit of a micro-batch."""
        most = self._job.options.max_rows_per_trigger
        return limits.ReadAllAvailable() if most is None else limits.ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the streams end now: the query stops there."""
        self._target = self._access.bounds(self._access.chosen())

    def latestOffset(  # noqa: N802
        self, start: Mapping[str, SavedOffset] | None = None, limit: Any = None
    ) -> dict[str, SavedOffset]:
        """Where the next micro-batch ends.

        A stream that is not in ``start`` joins at its first offset. The checkpoint then contains this offset, and the next
        micro-batch reads the first rows of the stream.
        """
        saved = self._planned if start is None else start
        check_of_streams(saved)
        before = dict(saved)
        found = self._found(offsets_in(before))
        end = self._latest = _ends(found)
        check_present(before, found, self._job.options.source)
        begin = self._begin(before, found)
        if start is not None:
            end = {stream: last if stream in begin else found[stream].first for stream, last in end.items()}
        most = getattr(limit, "max_rows", None)  # absent with trigger(once=True)
        self._planned = self._tracker.to_save(end if most is None else limited(begin, end, most), before)
        return self._planned

    def _begin(self, before: dict[str, SavedOffset], found: dict[str, Bounds]) -> dict[str, int]:
        """Return the next offset of each stream, and drop streams that were created again from ``before``."""
        begin, ends = offsets_in(before), _ends(found)
        moved = {stream: before[stream] for stream, offset in begin.items() if ends[stream] != offset}
        recreated = self._tracker.recreated(moved, ends)
        self._check_same(recreated)
        for stream in recreated:
            del before[stream]
            begin[stream] = found[stream].first
        self._checked = {stream: saved for stream, saved in moved.items() if stream not in recreated}
        for stream, offset in begin.items():
            if self._job.options.fail_on_data_loss:
                self._job.skip(stream, offset, found[stream].first)
            # Deleted rows do not count for the limit of a micro-batch; `partitions` logs them.
            begin[stream] = max(offset, found[stream].first)
        return begin

    def _check_same(self, recreated: set[str]) -> None:
        """Raise if streams were created again, unless ``failOnDataLoss`` is false."""
        if recreated and self._job.options.fail_on_data_loss:
            raise DataLoss(
                f"stream {min(recreated)!r} was deleted and created again: it no longer has the rows that the query has read. Start the query "
                f"with a new checkpoint. Or set failOnDataLoss=false: the query then continues at the first offset of the new stream, "
                f"and the unread rows of the old stream are lost"
            )

    def _found(self, start: Mapping[str, int]) -> dict[str, Bounds]:
        """Return the bounds of all streams; with availableNow, the bounds at the start of the query."""
        if self._target is None:
            return self._access.bounds(self._access.chosen(start), start)
        # Streams that the option keys no longer chooses, and streams whose replica lagged behind.
        known = _ends(self._target)
        if missing := {stream for stream, offset in start.items() if known.get(stream, -1) < offset}:
            more = missing & set(self._access.chosen(start))
            self._target = dict(sorted({**self._target, **self._access.bounds(more, start)}.items()))
        return self._target

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """Report the ends of the streams in the last `latestOffset`, for the query's progress."""
        return self._latest

    def partitions(
        self, start: Mapping[str, SavedOffset], end: Mapping[str, SavedOffset]
    ) -> list[RangePartition]:
        """Divide the rows of a micro-batch, which an earlier run of the query may have planned."""
        for offsets in (start, end):
            check_of_streams(offsets)
        if start == self._initial:
            if start.keys().isdisjoint(end):
                check_present(end, start, self._job.options.source)
            start = earlier(start, end)
        check_present(start, end, self._job.options.source)
        first, last = offsets_in(start), offsets_in(end)
        self._planned = end
        moved = {stream for stream in first if start[stream] != end[stream]}
        # Streams that were created again after an earlier run had planned this micro-batch.
        planned = {stream: end[stream] for stream in moved if not self._tracker.is_own(stream, end[stream])}
        gone = self._tracker.recreated(planned, _ends(self._access.bounds(planned, offsets_in(planned))))
        # Streams that were created again before it was planned.
        unchecked = {stream: start[stream] for stream in moved if start[stream] != self._checked.get(stream)}
        recreated = self._tracker.recreated(unchecked, last) - gone
        self._check_same(gone | recreated)
        new = self._access.bounds((set(last) - set(first)) | recreated)
        for stream in recreated:
            warn("stream created again", stream, offset=first[stream], continues=new[stream].first)
        first |= {stream: bounds.first for stream, bounds in new.items()}
        first |= {stream: last[stream] for stream in gone}  # the next micro-batch reads the new stream
        if not self._job.options.fail_on_data_loss:
            found = self._access.bounds(one.stream for one in between(first, last))
            for stream, bounds in found.items():
                first[stream] = self._job.skip(stream, first[stream], min(bounds.first, last[stream]))
        return _partitions(self._job, first, end)

    def stop(self) -> None:
        """Close the connections; called when the query ends."""
        self._access.close()

    # -- in a task -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition; called in a Python worker."""
        return _rows(self._job, partition)
