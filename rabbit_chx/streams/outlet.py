"""Send encoded messages to one stream, and send them again over a new connection until the broker has confirmed them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.limits import as_integer
from rabbit_chx.outages import Outage
from rabbit_chx.publishing.messages import Totals
from rabbit_chx.streams.protocol.answers import Refusals, reason
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.opening import Link
from rabbit_chx.streams.protocol.requests import check_sizes
from rabbit_chx.timeouts import Timeouts

log = logging.getLogger("rabbit_chx.streams")
_WINDOW: Final = 20_000
"""Maximum number of unconfirmed messages."""
HIGHEST_ID: Final = 2**64 - 1
"""The protocol has 64 bits for a publishing id, and the broker takes them as a number without a sign."""
_PAUSE: Final = 0.1
"""Seconds between two attempts to connect."""


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
        connect: opens a connection to the leader.
        timeouts: as for `StreamPublisher`.
    """

    def __init__(
        self, stream: str, name: str | None, connect: Callable[[], StreamConnection], timeouts: Timeouts
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
        self.give_up_at: float = math.inf
        """When it gives up what is not confirmed, on the monotonic clock."""

    def open(self, give_up_at: float = math.inf) -> None:
        """Connect to the leader of the stream; a call that is under way may have a time when it gives up."""
        if not self.link.open():
            return
        self._waiting, self._totals, self.give_up_at = {}, Totals(connections=1), give_up_at
        self._sent = 0
        try:
            self._number = self.link.connection.declare_publisher(self.stream, self.name)
            self._stored = self.sequence()
        except BaseException:
            self.link.close()
            raise

    def close(self, deadline: float) -> None:
        """Wait for missing confirms until a time of the monotonic clock, and close the connection."""
        if not self.link.is_open:
            return
        self.give_up_at = deadline
        try:
            self.settle()
        finally:
            self.link.close()

    def sequence(self) -> int:
        """Return the highest publishing id that the stream remembers for this name; 0 if the stream remembers none, or without a name."""
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
        return min(self._timeouts.confirm, max(self.give_up_at - time.monotonic(), 0))

    def send(self, entries: dict[int, bytes]) -> None:
        """Send messages by their publishing ids, which increase."""
        check_sizes(entries.values(), self.link.connection.frame_max)
        if not self.link.connection.is_open:  # an earlier call gave up
            try:
                self._resume(
                    StreamUnavailable(f"the connection for stream {self.stream!r} is closed", "lost")
                )
            except StreamUnavailable:
                self._count(published=len(entries), unsent=len(entries))
                raise
        if next(iter(entries)) <= self._sent:  # what does the stream have of those that were sent before?
            self.settle()
            self._stored = self.sequence()
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
        self.settle(_WINDOW)

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
                    self._count(rejected=sum(number in self._waiting for number in outcome.codes))
                    for number in outcome.codes:
                        self._waiting.pop(number, None)
                raise error
            done = [
                number for number in outcome.publishing_ids if self._waiting.pop(number, None) is not None
            ]
            dropped = sum(number <= self._stored for number in done)
            self._count(confirmed=len(done), duplicates=dropped)
            if len(self._waiting) <= most:
                return
            if time.monotonic() > self.give_up_at:
                break
        raise StreamUnavailable(
            f"no confirm from the broker for {patience:g} seconds: a memory or disk alarm, or no majority of replicas",
            "refused",
            self.stream,
        )

    def _refused(self, outcome: Refusals) -> StreamUnavailable:
        number, code = next(iter(outcome.codes.items()))
        problem, text = reason(code)
        if text == "the publisher does not exist":  # after a stream moves, its publishers do not exist
            problem = "not available"
        return StreamUnavailable(
            f"the broker refused message {number} for stream {self.stream!r}: {text}", problem, self.stream
        )

    def _resume(self, error: StreamUnavailable) -> None:
        """Send the unconfirmed messages over a new connection."""
        deadline = min(time.monotonic() + self._timeouts.reconnect, self.give_up_at)
        while True:
            self.link.connection.close()
            if error.permanent or time.monotonic() > deadline:
                self._count(unknown=len(self._waiting))  # the stream may have stored them or not
                self._waiting.clear()
                raise error
            self._outage.failed(error)
            time.sleep(_PAUSE)
            try:
                connection = self.link.replace()
                self._number = connection.declare_publisher(self.stream, self.name)
                if self.name is not None:  # a stream that was created again has fewer
                    had = connection.query_publisher_sequence(self.name, self.stream)
                    self._stored = min(self._stored, had)
                self._count(connections=1, resent=len(self._waiting))
                connection.publish(self._number, self._waiting.items(), timeout=self._patience)
            except StreamUnavailable as another:
                error = another
            except BaseException:
                self.link.connection.close()
                raise
            else:
                return

    def _count(self, **more: int) -> None:
        counts = {name: getattr(self._totals, name) + number for name, number in more.items()}
        self._totals = replace(self._totals, **counts)
