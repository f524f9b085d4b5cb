"""Send encoded messages to one stream, and send them again over a new connection until the broker has confirmed them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.publishing.messages import Totals
from rabbit_chx.streams.link import Link
from rabbit_chx.streams.protocol.answers import Refusals, reason
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.timeouts import Timeouts

_WINDOW: Final = 20_000
"""Maximum number of unconfirmed messages."""
_PAUSE: Final = 0.1
"""Seconds between two attempts to connect."""


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
        self._number = 0
        self._stored = self._sent = 0
        """The last publishing id that the stream had for this name before the unconfirmed messages, and the last id sent since `open`."""
        self._waiting: dict[int, bytes] = {}
        self._totals = Totals()
        self.give_up_at: float = math.inf
        """When it gives up what is not confirmed, on the monotonic clock."""

    def open(self) -> None:
        """Connect to the leader of the stream."""
        if not self.link.open():
            return
        self._waiting, self._totals, self.give_up_at = {}, Totals(connections=1), math.inf
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
        self._begin(next(iter(entries)), next(reversed(entries)))
        self._waiting |= entries
        self._count(published=len(entries), bytes=sum(map(len, entries.values())))
        try:
            self.link.connection.publish(self._number, entries.items(), timeout=self._patience)
        except StreamUnavailable as error:
            self._resume(error)
        self.settle(_WINDOW)

    def _begin(self, first: int, last: int) -> None:
        """Note that messages with these ids are sent. Ids that were sent before wait until it is known what the stream has of them."""
        if first <= self._sent:
            self.settle()
            self._stored = self.sequence()
        # Before publishing: if that fails, the broker may have these ids, so other messages must not reuse them.
        self._sent = max(self._sent, last)

    def settle(self, most: int = 0) -> None:
        """Wait until at most ``most`` messages are unconfirmed."""
        while len(self._waiting) > most:
            try:
                self._take_outcomes(most)
            except StreamUnavailable as error:
                self._resume(error)

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
                self._give_up()
                raise error
            time.sleep(_PAUSE)
            try:
                connection = self.link.replace()
                self._number = connection.declare_publisher(self.stream, self.name)
                self._count(connections=1, resent=len(self._waiting))
                connection.publish(self._number, self._waiting.items(), timeout=self._patience)
            except StreamUnavailable as another:
                error = another
            else:
                return

    def _give_up(self) -> None:
        """Count the unconfirmed messages: the stream may have stored them or not."""
        self._count(unknown=len(self._waiting))
        self._waiting.clear()

    def _count(self, **more: int) -> None:
        counts = {name: getattr(self._totals, name) + number for name, number in more.items()}
        self._totals = replace(self._totals, **counts)
