"""Publish to streams with confirms. With a publisher name, a stream stores each message exactly once.

    with StreamPublisher("rabbitmq-stream://user:password@host", stream="events", name="import-7") as publisher:
        publisher.publish(b"one")
        publisher.publish_many([b"two", b"three"])

Both return when the broker has confirmed all messages, or raise `PublishFailed`. With ``super_stream=`` or ``exchange=`` instead of ``stream=``, the routing key of
each message selects its stream.
"""

from __future__ import annotations

import atexit
import math
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Final, Self, Unpack

from rabbit_chx.base.limits import check_seconds
from rabbit_chx.base.names import check_name
from rabbit_chx.base.text import counted
from rabbit_chx.base.timeouts import DEFAULTS, HEARTBEAT_OF_CALLER, Timeouts, deadline_of
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.client import checked_urls
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.errors import InvalidValue, PublishFailed, StreamUnavailable
from rabbit_chx.messages.message_fields import Headers, Properties, PropertyColumns
from rabbit_chx.publishing.batch_columns import column, values
from rabbit_chx.publishing.messages import Totals
from rabbit_chx.publishing.receipts import publish_failed
from rabbit_chx.streams.messages.encode import encode_messages
from rabbit_chx.streams.outlet import HIGHEST_ID, Outlet, checked_id, checked_lot, log
from rabbit_chx.streams.partitions import Partitions, key_texts, of_exchange, of_super_stream
from rabbit_chx.streams.protocol.opening import Link, connect_until
from rabbit_chx.streams.protocol.requests import check_sizes, max_message
from rabbit_chx.streams.sending import LOT, failures_of, lots_by_stream, lots_of, send, total, totals_of

_LOOK: Final = 10.0
"""Seconds between two checks for new partitions."""
_CLOSING: Final = 2.0
"""Seconds to close the connection to a stream that was removed."""


class StreamPublisher:
    """Publishes to one stream, or by routing key to several, over one connection to each, in one thread."""

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        stream: str | None = None,
        *,
        super_stream: str | None = None,
        exchange: str | None = None,
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
            stream: the name of the stream. Exactly one of ``stream``, ``super_stream`` and ``exchange`` is required.
            super_stream: the name of a super stream; its partition follows from the key as in the clients of RabbitMQ.
            exchange: the name of a consistent-hash exchange that hashes the routing key, bound to streams only; a message goes
                to the stream to which the exchange would route it.
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
        _check_one(stream=stream, super_stream=super_stream, exchange=exchange)
        urls = checked_urls(
            *("StreamPublisher", url, timeouts, heartbeat, credentials, tls, connection_name),
            honoured=["connect", "reconnect", "confirm", "close"],
            streams=True,
        )
        self.stream = stream
        self.name = name
        self._timeouts = timeouts
        self._connect = partial(
            connect_until,
            url=urls,
            credentials=credentials,
            tls=tls,
            connection_name=connection_name,
            heartbeat=heartbeat,
            timeout=timeouts.connect,
        )
        self._to_leader = partial(self._connect, leader=True, follow_advertised=follow_advertised)
        self._source = super_stream or exchange or ""
        self._find = of_exchange if super_stream is None else of_super_stream
        self._partitions: Partitions | None = None
        self._look_at = self._give_up_at = math.inf
        self._outlets: dict[str, Outlet] = {} if stream is None else {stream: self._outlet(stream)}
        self._former: list[Outlet] = []
        self._link = Link("StreamPublisher", self._connect) if stream is None else self._outlets[stream].link
        """The connection to the stream, or the one that knows the partitions. It also guards threads and forks."""

    def _outlet(self, stream: str) -> Outlet:
        outlet = Outlet(stream, self.name, partial(self._to_leader, stream=stream), self._timeouts)
        outlet.begin(self._give_up_at)
        return outlet

    # -- opening and closing

    def open(self) -> None:
        """Connect to the leader of each stream.

        Raises:
            StreamUnavailable: the connection did not open, the stream does not exist, or the user has no write permission.
        """
        if self._link.is_open:
            self._link.connection  # noqa: B018 - raises if the caller must not use it
            return
        if self.stream is not None:
            outlet = self._outlet(self.stream)
            self._outlets, self._link = {self.stream: outlet}, outlet.link
            outlet.open()
        else:
            self._link.open()
            self._outlets, self._former = {}, []
            try:
                self._use(self._find(self._link.connection, self._source))
                for outlet in self._outlets.values():
                    outlet.open()
            except BaseException:
                self._close_all(time.monotonic() + _CLOSING)
                raise
        atexit.register(self._at_exit)

    def close(self, timeout: float | None = None) -> None:
        """Wait for missing confirms, and close the connection.

        Args:
            timeout: the maximum number of seconds to wait, by default ``timeouts.close``.

        Raises:
            StreamUnavailable: messages of `add_encoded` are not confirmed by then.
        """
        if not self._link.is_open:
            return
        self._link.connection  # noqa: B018 - raises if the caller must not use it
        seconds = self._timeouts.close if timeout is None else check_seconds("timeout", timeout)
        self._close_all(time.monotonic() + seconds)

    def _at_exit(self) -> None:
        """Give an open publisher of a program that ends its time, and say what had none."""
        if not self._link.is_open:
            return
        before = self.totals.unknown
        with suppress(StreamUnavailable, InvalidValue):  # without confirms, or open in another thread
            self.close()
        if lost := self.totals.unknown - before + self.totals.pending:
            log.error("the program ends while %s messages of an open publisher have no outcome", lost)

    def _close_all(self, deadline: float) -> None:
        """Close each connection, even if another one raises an error."""
        atexit.unregister(self._at_exit)
        self._link.give_up_at(deadline)
        with ExitStack() as stack:
            stack.callback(self._link.close)
            for outlet in self._outlets.values():
                stack.callback(outlet.close, deadline)

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
        """Return the highest publishing id that the stream remembers for this name; 0 if the stream remembers none, or without a name.

        Of several streams, return the lowest of these ids: they have all messages up to it.
        """
        self._link.connection  # noqa: B018 - raises if the caller must not use it
        return min(outlet.sequence() for outlet in self._outlets.values())

    @property
    def totals(self) -> Totals:
        """The number of messages since `open`, by outcome, in all streams."""
        return total([outlet.totals for outlet in (*self._former, *self._outlets.values())])

    @property
    def max_message_bytes(self) -> int | None:
        """The agreed maximum size of an encoded message; None for no limit."""
        return max_message(self._link.connection.frame_max)

    # -- publishing

    def publish(
        self,
        body: bytes | str,
        routing_key: str | bytes | None = None,
        *,
        headers: Headers | None = None,
        publishing_id: int | None = None,
        timeout: float | None = None,
        **properties: Unpack[Properties],
    ) -> None:
        """Publish a message, and return when the broker has confirmed it. See `publish_many`."""
        try:
            self.publish_many(
                [body], routing_key, headers=headers, first_id=publishing_id, timeout=timeout, **properties
            )
        except PublishFailed as failed:
            raise publish_failed(failed.failure) from failed.__cause__

    def publish_many(
        self,
        bodies: Iterable[bytes | str],
        routing_keys: str | bytes | Iterable[str | bytes | None] | None = None,
        *,
        headers: Headers | Iterable[Headers | None] | None = None,
        first_id: int | None = None,
        timeout: float | None = None,
        **properties: Unpack[PropertyColumns],
    ) -> Totals:
        """Publish messages in order, wait until the broker has confirmed all, and return the totals of this call.

        If the connection is lost, the publisher sends the unconfirmed messages again over a new connection. With a name, the stream
        stores each message once; without a name, it may store some twice.

        The messages of a super stream or an exchange go to several streams, each with the next publishing id of all. The publisher
        notices added and removed streams within ten seconds, waits for the confirms of earlier messages, and routes by the new
        streams. Then most of their keys belong to another stream than before.

        Args:
            bodies: the bodies of the messages.
            routing_keys: one value for all messages, or an iterable with one for each, which several streams require.
            headers: likewise.
            first_id: the publishing id of the first message, at least 1; the others follow, below 2^64. By default, ids continue after the
                last id; with a name, also after the last id of earlier publishers.
            timeout: after how many seconds to give up, whatever the call waits for: a connection, a partition that is new, a confirm.
            properties: as for `encode_messages`.

        Raises:
            PublishFailed: some messages were not confirmed. ``failures`` has each of their rows, and says of each whether the stream may
                have it all the same. The other streams of a super stream or an exchange have theirs.
            StreamUnavailable: nothing was published: a message does not fit into a frame, or the exchange does not exist.
        """
        rows = list(values(bodies))
        keys = column(routing_keys, len(rows), "routing key")
        encoded = encode_messages(rows, routing_keys=keys, headers=headers, **properties)
        messages = rows if self.stream is not None else list(encoded)  # a message is larger than its body
        check_sizes(messages, self._link.connection.frame_max)
        each = keys if isinstance(keys, list) else [keys] * len(rows)
        texts = None if self.stream is not None else key_texts(each)
        with self._within(timeout):
            streams = None if texts is None else self._current().of(texts)
            first, before = self._first(first_id, len(rows)), self.totals
            if streams is None:
                lots = lots_of(self.stream or "", encoded, first)
            else:
                lots = lots_by_stream(streams, messages, first)
            error = send(self._outlets, lots)
            failures = failures_of(self._outlets, first, each)
        totals = totals_of(len(rows), failures, before, self.totals)
        if failures:
            text = f"{len(failures)} of {len(rows)} messages were not confirmed; the first: {failures[0]}"
            raise PublishFailed(text, totals, failures) from error
        if error is not None:  # about messages of `add_encoded`
            raise error
        return totals

    @contextmanager
    def _within(self, timeout: float | None) -> Iterator[None]:
        """Give up what is not confirmed after some seconds."""
        self._link.connection  # noqa: B018 - raises if the caller must not use it
        deadline = deadline_of(timeout)
        self._begin(math.inf if deadline is None else deadline)
        try:
            yield
        finally:
            self._begin(math.inf)

    def _begin(self, give_up_at: float) -> None:
        self._give_up_at = give_up_at
        for outlet in self._outlets.values():
            outlet.begin(give_up_at)

    def _first(self, first_id: int | None, count: int) -> int:
        """Return the publishing id of the first of so many messages."""
        if first_id is None:
            first_id = max(outlet.last for outlet in self._outlets.values()) + 1
        return checked_id("first publishing id", first_id, HIGHEST_ID + 1 - max(count, 1))

    def publish_encoded(
        self, messages: Iterable[bytes], *, first_id: int | None = None, timeout: float | None = None
    ) -> int:
        """Publish encoded AMQP 1.0 messages as `publish_many` does. The broker stores the bytes unchanged: see `encode_messages`."""
        with self._within(timeout):
            first = self._first(first_id, length_hint(messages, 1))
            sent = self.totals.published
            self._add(enumerate(messages, first))
            self._settle()
        return first - 1 + self.totals.published - sent

    def add_encoded(self, messages: Iterable[tuple[int, bytes]], *, timeout: float | None = None) -> None:
        """Send encoded messages, each with its publishing id. `flush` waits for the last confirms.

        Args:
            messages: pairs of an increasing publishing id, from 1 to 2^64 - 1, and a message. With a name, the broker drops a message
                whose id is not higher than the last id under this name; `totals` counts it as confirmed and in ``duplicates``.
            timeout: as for `publish_many`.

        Raises:
            StreamUnavailable: the broker refused messages, or did not confirm any, or no connection opened in time.
        """
        with self._within(timeout):
            self._add(messages)

    def _add(self, messages: Iterable[tuple[int, bytes]]) -> None:
        if self.stream is None:
            hint = "publish and publish_many take the routing keys by which messages are divided"
            raise InvalidValue(
                "use of StreamPublisher", "encoded messages for several streams", "stream=", hint
            )
        rest = iter(messages)
        while lot := list(islice(rest, LOT)):
            self._outlets[self.stream].send(checked_lot(lot))

    def _current(self) -> Partitions:
        """Return the partitions, checked from time to time."""
        assert self._partitions is not None
        if time.monotonic() >= self._look_at:
            now = time.monotonic()
            self._look_at = now + _LOOK
            self._link.give_up_at(now + (self._give_up_at - now) / 2)  # the messages need the rest
            try:
                self._look(self._partitions)
            except StreamUnavailable as error:  # no node may be there at the moment; the messages tell
                if error.permanent:
                    raise
            finally:
                self._link.give_up_at(math.inf)
        return self._partitions

    def _look(self, known: Partitions) -> None:
        connection = self._link.connection
        try:
            held = known.holds(connection, self._source)
        except StreamUnavailable as error:
            if error.permanent:
                raise
            connection = self._link.replace()  # the broker closes a connection that was idle for minutes
            held = known.holds(connection, self._source)
        if not held:
            self._use(self._find(connection, self._source))

    def _use(self, partitions: Partitions) -> None:
        """Publish to these partitions from now on, after the confirms of earlier messages, so that keys that move stay in order."""
        self._settle()
        for stream in partitions.streams:
            self._outlets[stream] = self._outlets.get(stream) or self._outlet(stream)
        for stream in self._outlets.keys() - set(partitions.streams):
            self._outlets[stream].close(min(time.monotonic() + _CLOSING, self._give_up_at))
            self._former.append(self._outlets.pop(stream))
        self._partitions, self._look_at = partitions, time.monotonic() + _LOOK

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all messages are confirmed; ``timeout`` and errors are those of `add_encoded`."""
        with self._within(timeout):
            self._settle()

    def _settle(self) -> None:
        for outlet in self._outlets.values():
            outlet.settle()


def _check_one(**given: str | None) -> None:
    named = {what: name for what, name in given.items() if name is not None}
    for what, name in named.items():
        check_name(what.replace("_", " "), name)
    if len(named) != 1:
        raise InvalidValue(
            "target of StreamPublisher",
            counted(len(named), "name"),
            "exactly one of stream, super_stream and exchange",
        )
