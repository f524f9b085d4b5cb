"""The place of each stream in a checkpoint: ``{"events": {"offset": 20, "seen": [19, 1769860800000]}}``.

``offset`` is the next offset to read. ``seen`` is an earlier offset, and the time in milliseconds at which the broker stored
the message there. A stream that was deleted and created again stored its message at this offset at another time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

Place: TypeAlias = Mapping[str, Any]
_OFFSET: Final = "offset"
_SEEN: Final = "seen"


def offsets_in(places: Mapping[str, Place]) -> dict[str, int]:
    """The next offset of each stream."""
    return {stream: place[_OFFSET] for stream, place in places.items()}


class Places:
    """Makes places and compares them with streams.

    Args:
        stored_at: returns the time in milliseconds at which the broker stored the message at an offset of a stream, or None
            if the stream has no message there, because of a gap or retention.
    """

    def __init__(self, stored_at: Callable[[str, int], int | None]) -> None:
        self._stored_at = stored_at
        self._made: dict[str, Place] = {}

    def at(self, offsets: Mapping[str, int], before: Mapping[str, Place]) -> dict[str, Place]:
        """Make places of offsets. Spark compares places as text, so a stream whose offset is that in ``before`` keeps its place."""
        return {stream: self._at(stream, offset, before.get(stream)) for stream, offset in offsets.items()}

    def _at(self, stream: str, offset: int, before: Place | None) -> Place:
        for known in (before, self._made.get(stream)):
            if known is not None and known[_OFFSET] == offset:
                return known
        time = self._stored_at(stream, offset - 1) if offset else None
        seen = (before or {}).get(_SEEN) if time is None else [offset - 1, time]
        place = {_OFFSET: offset} if seen is None else {_OFFSET: offset, _SEEN: seen}
        self._made[stream] = place
        return place

    def created_again(self, places: Mapping[str, Place]) -> set[str]:
        """Find the streams that were created again: their message at the seen offset has another time."""
        found = {stream for stream, place in places.items() if self._is_another(stream, place)}
        self.forget(found)
        return found

    def _is_another(self, stream: str, place: Place) -> bool:
        if _SEEN not in place:
            return False
        offset, time = place[_SEEN]
        return self._stored_at(stream, offset) not in {None, time}

    def is_new(self, stream: str, place: Place) -> bool:
        """Whether this run made the place; if so, the stream needs no other check."""
        return self._made.get(stream) == place

    def forget(self, streams: Iterable[str]) -> None:
        """Forget the places of streams that were created again."""
        for stream in streams:
            self._made.pop(stream, None)
