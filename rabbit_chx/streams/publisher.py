"""Publish to a stream, with confirms, and exactly once under a name.

    with StreamPublisher("rabbitmq-stream://user:password@host", "events", name="import-7") as publisher:
        publisher.send([b"one", b"two"])

`send` returns when all are confirmed.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Final, Self

from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.streams.connection import StreamConnection
from rabbit_chx.streams.opening import connect
from rabbit_chx.streams.protocol import Refusals, reason
from rabbit_chx.urls import BrokerUrl

_LOT: Final = 1_000
"""Messages that are encoded and sent together."""
_WINDOW: Final = 20_000
"""Messages that may wait for their confirms."""
_PAUSE: Final = 0.1
"""Seconds between two attempts to connect."""
_SHORT: Final = 256
"""A body of fewer bytes has a length of one byte."""


class StreamPublisher:
    """Publishes to one stream, over one connection at a time, in one thread."""

    def __init__(
        self,
        url: str | BrokerUrl,
        stream: str,
        *,
        name: str | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        follow_advertised: bool = False,
        timeout: float = 30.0,
    ) -> None:
        """Connect to the leader of the stream.

        Args:
            url: as for `connect`.
            stream: the name of the stream.
            name: the publisher's name. The broker drops a message whose publishing id is not higher than the last one under this
                name, so that sending messages again stores them once. A stream remembers up to 255 names, those used last.
            tls: as for `connect`.
            credentials: as for `connect`.
            follow_advertised: as for `connect`.
            timeout: seconds for a connection to open, for an answer, and for confirms while none arrives.

        Raises:
            StreamUnavailable: there is no connection, no such stream, or no permission to write.
        """
        self.stream = stream
        self.name = name
        self._timeout = timeout
        self._connect: Callable[[], StreamConnection] = partial(
            connect,
            BrokerUrl.for_streams(url),
            stream=stream,
            leader=True,
            follow_advertised=follow_advertised,
            tls=tls,
            credentials=credentials,
            timeout=timeout,
        )
        self._connection = self._connect()
        self._number = self._declared()
        self._last = self.sequence()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Everything that was sent is confirmed already."""
        self._connection.close()

    def sequence(self) -> int:
        """Return the highest publishing id that the stream remembers of this name; 0 if it knows none, or without a name."""
        if self.name is None:
            return 0
        return self._connection.query_publisher_sequence(self.name, self.stream)

    def send(self, bodies: Iterable[bytes], *, first_id: int | None = None) -> int:
        """Publish bodies in order, and return the last publishing id when all are confirmed.

        If the connection is lost, unconfirmed messages are sent again over another one: under a name they are stored once, otherwise
        maybe twice.

        Args:
            bodies: each becomes a message.
            first_id: the publishing id of the first, the others follow; by default they continue from the last one, which a
                publisher with a name asks the broker for.

        Raises:
            StreamUnavailable: the broker refused messages, or there is no connection within the timeout.
        """
        return self.send_messages(map(_message, bodies), first_id=first_id)

    def send_messages(self, messages: Iterable[bytes], *, first_id: int | None = None) -> int:
        """Publish messages as `send` does. Each is stored as it is, so it must be an encoded AMQP 1.0 message."""
        if first_id is not None and first_id < 1:
            raise InvalidValue("first publishing id", first_id, "an integer from 1 on")
        number = self._last + 1 if first_id is None else first_id
        waiting: dict[int, bytes] = {}
        rest = iter(messages)
        while lot := list(islice(rest, _LOT)):
            entries = dict(enumerate(lot, number))
            number += len(lot)
            # also if it fails: an id that the broker may know must not be given to another message
            self._last = max(self._last, number - 1)
            waiting |= entries
            self._publish(entries, waiting)
            self._settle(waiting, _WINDOW)
        self._settle(waiting, 0)
        return number - 1

    def _declared(self) -> int:
        try:
            return self._connection.declare_publisher(self.stream, self.name)
        except BaseException:
            self._connection.close()
            raise

    def _publish(self, entries: dict[int, bytes], waiting: dict[int, bytes]) -> None:
        try:
            self._connection.publish(self._number, entries.items())
        except StreamUnavailable as error:
            self._resume(error, waiting)

    def _settle(self, waiting: dict[int, bytes], most: int) -> None:
        """Wait until at most so many messages are unconfirmed."""
        while len(waiting) > most:
            try:
                self._take_outcomes(waiting, most)
            except StreamUnavailable as error:
                self._resume(error, waiting)

    def _take_outcomes(self, waiting: dict[int, bytes], most: int) -> None:
        for outcome in self._connection.confirms(self._timeout):
            if isinstance(outcome, Refusals):
                raise self._refused(outcome)
            for number in outcome.publishing_ids:
                waiting.pop(number, None)
            if len(waiting) <= most:
                return
        raise StreamUnavailable(
            f"the broker confirmed nothing for {self._timeout:g} seconds: a memory or disk alarm, or no majority of replicas",
            "refused",
            self.stream,
        )

    def _refused(self, outcome: Refusals) -> StreamUnavailable:
        number, code = next(iter(outcome.codes.items()))
        problem, text = reason(code)
        if text == "the publisher does not exist":  # the broker removes publishers of a stream that moves
            problem = "not available"
        return StreamUnavailable(
            f"the broker refused message {number} for stream {self.stream!r}: {text}", problem, self.stream
        )

    def _resume(self, error: StreamUnavailable, waiting: dict[int, bytes]) -> None:
        """Send what is not confirmed over another connection."""
        deadline = time.monotonic() + self._timeout
        while True:
            self._connection.close()
            if error.permanent or time.monotonic() > deadline:
                raise error
            time.sleep(_PAUSE)
            try:
                self._connection = self._connect()
                self._number = self._declared()
                self._connection.publish(self._number, waiting.items())
            except StreamUnavailable as another:
                error = another
            else:
                return


def _message(body: bytes) -> bytes:
    """An AMQP 1.0 message with one data section."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidValue("message body", body, "bytes")
    size = len(body)
    head = b"\0Su\xa0%c" % size if size < _SHORT else b"\0Su\xb0" + size.to_bytes(4, "big")
    return head + body
