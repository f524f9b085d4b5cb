"""Publish to a stream with confirms. With a publisher name, the stream stores each message exactly once.

    with StreamPublisher("rabbitmq-stream://user:password@host", stream="events", name="import-7") as publisher:
        publisher.publish(b"one")
        publisher.publish_many([b"two", b"three"])

Both return when the broker has confirmed all messages.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from typing import Final, Self, Unpack

from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.message_fields import Headers, Properties, PropertyColumns
from rabbit_chx.publishing.messages import Totals
from rabbit_chx.streams.link import Link
from rabbit_chx.streams.messages.encode import encode_messages
from rabbit_chx.streams.protocol.answers import Refusals, reason
from rabbit_chx.streams.protocol.opening import connect
from rabbit_chx.streams.protocol.requests import max_message
from rabbit_chx.timeouts import DEFAULTS, HEARTBEAT_OF_CALLER, Timeouts
from rabbit_chx.urls import BrokerUrl

_LOT: Final = 1_000
"""Number of messages that are encoded and sent together."""
_WINDOW: Final = 20_000
"""Maximum number of unconfirmed messages."""
_PAUSE: Final = 0.1
"""Seconds between two attempts to connect."""


class StreamPublisher:
    """Publishes to one stream, over one connection at a time, in one thread."""

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        stream: str,
        *,
        name: str | None = None,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        follow_advertised: bool = False,
        connection_name: str = "rabbit-chx stream publisher",
        heartbeat: int = HEARTBEAT_OF_CALLER,
        timeouts: Timeouts = DEFAULTS,
    ) -> None:
        """Prepare a publisher; `open`, or a ``with`` block, connects.

        Args:
            url: as for `connect`.
            stream: the name of the stream.
            name: the publisher's name. The broker drops a message whose publishing id is not higher than the last one under this
                name, so a message that is sent again is stored once. A stream remembers the 255 names used most recently.
            credentials: as for `connect`.
            tls: as for `connect`.
            follow_advertised: as for `connect`.
            connection_name: as for `connect`.
            heartbeat: as for `connect`.
            timeouts: ``connect`` for opening a connection, and for an answer; ``reconnect`` until a lost connection is replaced;
                ``confirm`` while the broker receives or confirms nothing; ``close`` for the confirms that are missing at the end.
        """
        self.stream = stream
        self.name = name
        self._timeouts = timeouts.honoured_by("StreamPublisher", "connect", "reconnect", "confirm", "close")
        opening = partial(
            connect,
            url,
            stream=stream,
            leader=True,
            follow_advertised=follow_advertised,
            credentials=credentials,
            tls=tls,
            connection_name=connection_name,
            heartbeat=heartbeat,
            timeout=timeouts.connect,
        )
        self._link = Link("StreamPublisher", opening)
        self._number = 0
        self._stored = self._sent = 0
        """The last publishing id that the stream had for this name before the unconfirmed messages, and the last id sent since `open`."""
        self._waiting: dict[int, bytes] = {}
        self._totals = Totals()
        self._give_up_at = math.inf

    # -- opening and closing

    def open(self) -> None:
        """Connect to the leader of the stream.

        Raises:
            StreamUnavailable: the connection did not open, the stream does not exist, or the user has no write permission.
        """
        if not self._link.open():
            return
        self._waiting, self._totals, self._give_up_at = {}, Totals(connections=1), math.inf
        self._sent = 0
        try:
            self._number = self._link.connection.declare_publisher(self.stream, self.name)
            self._stored = self.sequence()
        except BaseException:
            self._link.close()
            raise

    def close(self, timeout: float | None = None) -> None:
        """Wait for missing confirms, and close the connection.

        Args:
            timeout: the maximum number of seconds to wait, by default ``timeouts.close``.

        Raises:
            StreamUnavailable: messages of `add_encoded` are not confirmed by then.
        """
        if not self._link.is_open:
            return
        self._give_up_at = time.monotonic() + (self._timeouts.close if timeout is None else timeout)
        try:
            self._settle(0)
        finally:
            self._link.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.close()
        except StreamUnavailable as failed:
            if error is None:
                raise
            error.add_note(str(failed))

    def sequence(self) -> int:
        """Return the highest publishing id that the stream remembers for this name; 0 if the stream remembers none, or without a name."""
        connection = self._link.connection
        if self.name is None:
            return 0
        try:
            return connection.query_publisher_sequence(self.name, self.stream)
        except StreamUnavailable as error:
            self._resume(error)  # the broker closes a connection that was idle for minutes
        return self._link.connection.query_publisher_sequence(self.name, self.stream)

    @property
    def totals(self) -> Totals:
        """The number of messages since `open`, by outcome."""
        return replace(self._totals, pending=len(self._waiting))

    @property
    def max_message_bytes(self) -> int | None:
        """The agreed maximum size of an encoded message; None for no limit."""
        frame_max = self._link.connection.frame_max
        return max_message(frame_max) if frame_max else None

    # -- publishing

    def publish(
        self,
        body: bytes,
        routing_key: str | bytes | None = None,
        *,
        headers: Headers | None = None,
        publishing_id: int | None = None,
        **properties: Unpack[Properties],
    ) -> int:
        """Publish a message, wait until the broker has confirmed it, and return its publishing id. See `publish_many`."""
        return self.publish_many([body], routing_key, headers=headers, first_id=publishing_id, **properties)

    def publish_many(
        self,
        bodies: Iterable[bytes],
        routing_keys: str | bytes | Iterable[str | bytes | None] | None = None,
        *,
        headers: Headers | Iterable[Headers | None] | None = None,
        first_id: int | None = None,
        **properties: Unpack[PropertyColumns],
    ) -> int:
        """Publish messages in order, wait until the broker has confirmed all, and return the last publishing id.

        If the connection is lost, the publisher sends the unconfirmed messages again over a new connection. With a name, the stream
        stores each message once; without a name, it may store some twice.

        Args:
            bodies: the bodies of the messages.
            routing_keys: one value for all messages, or a value for each message.
            headers: likewise.
            first_id: the publishing id of the first message; the ids of the others follow. By default, ids continue after the
                last id; with a name, also after the last id of earlier publishers.
            properties: as for `encode_messages`.

        Raises:
            StreamUnavailable: the broker refused messages, or did not confirm any, or no connection opened in time.
        """
        encoded = encode_messages(bodies, routing_keys=routing_keys, headers=headers, **properties)
        return self.publish_encoded(encoded, first_id=first_id)

    def publish_encoded(self, messages: Iterable[bytes], *, first_id: int | None = None) -> int:
        """Publish encoded AMQP 1.0 messages as `publish_many` does. The broker stores the bytes unchanged: see `encode_messages`."""
        if first_id is not None and first_id < 1:
            raise InvalidValue("first publishing id", first_id, "an integer from 1 on")
        first = max(self._stored, self._sent) + 1 if first_id is None else first_id
        sent = self._totals.published
        self.add_encoded(enumerate(messages, first))
        self.flush()
        return first - 1 + self._totals.published - sent

    def add_encoded(self, messages: Iterable[tuple[int, bytes]]) -> None:
        """Send encoded messages, each with its publishing id. `flush` waits for the last confirms.

        Args:
            messages: pairs of an increasing publishing id and a message. With a name, the broker drops a message
                whose id is not higher than the last id under this name; `totals` counts it as confirmed and in ``duplicates``.

        Raises:
            StreamUnavailable: as for `publish_many`.
        """
        connection = self._link.connection
        rest = iter(messages)
        while lot := list(islice(rest, _LOT)):
            entries = dict(lot)
            if len(entries) < len(lot) or any(after < before for before, after in pairwise(entries)):
                raise InvalidValue("publishing ids", _shown(number for number, _ in lot), "increasing ids")
            self._begin(next(iter(entries)), lot[-1][0])
            self._waiting |= entries
            self._count(published=len(entries), bytes=sum(map(len, entries.values())))
            try:
                connection.publish(self._number, entries.items(), timeout=self._timeouts.confirm)
            except StreamUnavailable as error:
                self._resume(error)
            self._settle(_WINDOW)
            connection = self._link.connection

    def _begin(self, first: int, last: int) -> None:
        """Note that messages with these ids are sent. Ids that were sent before wait until it is known what the stream has of them."""
        if first <= self._sent:
            self._settle(0)
            self._stored = self.sequence()
        # Before publishing: if that fails, the broker may have these ids, so other messages must not reuse them.
        self._sent = max(self._sent, last)

    def flush(self) -> None:
        """Wait until all messages are confirmed.

        Raises:
            StreamUnavailable: as for `publish_many`.
        """
        self._link.connection  # noqa: B018 - raises if the caller must not use it
        self._settle(0)

    def _settle(self, most: int) -> None:
        """Wait until at most ``most`` messages are unconfirmed."""
        while len(self._waiting) > most:
            try:
                self._take_outcomes(most)
            except StreamUnavailable as error:
                self._resume(error)

    def _take_outcomes(self, most: int) -> None:
        patience = min(self._timeouts.confirm, max(self._give_up_at - time.monotonic(), 0))
        for outcome in self._link.connection.confirms(patience):
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
            if time.monotonic() > self._give_up_at:
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
        deadline = min(time.monotonic() + self._timeouts.reconnect, self._give_up_at)
        while True:
            self._link.connection.close()
            if error.permanent or time.monotonic() > deadline:
                self._give_up()
                raise error
            time.sleep(_PAUSE)
            try:
                connection = self._link.replace()
                self._number = connection.declare_publisher(self.stream, self.name)
                self._count(connections=1, resent=len(self._waiting))
                connection.publish(self._number, self._waiting.items(), timeout=self._timeouts.confirm)
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


def _shown(numbers: Iterable[int]) -> str:
    """The first ids that do not increase."""
    return next(f"{after} after {before}" for before, after in pairwise(numbers) if after <= before)
