"""The offset of each stream in a checkpoint: ``{"events": {"offset": 20, "seen": [19, 1769860800000]}}``.

``offset`` is the next offset to read. ``seen`` is an earlier offset, and the time in milliseconds at which the broker stored
the message there. If the stream was deleted and created again, its message at this offset has another time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

SavedOffset: TypeAlias = Mapping[str, Any]
_OFFSET: Final = "offset"
_SEEN: Final = "seen"


def offsets_in(saved: Mapping[str, SavedOffset]) -> dict[str, int]:
    """The next offset of each stream."""
    return {stream: one[_OFFSET] for stream, one in saved.items()}


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
        seen = (before or {}).get(_SEEN) if time is None else [offset - 1, time]
        made = {_OFFSET: offset} if seen is None else {_OFFSET: offset, _SEEN: seen}
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
        if _SEEN not in saved:
            return False
        offset, time = saved[_SEEN]
        return self._stored_at(stream, offset) not in {None, time}

    def is_own(self, stream: str, saved: SavedOffset) -> bool:
        """Whether this run of the query prepared the offset; if so, the stream needs no other check."""
        return self._made.get(stream) == saved
