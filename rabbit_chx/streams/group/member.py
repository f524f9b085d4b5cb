"""One member of a stream group: the thread that owns its connections, assigns lanes to workers, and stores offsets.

The broker asks whether a member is ready to begin with a stream, or to leave it, and closes the connection if it has to wait
for a minute. So this thread never calls the program, and answers in time even if a handler does not return.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from multiprocessing.connection import wait
from time import monotonic
from typing import Any, Final

from rabbit_chx.base.text import counted
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError, StreamUnavailable
from rabbit_chx.mirror.releases import Release
from rabbit_chx.streams.group.assignments import Assignments
from rabbit_chx.streams.group.failures import Failures
from rabbit_chx.streams.group.lanes import Attention, StreamGroupStatus, StreamLane, status_of
from rabbit_chx.streams.group.offsets import not_stored
from rabbit_chx.streams.group.parking import Parking
from rabbit_chx.streams.group.places import Place, in_order, is_gone
from rabbit_chx.streams.group.settings import StreamSettings
from rabbit_chx.streams.messages.chunks import Chunk, parse_chunk
from rabbit_chx.streams.protocol.answers import Delivery
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.opening import no_such_stream
from rabbit_chx.working.runs import Running
from rabbit_chx.working.settings import log, warn
from rabbit_chx.working.workers import Progress

_TICK: Final = 0.5
"""The longest wait for events, in seconds."""
_EVENTS: Final = 100
"""How many events of a connection are handled before anything else gets a turn."""
_TRIES_FOR: Final = 10.0
"""How long to open connections before those that are open get a turn, in seconds."""
_SLOW: Final = 1.0
"""Seconds of a failed attempt to connect after which those that are open get a turn at once: the next one may take as long."""
_LOOK_EVERY: Final = 30.0
_LISTENS: Final = 3
"""How often the broker must prove in each heartbeat interval that it knows the connection."""


class StreamMember(Running):
    """One run of a member."""

    def __init__(
        self,
        settings: StreamSettings,
        connect: Callable[[str | None], StreamConnection],
        workers: Progress,
        parking: Parking | None,
        *,
        batches: bool,
    ) -> None:
        super().__init__(settings, workers)
        self._settings = settings
        self._connect = connect
        self._parking = parking
        self._batches = batches
        self._attention = Attention()
        self._failures = Failures(
            settings, workers, parking, ask=self._ask, fail=self.fail, settle=self._settle
        )
        self._assignments = Assignments(settings, workers)
        self._lanes: dict[str, StreamLane] = {}
        self._former: dict[str, StreamLane] = {}
        """The lanes of streams that were deleted or unbound, whose handlers may still run."""
        self._has_exchange = True
        """Whether the exchange existed at the last look."""
        self._unbound: set[str] = set()
        """The streams that were not bound at the last look."""
        self._given_up: set[str] = set()
        """The streams to leave when all their messages are handled."""
        self._places: list[Place] = []
        self._connect_again = self._look_again = self._listen_again = 0.0
        self._is_woken = False
        """Whether the end of the wait has been asked for already."""
        self._woken, self._waker = socket.socketpair()
        for each in (self._woken, self._waker):
            each.setblocking(False)

    # ---- from any thread

    @property
    def status(self) -> StreamGroupStatus:
        """The current state."""
        waits = self._parking.why_not if self._parking is not None else ""
        with self.workers.lock:
            return status_of([*self._lanes.values()], self.why_not, waits, [*self._former.values()])

    def on_progress(self) -> None:
        """Wake the member if there is something to do for it."""
        if self._attention.wanted:
            self._wake()

    def on_interruption(self, lane: StreamLane, channel: Any, item: Any, error: Exception | None) -> None:
        """Decide later what to do with a message that was not handled."""
        assert error is not None
        self._failures.on_interruption(lane, channel, item, error)

    def _wake(self) -> None:
        if self._is_woken:
            return
        self._is_woken = True
        with suppress(OSError):  # it has ended
            self._waker.send(b"\0")

    # ---- in the thread of the connections

    def run(self) -> None:
        """Consume until `stop`, and connect again whenever a connection is lost.

        Raises:
            RabbitChxError: the member cannot consume these streams; the message says why.
        """
        self.workers.start(self)
        try:
            with self._ending():
                try:
                    while not self.workers.stopped:
                        self._serve()
                        self._turn(_TICK)
                except RabbitChxError as error:  # how far the streams have come is stored all the same
                    self.fail(error)
                self._finish()
        finally:
            if self._parking is not None:
                self._parking.end()
            for place in self._places:
                place.close()
            self._woken.close()
            self._waker.close()
        if self._error is not None:
            raise self._error

    # ---- connections

    def _serve(self) -> None:
        """Subscribe to the streams that no connection serves."""
        unserved = self._unserved
        if (self._lanes and not unserved) or monotonic() < self._connect_again:
            return
        with self._trying():
            if not self._lanes and self._parking is not None:
                self._parking.check()
            if not self._lanes or not self._places:
                self._open(None)
            with self._joining():
                for place in list(self._places):
                    self._serve_at(place)
                self._serve_elsewhere()
            self._close_idle()
            if not self._unserved and self._lanes and self.why_not:
                self.why_not = ""
                self._outage.ended()
                self._backoff.works()
                log.info("group %r: joined for %s", self._settings.name, counted(len(self._lanes), "stream"))

    def _close_idle(self) -> None:
        """Close the connections that serve no stream. If one were lost, nothing would be joined again to be connected."""
        for place in [each for each in self._places if not each.lanes]:
            self._places.remove(place)
            place.close()

    def _serve_elsewhere(self) -> None:
        """Connect to the nodes of the other streams, for a limited time: those that are served must not wait for long.

        Those on the nodes that were tried last come last: the others may be reached. One of the streams that no node has is tried,
        because the node that said so may be cut off from the others.
        """
        until, unserved = monotonic() + _TRIES_FOR, sorted(self._unserved, key=lambda each: each.tried)
        last = {lane.nodes: lane.tried for lane in unserved}
        for lane in sorted(unserved, key=lambda each: (not each.nodes, last[each.nodes])):
            if lane in self._unserved and monotonic() < until and not self.workers.stopped:
                with self._trying():
                    self._serve_at(self._open(lane.stream))
                if lane.subscription is None and (not lane.nodes or monotonic() > lane.tried + _SLOW):
                    break

    def _serve_at(self, place: Place) -> None:
        with self._guarded(place):
            place.serve(self._unserved, self._on_missing)

    def _joining(self) -> AbstractContextManager[None]:
        """What to join in: alone, unless this member has some of its streams already, or there is only one."""
        unserved = self._unserved
        if 1 < len(unserved) == len(self._lanes):
            stream = unserved[0].stream
            with suppress(StreamUnavailable):  # other streams may be served
                place = next((each for each in self._places if each.is_for(stream)), None)
                return (place or self._open(stream)).joining(stream, lambda: self.workers.stopped)
        return nullcontext()

    @property
    def _unserved(self) -> list[StreamLane]:
        return [lane for lane in self._lanes.values() if lane.subscription is None]

    def _open(self, stream: str | None) -> Place:
        """Open a connection, to a node with a stream if given; the first one finds the streams."""
        if stream is not None:
            self._lanes[stream].tried = monotonic()
        connection = self._connect(stream)
        try:
            place = Place(connection, self._settings)
            if not self._lanes:
                self._look(connection)
        except BaseException:
            connection.close()
            raise
        self._places.append(place)
        return place

    def _look(self, connection: StreamConnection) -> None:
        """Find the streams: add those that are new, and give up those that are not bound, twice in a row: `apply` binds some again."""
        self._look_again = monotonic() + _LOOK_EVERY
        exchange = self._settings.exchange
        try:
            names = [self._settings.stream or ""] if exchange is None else connection.partitions(exchange)
            self._has_exchange = True
        except StreamUnavailable as error:
            if not (self._lanes and is_gone(error)):
                raise
            if self._has_exchange:
                log.warning("group %r: %s; its streams are still consumed", self._settings.name, error)
            names, self._has_exchange = [], False
        if not names and not self._lanes:
            raise InvalidValue("exchange", exchange, "an exchange to which a stream is bound")
        unbound = self._lanes.keys() - {*names} if names else set()
        self._given_up, self._unbound = unbound & self._unbound, unbound
        with self.workers.lock:
            known = {**self._former, **self._lanes}
            runs = bool(known)
            for name in {*names} - self._lanes.keys():
                known[name] = known.get(name) or StreamLane(
                    name,
                    batches=self._batches,
                    store_every=self._settings.store_every,
                    attention=self._attention,
                )
                known[name].is_new = runs
            self._lanes = {name: known.pop(name) for name in in_order({*names, *self._lanes})}
            self._former = known

    def _give_up(self) -> None:
        """Leave the streams that are given up. The broker refuses a member that joins one with another number before that.

        Only the member that has such a stream knows when it is drained: it leaves, the broker gives the stream to the next member, and
        that one leaves. A member that has lost it joins it again: the others may end before it is drained.
        """
        if not self._given_up & self._lanes.keys():
            return
        for place in list(self._places):
            with self._guarded(place):
                for lane in [each for each in place.lanes.values() if each.stream in self._given_up]:
                    if self._assignments.is_drained(place, lane):
                        self._assignments.settle(place, lane)
                        place.forget(lane.stream)
                        self._assignments.lose(lane, place.connection)
                        self._drop(lane.stream)
                        log.warning(
                            "group %r: stream %r is not bound any more", self._settings.name, lane.stream
                        )
        self._close_idle()

    def _drop(self, stream: str) -> None:
        with self.workers.lock:
            self._former[stream] = self._lanes.pop(stream)

    def _on_missing(self, connection: StreamConnection, lane: StreamLane) -> None:
        """Drop a stream that was deleted; raise if it is the only one."""
        if self._settings.exchange is None:
            raise no_such_stream(connection, lane.stream)
        log.warning("group %r: stream %r was deleted", self._settings.name, lane.stream)
        self._drop(lane.stream)

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """Try again later if no connection opens."""
        try:
            yield
        except BrokerUnavailable as error:
            if error.permanent and not (is_gone(error) and self._settings.exchange and self._lanes):
                raise
            self._on_lost(error)

    @contextmanager
    def _guarded(self, place: Place) -> Iterator[None]:
        """Give up a stream that moved, or a connection that was lost; serve its streams elsewhere later."""
        try:
            yield
        except StreamUnavailable as error:
            if place.connection.is_open and error.stream is not None and not error.permanent:
                lost = self._lost_with(place, error.stream, moved=error.problem != "lost")
            elif error.permanent and not (is_gone(error) and self._settings.exchange):
                raise
            else:
                lost = place.close()
                self._places.remove(place)
            for lane in lost:
                self._assignments.lose(lane, place.connection)
            self._on_lost(error)

    def _lost_with(self, place: Place, stream: str, *, moved: bool) -> list[StreamLane]:
        """The streams that a connection no longer serves because this one moved or is given up.

        RabbitMQ before 4.3 may keep the consumer of a stream that moved, as the active one that never answers, until its
        connection is closed. Then no other member gets the stream.
        """
        lane = place.forget(stream)
        if lane is None:
            return []
        if not moved or Release._of_broker(place.connection.release)._forgets_consumers_of_moved_streams:
            return [lane]
        with suppress(StreamUnavailable):
            for other in place.lanes.values():
                self._assignments.settle(place, other)
        self._places.remove(place)
        return [lane, *place.close()]

    def _on_lost(self, error: BrokerUnavailable) -> None:
        self.why_not = str(error)
        if monotonic() >= self._connect_again:  # one pause for all connections that are lost at the same time
            self._connect_again = monotonic() + self._backoff.failed()
        self._outage.failed(error)

    # ---- events

    def _turn(self, seconds: float) -> None:
        """Wait for events, for at most ``seconds``; then do what is due."""
        live = [place.connection for place in self._places if place.connection.is_open]
        lost = len(live) < len(self._places)
        at_once = self._calls or lost or any(each._has_unread for each in live)
        sources: list[Any] = [self._woken, *live]
        wait(sources, 0.0 if at_once else self._failures.until_retry(seconds))
        with suppress(BlockingIOError):
            self._woken.recv(1 << 12)
        self._is_woken = self._attention.wanted = False
        for place in list(self._places):
            with self._guarded(place):
                self._receive(place)
        while self._calls:
            self._calls.popleft()()
        self._failures.retry()
        for place in list(self._places):
            with self._guarded(place):
                for lane in list(place.lanes.values()):
                    self._assignments.do_due(place, lane)
        self._do_chores()

    def _receive(self, place: Place) -> None:
        arrived: list[tuple[StreamLane, Chunk]] = []
        try:
            for event in islice(place.connection._events(0), _EVENTS):
                lane = place.lanes.get(event.subscription)
                if isinstance(event, Delivery):
                    if lane is not None:
                        arrived.append((lane, parse_chunk(event.chunk, lane.stream)))
                elif lane is None:  # the broker waits for the answer of one that is gone, too
                    place.connection._answer_update(event, None)
                else:
                    self._add(arrived)
                    self._assignments.on_update(lane, event)
        finally:
            self._add(arrived)

    def _add(self, arrived: list[tuple[StreamLane, Chunk]]) -> None:
        """Hand what has arrived to the workers, all at once: busy workers seldom leave the lock to others."""
        if arrived:
            with self.workers.lock:
                ready = [lane for lane, chunk in arrived if lane.add(chunk)]
            for lane in ready:
                self.workers.submit(lane)
            arrived.clear()

    def _do_chores(self) -> None:
        now = monotonic()
        if now >= self._listen_again:
            intervals = [self._assignments.interval(place.connection) for place in self._places]
            self._listen_again = now + min(intervals, default=_TICK) / _LISTENS
            for place in list(self._places):
                with self._guarded(place):
                    self._assignments.listen(place)
        if now >= self._look_again and self._places and self._settings.exchange and self._lanes:
            place = self._places[0]
            with self._guarded(place):
                self._look(place.connection)
        self._give_up()

    def _finish(self) -> None:
        """Wait for the handlers, and store how far they came."""
        for lane in self._lanes.values():
            self._assignments.leave(lane)
        self._wait_for_handlers(self._last_turn)
        self._settle_all()

    def _last_turn(self, seconds: float) -> None:
        """Take a turn of a member that ends, whatever fails."""
        try:
            self._turn(seconds)
        except RabbitChxError as error:
            self.fail(error)

    def _settle_all(self) -> None:
        """Store how far each lane has come; the error names all streams whose offset the broker does not store."""
        for place in list(self._places):
            for lane in place.lanes.values():
                with suppress(StreamUnavailable):
                    if not lane.is_refused:
                        self._assignments.settle(place, lane)
        if refused := [name for name, lane in self._lanes.items() if lane.is_refused]:
            error = not_stored(self._settings.name, refused)
            if self._error is None or isinstance(self._error, StreamUnavailable):
                self._error = error
            else:
                warn(self._settings.name, error)

    def _busy(self) -> list[str]:
        lanes = (*self._lanes.values(), *self._former.values())
        return [lane.stream for lane in lanes if not lane.is_idle]

    def _settle(self, lane: StreamLane) -> None:
        """Store how far a lane has come, now."""
        for place in [each for each in self._places if lane in each.lanes.values()]:
            with self._guarded(place):
                self._assignments.settle(place, lane)
