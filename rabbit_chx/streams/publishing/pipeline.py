"""What lies between the calls of a publisher to streams and its connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from rabbit_chx.base.text import seconds
from rabbit_chx.base.timeouts import Timeouts, deadline_of
from rabbit_chx.base.unfair import UnfairCondition
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError, StreamUnavailable
from rabbit_chx.publishing.messages import Outcome, OutgoingMessage, Owner
from rabbit_chx.publishing.outbox import NO_MORE
from rabbit_chx.publishing.pipeline import GRACE_SECONDS, MAX_BYTES_IN_FLIGHT, Pipeline
from rabbit_chx.publishing.sender import CLOSED
from rabbit_chx.streams.partitions import Partitions
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.publishing.encoder import HIGHEST_ID, StreamColumns, StreamEncoder
from rabbit_chx.streams.publishing.lots import Lot, LotOutbox, LotPart
from rabbit_chx.streams.publishing.outlet import Outlet
from rabbit_chx.streams.publishing.routes import Routes

_CLOSING: Final = 2.0
"""Seconds to close the connection to a stream that was removed."""


class StreamPipeline(Pipeline[StreamColumns, StreamColumns]):
    """An encoder, and for each stream an outbox and the thread that sends what is in it.

    Without a ``stream``, messages go to the streams that ``find`` reports of ``source``, a super stream or an
    exchange. ``connect`` opens a connection before a time of the monotonic clock, to the leader of a stream
    if one is given.
    """

    step = 1_000
    part = LotPart

    def __init__(
        self,
        stream: str | None,
        source: str,
        find: Callable[[StreamConnection, str], Partitions],
        name: str | None,
        connect: Callable[..., StreamConnection],
        timeouts: Timeouts,
        properties: Mapping[str, Any] | None,
        max_in_flight: int,
    ) -> None:
        super().__init__("StreamPublisher", timeouts)
        self.encoder = StreamEncoder(properties, by_key=stream is None)
        self._stream = stream
        self._name = name
        self._connect_to = connect
        self._max_in_flight = max_in_flight
        self._routes = None
        if stream is None:
            self._routes = Routes(source, connect, find, self._settle, self._use)
        self._numbers = UnfairCondition()
        self._next = 1
        """The next publishing id of all streams."""
        self._accepting = True
        self._outlets: dict[str, Outlet] = {}
        self._former: list[LotOutbox] = []
        self.outboxes: Sequence[LotOutbox] = []

    # -- opening and closing

    def _start(self) -> None:
        if self._routes is None:
            self._use([self._stream or ""])
        else:
            self._routes.start()

    def _wait_until_connected(self) -> None:
        deadline = time.monotonic() + self.timeouts.connect + GRACE_SECONDS
        if self._routes is not None:
            self._routes.wait_until_known(deadline)
        for stream, outlet in self._outlets.items():
            if not outlet.outbox.wait_until_connected(max(deadline - time.monotonic(), 0)):
                raise BrokerUnavailable(f"the broker does not answer to a publisher of stream {stream!r}")

    def _use(self, streams: Sequence[str]) -> None:
        """Publish to these streams from now on."""
        outlets = {stream: self._outlets.get(stream) or self._started(stream) for stream in streams}
        gone = [outlet for stream, outlet in self._outlets.items() if stream not in outlets]
        self._former += [outlet.outbox for outlet in gone]
        self._outlets = outlets
        self.outboxes = [*self._former, *(outlet.outbox for outlet in outlets.values())]
        self._end(gone, _CLOSING, "its stream was removed")

    def _started(self, stream: str) -> Outlet:
        outbox = LotOutbox(max_messages=self._max_in_flight, max_bytes=MAX_BYTES_IN_FLIGHT)
        if not self._accepting:
            outbox.stop_accepting()
        connect = partial(self._connect_to, stream=stream)
        connected, patient = partial(self._on_connected, outbox), bool(self._outlets)
        outlet = Outlet(stream, self._name, connect, self.timeouts, outbox, connected, patient=patient)
        outlet.start()
        return outlet

    @property
    def _current(self) -> Sequence[LotOutbox]:
        return [outlet.outbox for outlet in self._outlets.values()]

    def _on_connected(self, outbox: LotOutbox, connection: StreamConnection, last_id: int) -> None:
        self.encoder.frame_max = connection.frame_max
        with self._numbers:
            self._next = outbox.number_again(last_id, max(self._next, last_id + 1))

    def _settle(self) -> None:
        """Wait until every message that was accepted has its outcome: none is added while the streams change."""
        with self._numbers:
            pass  # a call that saw no change yet has put its messages into the outboxes
        self._wait_until_settled(time.monotonic() + self.timeouts.confirm)

    def _stop(self, timeout: float) -> None:
        if self._routes is not None:
            self._routes.stop(timeout / 4)
        self._end(list(self._outlets.values()), timeout)

    @staticmethod
    def _end(outlets: Sequence[Outlet], timeout: float, why: str = CLOSED) -> None:
        deadline = time.monotonic() + timeout
        for outlet in outlets:
            outlet.stop(why)
        for outlet in outlets:
            outlet.join(max(deadline - time.monotonic(), 0))

    def _sends_here(self) -> bool:
        here = threading.get_ident()
        return any(outlet.thread_id == here for outlet in self._outlets.values())

    def stop_accepting(self) -> None:
        """Make `accept` raise, even while it waits."""
        self._accepting = False
        super().stop_accepting()
        if self._routes is not None:
            self._routes.refuse(BrokerUnavailable(NO_MORE))

    def abandon(self, error: RabbitChxError) -> None:
        """Give up everything that waits, for good."""
        if self._routes is not None:
            self._routes.refuse(error)
        super().abandon(error)

    # -- for the calls of a publisher

    def one(self, encoded: StreamColumns, row: int, owner: Owner) -> Lot:
        """Make a message."""
        return self.some(encoded, 0, row, owner)

    def some(self, columns: StreamColumns, start: int, row: int, owner: Owner) -> Lot:
        """Make the next messages of a batch."""
        messages = columns.messages.take(start, self.step)
        end = start + len(messages)
        ids = None if columns.ids is None else columns.ids[start:end]
        rows, keys = range(row, row + len(messages)), columns.keys[start:end]
        return Lot(rows, keys, messages, ids, owner, self._stream or "")

    def accept(
        self,
        messages: Sequence[OutgoingMessage],
        deadline: float | None,
        since: float | None = None,
        *,
        fits: bool = False,
    ) -> int:
        """Accept a lot whole, or not at all."""
        self.check_open()
        lot = cast(Lot, messages)
        partitions = late = None
        while late is None:  # again if the streams have changed in the meantime
            if self._routes is not None:
                partitions = self._routes.known(deadline)
                if partitions is None:
                    return 0
                lot.divide(partitions.of(cast(Sequence[str], lot.keys)))
            try:
                for part in lot.parts:
                    outbox = self._outlets[part.stream].outbox
                    # A stream that has no room delays no messages for others that are in memory anyway.
                    if not outbox.wait_for_room(deadline, since, fits=fits and partitions is not None):
                        return 0
            except (KeyError, RabbitChxError):
                if partitions is self._partitions:  # otherwise the stream may have been removed
                    raise
            late = self._put(lot, partitions, since)
        for part, outbox in late:  # without a lock, because a hook may publish
            outbox.settle([part], Outcome.UNSENT, str(outbox.why_given_up))
        return len(lot)

    def waited_for(self, timeout: float | None) -> str:
        """Say what `accept` has waited for."""
        if self._routes is not None and self._routes.current is None:
            return f"the streams of {self._routes.source!r} were unknown or changing for {seconds(timeout or 0.0)}"
        return super().waited_for(timeout)

    @property
    def _partitions(self) -> Partitions | None:
        """How messages are divided among several streams; None while these change."""
        return None if self._routes is None else self._routes.current

    def _put(
        self, lot: Lot, partitions: Partitions | None, since: float | None
    ) -> list[tuple[Lot, LotOutbox]] | None:
        """Number the messages, and put them into the outboxes in this order, unless the streams have changed.

        Return the parts that are too late for their outboxes; None after a change.
        """
        with self._numbers:
            if partitions is not self._partitions:
                return None
            if lot.ids is None:
                end = self._next + len(lot)
                if end > HIGHEST_ID + 1:
                    raise InvalidValue("publishing id", end - 1, f"at most {HIGHEST_ID}")
                lot.number(range(self._next, end))
            assert lot.ids is not None
            self._next = max(self._next, lot.ids[-1] + 1)
            lot.owner.accepted(lot)
            outlets = [self._outlets[part.stream] for part in lot.parts]
            placed = [(part, outlet.outbox) for part, outlet in zip(lot.parts, outlets, strict=True)]
            late = [(part, outbox) for part, outbox in placed if not outbox.put(part, since)]
        for outlet in outlets:
            outlet.wake()
        return late

    def sequence(self, timeout: float | None) -> int:
        """Ask each stream for the last publishing id of this name, and return the lowest."""
        self.check()
        self.check_open()
        deadline = deadline_of(timeout)
        late = StreamUnavailable(
            "the broker did not answer QueryPublisherSequence in time", "lost", self._stream
        )
        if self._routes is not None and self._routes.known(deadline) is None:
            raise late
        outlets = list(self._outlets.values())
        answers = [outlet.sequence() for outlet in outlets]
        try:
            lowest = min(
                answer.result(None if deadline is None else max(deadline - time.monotonic(), 0))
                for answer in answers
            )
        except TimeoutError:
            raise late from None
        for outlet in outlets:
            outlet.told = min(outlet.told, lowest)
        return lowest
