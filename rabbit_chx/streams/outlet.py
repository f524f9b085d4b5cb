"""Send encoded messages to one stream, and send them again over a new connection until the broker has confirmed them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from rabbit_chx.base.limits import as_integer
from rabbit_chx.base.outages import Outage
from rabbit_chx.base.text import counted, seconds
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.publishing.messages import Outcome, Totals
from rabbit_chx.streams.protocol.answers import Refusals, reason
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.opening import Link
from rabbit_chx.streams.protocol.requests import check_sizes

log = logging.getLogger("rabbit_chx.streams")
_WINDOW: Final = 20_000
"""Maximum number of unconfirmed messages."""
HIGHEST_ID: Final = 2**64 - 1
"""The protocol has 64 bits for a publishing id, and the broker takes them as a number without a sign."""
_PAUSE: Final = 0.1
"""Seconds between two attempts to connect."""
_LEAST: Final = 1.0
"""Seconds that an attempt has, even at the end of the time to reconnect."""


def checked_id(what: str, given: object, most: int = HIGHEST_ID) -> int:
    """Return a publishing id as an integer of Python."""
    number = as_integer(given)
    if number is None or not 1 <= number <= most:
        raise InvalidValue(what, given, f"an integer from 1 to {most}", "The last id of a call has 64 bits")
    return number


def checked_lot(lot: Sequence[tuple[int, bytes]]) -> dict[int, bytes]:
    """Check messages and their publishing ids before any of them is sent: after an error, the publisher goes on."""
    checked = dict(lot)
    if set(map(type, checked)) != {int} or not (lot[0][0] >= 1 and lot[-1][0] <= HIGHEST_ID):
        checked = {checked_id("publishing id", number): message for number, message in lot}
    for (before, _), (after, _) in pairwise(lot):
        if after <= before:
            raise InvalidValue("publishing ids", f"{after} after {before}", "increasing ids")
    if set(map(type, checked.values())) != {bytes}:
        for number, message in lot:
            if not isinstance(message, (bytes, bytearray, memoryview)):
                raise InvalidValue(
                    f"message {number}", type(message).__name__, "bytes", "encode_messages encodes bodies"
                )
    return checked


class Outlet:
    """The messages of a publisher for one stream, over a connection to its leader.

    Args:
        stream: the name of the stream.
        name: the publisher's name.
        connect: opens a connection to the leader before a time of the monotonic clock.
        timeouts: as for `StreamPublisher`.
    """

    def __init__(
        self, stream: str, name: str | None, connect: Callable[[float], StreamConnection], timeouts: Timeouts
    ) -> None:
        self.stream = stream
        self.name = name
        self.link: Link = Link("StreamPublisher", connect)
        self._timeouts = timeouts
        self._outage = Outage(log.warning, f"publisher of stream {stream!r}")
        self._number = 0
        self._stored = self._sent = 0
        """The last publishing id that the stream had for this name before the unconfirmed messages, and the last id sent since `open`."""
        self._waiting: dict[int, bytes] = {}
        self._totals = Totals()
        self._give_up_at = math.inf
        self._failing_since = math.inf
        """When the connection was lost that has confirmed messages last."""
        self.failed: dict[int, tuple[Outcome, str]] = {}
        """The messages of the current call that are given up, by their publishing ids, with the reasons."""

    def begin(self, give_up_at: float) -> None:
        """Begin a call, which gives up what is not confirmed at a time of the monotonic clock."""
        self._give_up_at = give_up_at
        self.link.give_up_at(give_up_at)
        self.failed = {}

    @property
    def is_ready(self) -> bool:
        """Whether it is connected, as far as it knows."""
        return self.link.is_open and self.link.connection.is_open

    def open(self) -> None:
        """Connect to the leader of the stream."""
        if not self.link.open():
            return
        try:
            self._stored = self._declared(self.link.connection)
        except BaseException:
            self.link.close()
            raise
        self._count(connections=1)

    def _declared(self, connection: StreamConnection) -> int:
        """Declare the publisher, and return the highest publishing id that the stream remembers for its name."""
        self._number = connection.declare_publisher(self.stream, self.name)
        return 0 if self.name is None else connection.query_publisher_sequence(self.name, self.stream)

    def close(self, deadline: float) -> None:
        """Wait for missing confirms until a time of the monotonic clock, and close the connection."""
        if not self.link.is_open:
            return
        self.begin(deadline)
        try:
            self.settle()
        finally:
            self.link.close()

    def sequence(self) -> int:
        """Return the highest publishing id that the stream remembers for this name; 0 if the stream remembers none, or without a name."""
        self.open()
        connection = self.link.connection
        if self.name is None:
            return 0
        try:
            return connection.query_publisher_sequence(self.name, self.stream)
        except StreamUnavailable as error:
            self._resume(error)  # the broker closes a connection that was idle for minutes
        return self.link.connection.query_publisher_sequence(self.name, self.stream)

    @property
    def last(self) -> int:
        """The last publishing id that the stream has, or may have."""
        return max(self._stored, self._sent)

    @property
    def totals(self) -> Totals:
        """The number of messages since `open`, by outcome."""
        return replace(self._totals, pending=len(self._waiting))

    @property
    def _patience(self) -> float:
        """For how many seconds the broker may receive or confirm nothing."""
        return min(self._timeouts.confirm, max(self._give_up_at - time.monotonic(), 0))

    def send(self, entries: dict[int, bytes]) -> None:
        """Send messages by their publishing ids, which increase."""
        try:
            self.open()  # a stream that was added
            check_sizes(entries.values(), self.link.connection.frame_max)
            if not self.link.connection.is_open:  # an earlier call gave up
                self._resume(
                    StreamUnavailable(f"the connection for stream {self.stream!r} is closed", "lost")
                )
            if next(iter(entries)) <= self._sent:  # what does the stream have of those that were sent before?
                self.settle()
                self._stored = self.sequence()
        except StreamUnavailable as error:
            if error.problem != "frame too large":
                self.leave_out(entries, error)
            raise
        # Before publishing: if that fails, the broker may have these ids, so other messages must not reuse them.
        self._sent = max(self._sent, next(reversed(entries)))
        self._waiting |= entries
        self._count(published=len(entries), bytes=sum(map(len, entries.values())))
        try:
            self.link.connection.publish(self._number, entries.items(), timeout=self._patience)
        except StreamUnavailable as error:
            self._resume(error)
        except BaseException:  # after Ctrl-C, what is not sent would be waited for in vain
            self.link.connection.close()
            raise
        # After a loss, the confirms show that the new connection works.
        self.settle(_WINDOW if self._failing_since == math.inf else 0)

    def leave_out(self, numbers: Iterable[int], error: StreamUnavailable) -> None:
        """Count messages that are not sent because of an error."""
        left = dict.fromkeys(numbers, (Outcome.UNSENT, str(error)))
        self.failed |= left
        self._count(published=len(left), unsent=len(left))

    def settle(self, most: int = 0) -> None:
        """Wait until at most ``most`` messages are unconfirmed."""
        while len(self._waiting) > most:
            try:
                self._take_outcomes(most)
            except StreamUnavailable as error:
                self._resume(error)
            else:
                self._outage.ended()

    def _take_outcomes(self, most: int) -> None:
        patience = self._patience
        for outcome in self.link.connection.confirms(patience):
            if isinstance(outcome, Refusals):
                error = self._refused(outcome)
                if error.permanent:
                    refused = outcome.codes.keys() & self._waiting.keys()
                    self._give_up(refused, Outcome.REJECTED, error)
                raise error
            done = [
                number for number in outcome.publishing_ids if self._waiting.pop(number, None) is not None
            ]
            dropped = sum(number <= self._stored for number in done)
            self._count(confirmed=len(done), duplicates=dropped)
            self._failing_since = math.inf
            if len(self._waiting) <= most:
                return
        raise StreamUnavailable(
            f"no confirm of {counted(len(self._waiting), 'message')} for stream {self.stream!r} within {seconds(patience)}",
            "refused",
            self.stream,
        )

    def _give_up(self, numbers: Iterable[int], outcome: Outcome, error: StreamUnavailable) -> None:
        """Record the outcome of messages that the broker has not confirmed."""
        given_up = [number for number in numbers if self._waiting.pop(number, None) is not None]
        self.failed |= dict.fromkeys(given_up, (outcome, str(error)))
        self._count(**{outcome.value: len(given_up)})

    def _refused(self, outcome: Refusals) -> StreamUnavailable:
        number, code = next(iter(outcome.codes.items()))
        problem, text = reason(code)
        if text == "the publisher does not exist":  # after a stream moves, its publishers do not exist
            problem = "not available"
        return StreamUnavailable(
            f"the broker refused message {number} for stream {self.stream!r}: {text}", problem, self.stream
        )

    def _resume(self, error: StreamUnavailable) -> None:
        """Send the unconfirmed messages over a new connection.

        Connections that open and confirm nothing are as bad as none, so time counts from the last that confirmed messages.
        """
        self._failing_since = min(self._failing_since, time.monotonic())
        deadline = min(self._failing_since + self._timeouts.reconnect, self._give_up_at)
        while True:
            self.link.connection.close()
            now = time.monotonic()
            if error.permanent or now >= deadline:
                self._failing_since = math.inf
                self._give_up(list(self._waiting), Outcome.UNKNOWN, error)  # the stream may have them or not
                raise error
            self._outage.failed(error)
            time.sleep(min(_PAUSE, deadline - now))
            try:
                self.link.give_up_at(min(max(deadline, time.monotonic() + _LEAST), self._give_up_at))
                connection = self.link.replace()
                stored = self._declared(connection)
                self._stored = min(self._stored, stored)  # a stream that was created again has fewer
                self.link.give_up_at(self._give_up_at)
                self._count(connections=1, resent=len(self._waiting))
                connection.publish(self._number, self._waiting.items(), timeout=self._patience)
            except StreamUnavailable as another:
                error = another
            except BaseException:
                self.link.connection.close()
                raise
            else:
                if not self._waiting:
                    self._failing_since = math.inf
                return

    def _count(self, **more: int) -> None:
        counts = {name: getattr(self._totals, name) + number for name, number in more.items()}
        self._totals = replace(self._totals, **counts)
