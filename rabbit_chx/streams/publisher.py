"""Publish to a stream with confirms. With a publisher name, the stream stores each message exactly once.

    with StreamPublisher("rabbitmq-stream://user:password@host", "events", name="import-7") as publisher:
        publisher.send([b"one", b"two"])

`send` returns when the broker has confirmed all messages.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, Self

from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.publishing.messages import Totals
from rabbit_chx.streams.connection import StreamConnection
from rabbit_chx.streams.encoding import max_message
from rabbit_chx.streams.message_encoding import data_section
from rabbit_chx.streams.opening import connect
from rabbit_chx.streams.protocol import Refusals, reason
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
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        follow_advertised: bool = False,
        connection_name: str = "rabbit-chx",
        timeout: float = 10.0,
        reconnect: float = 120.0,
        confirm: float = 120.0,
    ) -> None:
        """Connect to the leader of the stream.

        Args:
            url: as for `connect`.
            stream: the name of the stream.
            name: the publisher's name. The broker drops a message whose publishing id is not higher than the last one under this
                name, so a message that is sent again is stored once. A stream remembers the 255 names used most recently.
            tls: as for `connect`.
            credentials: as for `connect`.
            follow_advertised: as for `connect`.
            connection_name: the connection's name in the broker's list.
            timeout: seconds for opening a connection, and for an answer.
            reconnect: seconds to keep reconnecting.
            confirm: seconds in which the broker must receive and confirm something.

        Raises:
            StreamUnavailable: the connection did not open, the stream does not exist, or the user has no write permission.
        """
        self.stream = stream
        self.name = name
        self._reconnect = reconnect
        self._confirm = confirm
        self._connect: Callable[[], StreamConnection] = partial(
            connect,
            url,
            stream=stream,
            leader=True,
            follow_advertised=follow_advertised,
            tls=tls,
            credentials=credentials,
            name=connection_name,
            timeout=timeout,
        )
        self._waiting: dict[int, bytes] = {}
        self._totals = Totals(connections=1)
        self._connection = self._connect()
        try:
            self._number = self._connection.declare_publisher(stream, name)
            self._last = self.sequence()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. `send` does not return before its messages are confirmed, so no confirms are lost."""
        self._connection.close()

    def sequence(self) -> int:
        """Return the highest publishing id that the stream remembers for this name; 0 if the stream remembers none, or without a name."""
        if self.name is None:
            return 0
        try:
            return self._connection.query_publisher_sequence(self.name, self.stream)
        except StreamUnavailable as error:
            self._resume(error)  # the broker closes a connection that was idle for minutes
        return self._connection.query_publisher_sequence(self.name, self.stream)

    @property
    def totals(self) -> Totals:
        """The number of messages so far, by outcome."""
        return replace(self._totals, pending=len(self._waiting))

    @property
    def max_message_bytes(self) -> int | None:
        """The agreed maximum size of an encoded message; None for no limit."""
        return max_message(self._connection.frame_max) if self._connection.frame_max else None

    def send(self, bodies: Iterable[bytes], *, first_id: int | None = None) -> int:
        """Publish bodies in order, wait for their confirms, and return the last publishing id.

        If the connection is lost, the publisher sends the unconfirmed messages again over a new connection. With a name, the stream
        stores each message once; without a name, it may store some twice.

        Args:
            bodies: the bodies of the messages.
            first_id: the publishing id of the first message; the ids of the others follow. By default, ids continue after the
                last id; with a name, also after the last id of earlier publishers.

        Raises:
            StreamUnavailable: the broker refused messages, or did not confirm any, or no connection opened in time.
        """
        return self.send_messages(map(data_section, bodies), first_id=first_id)

    def send_messages(self, messages: Iterable[bytes], *, first_id: int | None = None) -> int:
        """Publish encoded AMQP 1.0 messages as `send` does. The broker stores the bytes unchanged: see `encode_messages`."""
        if first_id is not None and first_id < 1:
            raise InvalidValue("first publishing id", first_id, "an integer from 1 on")
        first = self._last + 1 if first_id is None else first_id
        sent = self._totals.published
        self.publish(enumerate(messages, first))
        self.flush()
        return first - 1 + self._totals.published - sent

    def publish(self, messages: Iterable[tuple[int, bytes]]) -> None:
        """Publish encoded messages, each with its publishing id. `flush` waits for the last confirms.

        Args:
            messages: pairs of an increasing publishing id and a message. With a name, the broker drops a message
                whose id is not higher than the last id under this name.

        Raises:
            StreamUnavailable: as for `send`.
        """
        rest = iter(messages)
        while lot := list(islice(rest, _LOT)):
            entries = dict(lot)
            if len(entries) < len(lot):
                raise InvalidValue("publishing ids", "one id for several messages", "increasing ids")
            # Before publishing: if that fails, the broker may have these ids, so other messages must not reuse them.
            self._last = max(self._last, *entries)
            self._waiting |= entries
            self._count(published=len(entries), bytes=sum(map(len, entries.values())))
            try:
                self._connection.publish(self._number, entries.items(), timeout=self._confirm)
            except StreamUnavailable as error:
                self._resume(error)
            self._settle(_WINDOW)

    def flush(self) -> None:
        """Wait until all messages are confirmed.

        Raises:
            StreamUnavailable: as for `send`.
        """
        self._settle(0)

    def _settle(self, most: int) -> None:
        """Wait until at most ``most`` messages are unconfirmed."""
        while len(self._waiting) > most:
            try:
                self._take_outcomes(most)
            except StreamUnavailable as error:
                self._resume(error)

    def _take_outcomes(self, most: int) -> None:
        for outcome in self._connection.confirms(self._confirm):
            if isinstance(outcome, Refusals):
                error = self._refused(outcome)
                if error.permanent:
                    self._count(rejected=sum(number in self._waiting for number in outcome.codes))
                    for number in outcome.codes:
                        self._waiting.pop(number, None)
                raise error
            before = len(self._waiting)
            for number in outcome.publishing_ids:
                self._waiting.pop(number, None)
            self._count(confirmed=before - len(self._waiting))
            if len(self._waiting) <= most:
                return
        raise StreamUnavailable(
            f"no confirm from the broker for {self._confirm:g} seconds: a memory or disk alarm, or no majority of replicas",
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
        deadline = time.monotonic() + self._reconnect
        while True:
            self._connection.close()
            if error.permanent or time.monotonic() > deadline:
                self._give_up()
                raise error
            time.sleep(_PAUSE)
            try:
                self._connection = self._connect()
                self._number = self._connection.declare_publisher(self.stream, self.name)
                self._count(connections=1, resent=len(self._waiting))
                self._connection.publish(self._number, self._waiting.items(), timeout=self._confirm)
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
