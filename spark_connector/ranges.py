"""Ranges of offsets: limited to a number of rows, and divided among Spark's partitions. Values in, values out.

An offset map, ``{stream: offset}``, is what Spark keeps in a checkpoint: the next offset to read of each stream. Offsets
have holes, so a range may hold fewer rows than its length, and a limit in rows counts offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from rabbit_chx import RabbitChxError


class DataLoss(RabbitChxError):
    """Rows that a read should return are no longer in the stream."""


class OffsetRange(NamedTuple):
    """The rows of a stream with ``start <= offset < end``."""

    stream: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets."""
        return max(self.end - self.start, 0)


def between(start: Mapping[str, int], end: Mapping[str, int]) -> list[OffsetRange]:
    """The non-empty ranges of the streams in both maps."""
    found = [OffsetRange(stream, start[stream], last) for stream, last in end.items() if stream in start]
    return [one for one in found if one.size]


def divided(ranges: Iterable[OffsetRange], at_least: int | None = None) -> list[OffsetRange]:
    """The non-empty ranges; with ``at_least``, long ones are divided until there are about as many as that."""
    whole = [one for one in ranges if one.size]
    total = sum(one.size for one in whole)
    if not at_least or len(whole) >= at_least:
        return whole
    found: list[OffsetRange] = []
    for one in whole:
        count = min(-(-at_least * one.size // total), one.size)
        cuts = [one.start + one.size * number // count for number in range(count + 1)]
        found += [OffsetRange(one.stream, *pair) for pair in pairwise(cuts)]
    return found


def limited(start: Mapping[str, int], end: Mapping[str, int], most: int) -> dict[str, int]:
    """An end at most ``most`` offsets after the start, which the streams share in proportion to their sizes.

    Streams that are not in ``start`` keep their end: they have no rows before the next micro-batch.
    """
    waiting = {stream: last - start[stream] for stream, last in end.items() if last > start.get(stream, last)}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    taken = {stream: most * size // total for stream, size in waiting.items()}
    # The remainder goes to the streams that rounding cut most.
    rest = most - sum(taken.values())
    for stream in sorted(waiting, key=lambda one: (-(most * waiting[one] % total), one))[:rest]:
        taken[stream] += 1
    return {
        stream: start[stream] + taken[stream] if stream in taken else last for stream, last in end.items()
    }


def check_not_truncated(stream: str, start: int, first: int, *, where: str = "") -> None:
    """Raise `DataLoss` if retention has deleted offsets from ``start`` on."""
    if first > start:
        raise DataLoss(
            f"stream {stream!r} no longer has the offsets {start} to {first - 1}{where}: its retention deleted them before "
            f"they were read. To continue without them, and count them in the log, set failOnDataLoss=false"
        )


def check_same_stream(stream: str, start: int, end: int) -> None:
    """Raise `DataLoss` if a stream ends before the offset at which a query continues."""
    if end < start:
        raise DataLoss(
            f"stream {stream!r} ends at offset {end}, but the query continues at offset {start}: the stream was deleted and "
            f"created again. Start the query with a new checkpoint"
        )


def check_present(start: Iterable[str], found: Iterable[str], source: str) -> None:
    """Raise `DataLoss` if a stream of the checkpoint is no longer among those of the source."""
    streams = set(found)
    if gone := sorted(set(start) - streams):
        raise DataLoss(
            f"stream {gone[0]!r}, which the query has read, is no longer among the streams of {source} "
            f"({', '.join(sorted(streams)) or 'none'}): it was deleted or unbound. Restore it, or start the query with a "
            f"new checkpoint"
        )
