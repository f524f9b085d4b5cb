"""Begin and end the assignments of streams to a member, and store its offsets. In the thread of the connections."""

from __future__ import annotations

from datetime import datetime
from time import monotonic
from typing import Final, cast

from rabbit_chx.consuming.logs import log
from rabbit_chx.consuming.member.workers import Progress
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams.group.lanes import Change, StreamLane
from rabbit_chx.streams.group.offsets import first_of, wait_until_stored
from rabbit_chx.streams.group.places import Place
from rabbit_chx.streams.group.settings import Position, StreamSettings, check_position
from rabbit_chx.streams.protocol.answers import ConsumerUpdate
from rabbit_chx.streams.protocol.requests import OffsetSpec

_MOST_SECONDS: Final = 45.0
"""The broker closes the connection after a minute without an answer (``request_timeout`` of rabbitmq_stream)."""


class Assignments:
    """What happens to a lane when the broker asks a member to begin with a stream or to leave it."""

    def __init__(self, settings: StreamSettings, workers: Progress) -> None:
        self._settings = settings
        self._workers = workers
        self._seconds = min(settings.timeouts.close, _MOST_SECONDS)

    def on_update(self, lane: StreamLane, update: ConsumerUpdate) -> None:
        """Prepare the answer to a question of the broker."""
        lane.update, lane.answer_by = update, monotonic() + self._seconds
        if not update.active:
            self.leave(lane)
        elif self._settings.asks:
            lane.change = Change(lane.stream, assigned=True)
            lane.told = True
            self._tell(lane, lane.change)

    def leave(self, lane: StreamLane) -> None:
        """Start no further message of a stream, and tell the program after the current one."""
        with self._workers.lock:
            lane.revoke()
        if lane.told and self._settings.on_revoked is not None:
            self._tell(lane, Change(lane.stream, assigned=False))
        lane.told = False

    def lose(self, lane: StreamLane) -> None:
        """End an assignment with its connection."""
        self.leave(lane)
        lane.update = lane.change = None
        with self._workers.lock:
            lane.end_assignment()

    def do_due(self, place: Place, lane: StreamLane) -> None:
        """Answer the broker, store an offset, ask for more chunks, or wake the lane: whatever is due."""
        if lane.update is not None:
            self._answer(place, lane, lane.update)
        if lane.channel is None:
            return
        if lane.store_is_due:
            self._store(place, lane, check=not lane.checked)
        if not lane.leaving:
            place.top_up(lane)
        with self._workers.lock:
            submit = lane.wake()
        if submit:
            self._workers.submit(lane)

    def _answer(self, place: Place, lane: StreamLane, update: ConsumerUpdate) -> None:
        late = monotonic() > lane.answer_by
        if not update.active:
            if lane.is_idle or late:
                self._hand_over(place, lane, update, late=not lane.is_idle)
        elif lane.change is None or lane.change.done:
            self._begin(place, lane, update)
        elif late:
            raise StreamUnavailable(
                f"the program did not say within {self._seconds:g} seconds where to start in stream {lane.stream!r}",
                "lost",
            )

    def _begin(self, place: Place, lane: StreamLane, update: ConsumerUpdate) -> None:
        """Tell the broker where the member starts."""
        if self._workers.stopped:
            return  # the connection is about to be closed
        connection, stream, name = place.connection, lane.stream, self._settings.name
        stored = connection.query_offset(name, stream)
        position = self._position(lane, stored)
        first = 0 if position is None else first_of(connection, stream, position)
        if stored is None and (position in {"next", "last"} or isinstance(position, datetime)):
            # Otherwise a member that takes over before the first store would begin at a later end.
            connection.store_offset(name, stream, first - 1)
            stored = first - 1
        self._warn_of_loss(place, lane, stored)
        with self._workers.lock:
            lane.assign(first, stored)
            lane.heard = monotonic()
        lane.update, lane.change, lane.told = None, None, True
        lane.store_again = monotonic() + self._settings.store_seconds
        connection.answer_update(update, OffsetSpec.offset(first))
        log.info("group %r: stream %r is assigned, from %s", name, stream, position or "the first message")

    def _position(self, lane: StreamLane, stored: int | None) -> Position | None:
        if not callable(self._settings.start):
            return self._settings.start if stored is None else stored + 1
        given = lane.change.start if lane.change else None
        if given is not None:
            check_position(given, f"start of stream {lane.stream!r}")
        return cast("Position | None", given)

    def _warn_of_loss(self, place: Place, lane: StreamLane, stored: int | None) -> None:
        first = place.connection.stats(lane.stream).first_chunk_id
        if stored is not None and first is not None and 0 <= stored < first - 1:
            text = "group %r: offsets %d to %d of stream %r were never handled: retention has removed them"
            log.warning(text, self._settings.name, stored + 1, first - 1, lane.stream)

    def _hand_over(self, place: Place, lane: StreamLane, update: ConsumerUpdate, *, late: bool) -> None:
        """Store how far the member came, and let the broker activate another one."""
        if late:
            text = "group %r: stream %r goes to another member although the handler did not return within %g seconds"
            log.warning(text, self._settings.name, lane.stream, self._seconds)
        self.settle(place, lane)
        with self._workers.lock:
            lane.end_assignment()
        lane.update = None
        place.connection.answer_update(update, None)
        log.info("group %r: stream %r is handed over", self._settings.name, lane.stream)

    def settle(self, place: Place, lane: StreamLane) -> None:
        """Store the last offset, and wait until the next member will find it."""
        if lane.channel is not None and lane.done is not None:
            self._store(place, lane, check=True)

    def _store(self, place: Place, lane: StreamLane, *, check: bool) -> None:
        """Store the last offset. The broker answers neither this nor a refusal of it, so it can be read back."""
        with self._workers.lock:
            offset, lane.unstored = lane.done, 0
        assert offset is not None
        name, stream = self._settings.name, lane.stream
        if offset != lane.stored:
            place.connection.store_offset(name, stream, offset)
        lane.store_again = monotonic() + self._settings.store_seconds
        if check:
            wait_until_stored(place.connection, name, stream, offset)
        lane.stored, lane.checked = offset, lane.checked or check

    def listen(self, place: Place) -> None:
        """Learn the ends of the streams; each answer proves that the broker still knew the connection."""
        for lane in place.lanes.values():
            if lane.channel is None:
                continue
            asked = monotonic()
            stats = place.connection.stats(lane.stream)
            last = stats.committed_chunk_id if stats.committed_offset is None else stats.committed_offset
            lane.end = max(lane.end, -1 if last is None else last + 1)
            lane.heard = asked

    def _tell(self, lane: StreamLane, change: Change) -> None:
        with self._workers.lock:
            submit = lane.tell(change)
        if submit:
            self._workers.submit(lane)
