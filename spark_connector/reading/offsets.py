"""Ranges of offsets: limited to a number of rows, divided among Spark's partitions, and saved in a checkpoint.

An offset map, ``{stream: offset}``, holds the next offset to read of each stream. Offsets have gaps, so a range may hold
fewer rows than its length, and a limit in rows counts offsets.

A checkpoint has ``{"events": {"offset": 20, "seen": [19, 1769860800000]}}``. ``offset`` is the next offset to read. ``seen`` is
an earlier offset, and the time in milliseconds at which the broker stored the message there. If the stream was deleted and
created again, its message at this offset has another time. The checkpoint of a read of a queue has
``{"queue": "orders.0", "session": ..., "rows": 120}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from rabbit_chx import InvalidValue, RabbitChxError
from rabbit_chx.errors import Unquoted


class DataLoss(RabbitChxError):
    """Rows that a read should return are no longer in the stream."""


class OffsetRange(NamedTuple):
    """The rows of a stream with ``start <= offset < end``."""

    stream: str
    start: int
    end: int
    seen: tuple[int, int] | None = None
    """An offset, and the time in milliseconds at which the broker stored its message: another stream of this name has another time there."""

    @property
    def size(self) -> int:
        """The number of offsets."""
        return max(self.end - self.start, 0)


def between(start: Mapping[str, int], end: Mapping[str, int]) -> list[OffsetRange]:
    """The non-empty ranges of the streams in both maps."""
    found = [OffsetRange(stream, start[stream], last) for stream, last in end.items() if stream in start]
    return [one for one in found if one.size]


def divided(whole: list[OffsetRange], at_least: int | None) -> list[OffsetRange]:
    """The ranges; with ``at_least``, long ones are divided until there are about that many."""
    total = sum(one.size for one in whole)
    if not at_least or len(whole) >= at_least:
        return whole
    found: list[OffsetRange] = []
    for one in whole:
        count = min(-(-at_least * one.size // total), one.size)
        cuts = [one.start + one.size * number // count for number in range(count + 1)]
        found += [one._replace(start=first, end=last) for first, last in pairwise(cuts)]
    return found


def limited(start: Mapping[str, int], end: Mapping[str, int], most: int) -> dict[str, int]:
    """Limit the ends of the streams, which share the limit in proportion to the sizes of their ranges.

    Streams that are not in ``start`` keep their end: they have no rows before the next micro-batch.
    """
    waiting = {stream: last - start[stream] for stream, last in end.items() if last > start.get(stream, last)}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    # A stream whose share is rounded to nothing would wait for as long as others have many rows, so each gets a row first.
    least = int(len(waiting) <= most)
    share, others = most - least * len(waiting), total - least * len(waiting)
    taken = {stream: least + share * (size - least) // others for stream, size in waiting.items()}
    # The remainder goes to the streams that rounding cut most.
    rest = most - sum(taken.values())
    for stream in sorted(waiting, key=lambda one: (-(share * (waiting[one] - least) % others), one))[:rest]:
        taken[stream] += 1
    return {
        stream: start[stream] + taken[stream] if stream in taken else last for stream, last in end.items()
    }


def check_present(start: Iterable[str], found: Iterable[str], source: str) -> None:
    """Raise `DataLoss` if a stream of the checkpoint is no longer among those of the source."""
    streams = set(found)
    gone, listed = sorted(set(start) - streams), ", ".join(sorted(streams)) or "none"
    if gone and len(gone) == len(set(start)):
        raise DataLoss(
            f"the checkpoint is that of a query that read stream {gone[0]!r}, and this query reads {source} ({listed}). Use another "
            "checkpointLocation, or read what the query has read before. If the stream was deleted or unbound, restore it"
        )
    if gone:
        raise DataLoss(
            f"stream {gone[0]!r}, which the query has read, is no longer among the streams of {source} ({listed}): it was deleted "
            "or unbound. Restore it, or start the query with a new checkpoint"
        )


# -- the checkpoint -----------------------------------------------------------------------------------

SavedOffset: TypeAlias = Mapping[str, Any]
_OFFSET: Final = "offset"
SEEN: Final = "seen"


def check_of_streams(saved: object) -> None:
    """Raise unless a read of streams has saved these offsets."""
    if not is_of_streams(saved):
        raise _another_source(saved, "streams")


def check_of_queue(saved: object, queue: str) -> None:
    """Raise unless a read of this queue has saved this offset."""
    if not isinstance(saved, Mapping) or saved.get("queue") != queue:
        raise _another_source(saved, f"queue {queue!r}")


def is_of_streams(saved: object) -> TypeGuard[Mapping[str, SavedOffset]]:
    """Whether a read of streams has saved these offsets; other sources also save numbers."""
    return isinstance(saved, Mapping) and all(
        isinstance(one, Mapping) and _OFFSET in one for one in saved.values()
    )


def _another_source(saved: object, expected: str) -> InvalidValue:
    owner = f"another format: {saved}"
    if is_of_streams(saved):
        owner = f"streams {sorted(saved)}"
    elif isinstance(saved, Mapping) and isinstance(queue := saved.get("queue"), str):
        owner = f"queue {queue!r}"
    hint = "A query with another source needs another checkpointLocation"
    return InvalidValue(
        "checkpoint of the query", Unquoted(f"offsets of {owner}"), f"offsets of {expected}", hint
    )


def offsets_in(saved: Mapping[str, SavedOffset]) -> dict[str, int]:
    """The next offset of each stream."""
    return {stream: one[_OFFSET] for stream, one in saved.items()}


def earlier(start: Mapping[str, SavedOffset], end: Mapping[str, SavedOffset]) -> dict[str, SavedOffset]:
    """Where the first micro-batch of a new query starts: not behind its end, and only in its streams.

    An earlier run may have planned it when the streams were shorter or fewer, without committing it, or PySpark before 4.2 before
    it asked for the start.
    """
    return {
        stream: min(one, end[stream], key=lambda saved: saved[_OFFSET])
        for stream, one in start.items()
        if stream in end
    }


class OffsetTracker:
    """Prepares offsets for the checkpoint and finds the streams that were created again afterwards.

    Args:
        stored_at: returns the time in milliseconds at which the broker stored the message at an offset of a stream, or None
            if the stream has no message there, because of a gap or retention.
    """

    def __init__(self, stored_at: Callable[[str, int], int | None]) -> None:
        self._stored_at = stored_at
        self._made: dict[str, SavedOffset] = {}

    def to_save(
        self, offsets: Mapping[str, int], before: Mapping[str, SavedOffset]
    ) -> dict[str, SavedOffset]:
        """Prepare offsets for the checkpoint.

        Spark compares saved offsets as text, so a stream whose offset has not changed since ``before`` keeps its saved offset.
        """
        return {
            stream: self._to_save(stream, offset, before.get(stream)) for stream, offset in offsets.items()
        }

    def _to_save(self, stream: str, offset: int, before: SavedOffset | None) -> SavedOffset:
        for known in (before, self._made.get(stream)):
            if known is not None and known[_OFFSET] == offset:
                return known
        time = self._stored_at(stream, offset - 1) if offset else None
        seen = (before or {}).get(SEEN) if time is None else [offset - 1, time]
        made = {_OFFSET: offset} if seen is None else {_OFFSET: offset, SEEN: seen}
        self._made[stream] = made
        return made

    def recreated(self, saved: Mapping[str, SavedOffset], ends: Mapping[str, int]) -> set[str]:
        """Find the streams that were created again, and forget their offsets.

        Such a stream ends before its saved offset, or its message at the seen offset has another time.
        """
        found = {
            stream
            for stream, one in saved.items()
            if ends[stream] < one[_OFFSET] or self._has_another_message(stream, one)
        }
        for stream in found:
            self._made.pop(stream, None)
        return found

    def _has_another_message(self, stream: str, saved: SavedOffset) -> bool:
        if SEEN not in saved:
            return False
        offset, time = saved[SEEN]
        return self._stored_at(stream, offset) not in {None, time}

    def is_own(self, stream: str, saved: SavedOffset) -> bool:
        """Whether this run of the query prepared the offset; if so, the stream needs no other check."""
        return self._made.get(stream) == saved
