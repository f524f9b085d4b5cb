"""What a checkpoint holds of each stream: ``{"events": {"offset": 20, "seen": [19, 1769860800000]}}``.

``offset`` is the next offset to read. ``seen`` is an offset before it, with the time in milliseconds at which the broker
stored that message: a stream that was deleted and created again has stored another message there, at another time.
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
        stored_at: when the broker stored the message with an offset of a stream, in milliseconds; None if the stream has no
            message there, because of a gap or of retention.
    """

    def __init__(self, stored_at: Callable[[str, int], int | None]) -> None:
        self._stored_at = stored_at
        self._made: dict[str, Place] = {}

    def at(self, offsets: Mapping[str, int], before: Mapping[str, Place]) -> dict[str, Place]:
        """The places of offsets. A stream that has not moved since ``before`` keeps its place: Spark compares them as text."""
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
        """The streams that do not have the message that was seen."""
        found = {stream for stream, place in places.items() if self._is_another(stream, place)}
        self.forget(found)
        return found

    def _is_another(self, stream: str, place: Place) -> bool:
        if _SEEN not in place:
            return False
        offset, time = place[_SEEN]
        return self._stored_at(stream, offset) not in {None, time}

    def is_new(self, stream: str, place: Place) -> bool:
        """Whether this run has made the place, so that the stream need not be asked again."""
        return self._made.get(stream) == place

    def forget(self, streams: Iterable[str]) -> None:
        """Forget the places of streams that were created again."""
        for stream in streams:
            self._made.pop(stream, None)
