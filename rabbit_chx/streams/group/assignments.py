"""Begin and end the assignments of streams to a member, and store its offsets. In the thread of the connections."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import Final, cast

from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams.ends import end_in, nothing_from
from rabbit_chx.streams.group.lanes import Change, StreamLane
from rabbit_chx.streams.group.offsets import end_before, first_of, store, stored_in, wait_until_stored
from rabbit_chx.streams.group.places import Place
from rabbit_chx.streams.group.settings import Position, StreamSettings, check_position
from rabbit_chx.streams.protocol.answers import ConsumerUpdate, StreamStats
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.requests import OffsetSpec
from rabbit_chx.working.settings import log
from rabbit_chx.working.workers import Progress

_MOST_SECONDS: Final = 45.0
"""The broker closes the connection after a minute without an answer (``request_timeout`` of rabbitmq_stream)."""


class Assignments:
    """What happens to a lane when the broker asks a member to begin with a stream or to leave it."""

    def __init__(self, settings: StreamSettings, workers: Progress) -> None:
        self._settings = settings
        self._workers = workers
        self._seconds = min(settings.timeouts.close, _MOST_SECONDS)

    def on_update(self, lane: StreamLane, update: ConsumerUpdate) -> None:
        """Note a question of the broker, which may ask another one before this one is answered."""
        lane.questions.append((update, monotonic() + self._seconds))
        if len(lane.questions) == 1:
            self._prepare(lane, update)

    def _prepare(self, lane: StreamLane, update: ConsumerUpdate) -> None:
        if not update.active:
            self.leave(lane)
        elif self._settings.asks and not self._workers.stopped:
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

    def lose(self, lane: StreamLane, connection: StreamConnection) -> None:
        """End an assignment with its subscription, whose questions a connection that stays open must answer all the same."""
        self.leave(lane)
        with suppress(StreamUnavailable):  # it is lost
            for update, _ in lane.questions:
                connection._answer_update(update, None)
        lane.questions.clear()
        lane.change = None
        with self._workers.lock:
            lane.end_assignment()

    def do_due(self, place: Place, lane: StreamLane) -> None:
        """Answer the broker, store an offset, ask for more chunks, or wake the lane: whatever is due."""
        if lane.questions:
            self._answer(place, lane, *lane.questions[0])
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

    def _answer(self, place: Place, lane: StreamLane, update: ConsumerUpdate, answer_by: float) -> None:
        late = monotonic() > answer_by
        if not update.active:
            if lane.is_idle or late:
                self._hand_over(place, lane, update, late=not lane.is_idle)
        elif lane.change is None or lane.change.done:
            self._begin(place, lane, update)
        elif late:
            names = " and ".join(self._settings.callbacks(assigned=True))
            text = f"{names}, or the handler before, did not return within {self._seconds:g} s for stream {lane.stream!r}"
            raise StreamUnavailable(text, "lost", lane.stream)  # others keep the connection

    def _begin(self, place: Place, lane: StreamLane, update: ConsumerUpdate) -> None:
        """Tell the broker where the member starts."""
        if self._workers.stopped:
            return  # the connection is about to be closed
        connection, stream, name = place.connection, lane.stream, self._settings.name
        stored, known = stored_in(connection, name, stream)
        stats = connection.stats(stream)
        kept = stats.first_chunk_id
        decides = callable(self._settings.start)
        position = self._position(lane, stored)
        if stored is None and known and not decides:
            position = "first"
            text = "group %r: retention has removed its offset in stream %r with the messages before offset %s, some of which may be unhandled"
            log.warning(text, name, stream, kept)
        elif isinstance(position, int) and kept is not None and 0 < position < kept:
            text = "group %r: retention has removed offsets %d to %d of stream %r, which may include unhandled messages"
            log.warning(text, name, position, kept - 1, stream)
        is_at_end = position in {"next", "last"}
        if is_at_end and lane.is_new and not decides:
            position = "first"  # messages may have been published before the stream was found
        first, is_beyond = 0, False
        if stored is not None and not decides:
            first, is_beyond = stored + 1, self._is_beyond(connection, stream, stored, stats)
        elif position is not None:
            first = first_of(connection, stream, position)
        if stored is None and (is_at_end or isinstance(position, datetime)):
            # Otherwise a member that takes over before the first store would begin at a later end.
            store(connection, name, stream, first - 1, mark=True)
            stored = first - 1
        with self._workers.lock:
            lane.assign(first, stored)
            lane.trusted_until = monotonic() + self.interval(connection)
            lane.end, lane.is_beyond = end_in(stats), is_beyond
        lane.change, lane.told = None, True
        lane.store_again = monotonic() + self._settings.store_seconds
        self._send(place, lane, update, OffsetSpec.offset(first))
        log.info("group %r: stream %r is assigned, from %s", name, stream, position or "the first message")

    def _is_beyond(self, connection: StreamConnection, stream: str, stored: int, stats: StreamStats) -> bool:
        """Whether the stored offset is beyond the end of a stream, which is logged."""
        end = None if stored < end_in(stats) else end_before(connection, stream, stored + 1)
        if end is not None:
            text = (
                "group %r: the stored offset %d of stream %r is beyond its end, %d, so its messages are not handled; any user who "
                "may read the stream can store one. `rabbit-chx group --reset` sets it"
            )
            log.warning(text, self._settings.name, stored, stream, end)
        return end is not None

    def _position(self, lane: StreamLane, stored: int | None) -> Position | None:
        if not callable(self._settings.start):
            return self._settings.start if stored is None else stored + 1
        given = lane.change.start if lane.change else None
        if given is not None:
            check_position(given, f"start of stream {lane.stream!r}")
        return cast("Position | None", given)

    def _hand_over(self, place: Place, lane: StreamLane, update: ConsumerUpdate, *, late: bool) -> None:
        """Store how far the member came, and let the broker activate another one."""
        if late:
            text = (
                "group %r: stream %r goes to another member although the handler did not return within %g s"
            )
            log.warning(text, self._settings.name, lane.stream, self._seconds)
        self.settle(place, lane)
        with self._workers.lock:
            lane.end_assignment()
        self._send(place, lane, update, None)
        log.info("group %r: stream %r is handed over", self._settings.name, lane.stream)

    def _send(self, place: Place, lane: StreamLane, update: ConsumerUpdate, start: OffsetSpec | None) -> None:
        """Answer a question, and turn to the next one."""
        lane.questions.popleft()
        place.connection._answer_update(update, start)
        if lane.questions:
            self._prepare(lane, lane.questions[0][0])

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
        # Another client may store the same offset again, which does not mean that the broker stores none.
        known = check and not lane.contested
        before = place.connection.query_offset(name, stream) if known else None
        if offset != lane.stored:
            store(place.connection, name, stream, offset, mark=not lane.checked)
        lane.store_again = monotonic() + self._settings.store_seconds
        others = None
        if check:
            try:
                others = wait_until_stored(place.connection, name, stream, offset, before)
            except StreamUnavailable as error:
                lane.is_refused = error.permanent
                raise
        if others is not None:
            text = (
                "group %r: another client stores the group's offset in stream %r, at last %d instead of %d. "
                "Before `rabbit-chx group --reset`, stop all members"
            )
            log.warning(text, name, stream, others, offset)
            lane.contested = True
        lane.stored = offset if others is None else others
        lane.checked = lane.checked or check

    def interval(self, connection: StreamConnection) -> float:
        """The heartbeat interval, which a URL or the broker may shorten: after two of them, it may give the streams away."""
        return connection.heartbeat or self._settings.heartbeat

    def listen(self, place: Place) -> None:
        """Learn the ends of the streams; each answer proves that the broker still knew the connection."""
        for lane in place.lanes.values():
            if lane.channel is None:
                continue
            end = end_in(place.connection.stats(lane.stream))
            lane.trusted_until = place.connection._heard + self.interval(place.connection)
            if self._follows_only_a_gap(place, lane, end):
                lane.empty_to = end
            lane.end = max(lane.end, end)

    def _follows_only_a_gap(self, place: Place, lane: StreamLane, end: int) -> bool:
        """Whether no message follows the handled ones up to an end that shows more: each stored offset is an entry of the stream."""
        with self._workers.lock:
            following = lane.following
        if following is None or not max(following, lane.empty_to) < end:
            return False
        return nothing_from(place.connection, lane.stream, following)

    def is_drained(self, place: Place, lane: StreamLane) -> bool:
        """Whether no message is left in a stream of this member, even if the end that it knows is too small by a chunk."""
        following = lane.following
        if following is None or not lane.is_drained:
            return False
        return nothing_from(place.connection, lane.stream, following)

    def _tell(self, lane: StreamLane, change: Change) -> None:
        with self._workers.lock:
            submit = lane.tell(change)
        if submit:
            self._workers.submit(lane)
