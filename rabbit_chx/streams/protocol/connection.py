"""One connection of the stream protocol, for one thread: requests and answers, deliveries and confirms.

    with connect("rabbitmq-stream://user:password@host/vhost") as connection:
        connection.create("events")
        connection.stats("events")

`StreamConnection` does not reconnect; `StreamReader` and `StreamPublisher` do.
"""

from __future__ import annotations

import math
import ssl
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Self, TypeVar

from rabbit_chx.base.limits import as_integer, check_integer
from rabbit_chx.base.timeouts import CONNECT, HEARTBEAT_OF_CALLER
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.mirror.releases import Release
from rabbit_chx.streams.protocol import answers, permissions, requests
from rabbit_chx.streams.protocol.answers import (
    NO_OFFSET,
    OK,
    U8,
    U16,
    U64,
    Command,
    Confirms,
    ConsumerUpdate,
    Delivery,
    Node,
    Refusals,
    StreamMetadata,
    StreamStats,
)
from rabbit_chx.streams.protocol.calls import Calls
from rabbit_chx.streams.protocol.handshake import shake_hands
from rabbit_chx.streams.protocol.requests import MAX_CREDIT, MAX_IDS, OffsetSpec, name
from rabbit_chx.streams.protocol.wire import open_wire

_T = TypeVar("_T")

_CLOSE_SECONDS: Final = 2.0
_NO_MESSAGE: Final = 2**64 - 1
"""-1 as the Java client stores and reads it: the next offset is 0."""
_SINCE: Final[Mapping[Command, str]] = {
    Command.STREAM_STATS: "3.11",
    Command.CREATE_SUPER_STREAM: "3.13",
    Command.DELETE_SUPER_STREAM: "3.13",
}


class StreamConnection:
    """A connection to one node, for one thread; `connect` opens it."""

    def __init__(
        self,
        url: str | BrokerUrl,
        *,
        timeout: float = CONNECT,
        heartbeat: int = HEARTBEAT_OF_CALLER,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        connection_name: str = "rabbit-chx",
        give_up_at: float = math.inf,
    ) -> None:
        """Open the connection; every wait, also a later one, ends at ``give_up_at`` on the monotonic clock."""
        self.url: BrokerUrl = BrokerUrl.for_streams(url)
        self.timeout: float = timeout
        """Seconds to wait for the broker's answer; up to 60 times as long while data arrives before it."""
        wire = open_wire(self.url, tls, timeout, give_up_at)
        self._calls = Calls(wire, timeout, give_up_at)
        self._calls.on_moved = self._drop
        try:
            release, node = shake_hands(self._calls, self.url, credentials, connection_name, heartbeat)
        except BaseException:
            wire.close()
            raise
        self.release: str = release
        """The release of RabbitMQ, such as ``"4.3.6"``."""
        self.node: Node | None = node
        """The address that the node advertises."""
        self._commands: frozenset[int] | None = None
        self._subscriptions: dict[int, str] = {}
        self._last_subscription = -1
        self._publishers: dict[int, str] = {}
        self._moved: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<StreamConnection: {self._calls.wire.where}>"

    @property
    def user(self) -> str | None:
        """The user who logged in; None with a client certificate."""
        return self._calls.user

    def _give_up_at(self, when: float) -> None:
        """From now on, end every wait at a time of the monotonic clock."""
        self._calls.give_up_at = when

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as the client knows."""
        return not self._calls.wire.closed

    @property
    def frame_max(self) -> int:
        """The agreed maximum size of a frame in bytes, which also limits a published message; 0 means no limit."""
        return self._calls.wire.frame_max

    @property
    def heartbeat(self) -> float:
        """The agreed heartbeat interval in seconds; 0 without heartbeats."""
        return self._calls.wire.heartbeat

    @property
    def _heard(self) -> float:
        """When the broker last proved with an answer that it knew the connection, on the monotonic clock."""
        return self._calls.heard

    @property
    def _is_receiving(self) -> bool:
        """Whether a frame has arrived in part, and the last piece within `timeout`."""
        wire = self._calls.wire
        return wire.has_part and time.monotonic() - wire.last_data < self.timeout

    def fileno(self) -> int:
        """Return the descriptor of the socket, to wait for data."""
        return self._calls.wire.fileno()

    @property
    def _has_unread(self) -> bool:
        """Whether received data may be waiting in memory, where polling the socket does not show it. `_events` consumes all of it."""
        return self._calls.unread

    def close(self, reason: str = "OK") -> None:
        """Send the reason to the broker and close the connection. A second call does nothing."""
        if self.is_open:
            with suppress(StreamUnavailable):
                self._calls.call(Command.CLOSE, U16.pack(OK), requests.string(reason), timeout=_CLOSE_SECONDS)
        self._calls.wire.close()

    def _abort(self) -> None:
        """Break the connection, from any thread."""
        self._calls.wire.abort()

    # ---- streams

    def metadata(self, streams: Iterable[str]) -> dict[str, StreamMetadata]:
        """Return the leader and the replicas of each stream; ``exists`` is False for a missing stream."""
        if isinstance(streams, str):  # otherwise each letter would be a name
            raise InvalidValue("streams", streams, "a list of names")
        asked = list(streams)
        return answers.metadata(self._calls.call(Command.METADATA, requests.array(map(name, asked))), asked)

    def partitions(self, super_stream: str, *, access: permissions.Access | None = None) -> list[str]:
        """Return the streams of a super stream in partition order.

        Args:
            super_stream: its name.
            access: explains a refusal; by default to a user who reads the streams.
        """
        encoded = name(super_stream, "super stream name")
        needs = access or permissions.listing(super_stream)
        return self._calls.call(Command.PARTITIONS, encoded, stream=super_stream, access=needs).strings()

    def route(self, super_stream: str, key: str, *, access: permissions.Access | None = None) -> list[str]:
        """Return the streams of a super stream that are bound with this key; ``access`` as for `partitions`."""
        fields = requests.string(key), name(super_stream, "super stream name")
        needs = access or permissions.routing(super_stream)
        return self._calls.call(Command.ROUTE, *fields, stream=super_stream, access=needs).strings()

    @property
    def has_stats(self) -> bool:
        """Whether the broker supports `stats`."""
        return self._supports(Command.STREAM_STATS)

    def _supports(self, command: Command) -> bool:
        """Whether the broker supports a command that 3.10 lacks. 3.10 also lacks the query, so only later releases get it."""
        if self._commands is None and Release._of_broker(self.release)._lists_stream_commands:
            fields = self._calls.call(Command.EXCHANGE_COMMAND_VERSIONS, requests.command_versions())
            self._commands = answers.commands(fields)
        return command in (self._commands or ())

    def stats(self, stream: str) -> StreamStats:
        """Return where a stream begins and ends; requires RabbitMQ 3.11."""
        self._check_supports(Command.STREAM_STATS)
        needs = permissions.reading(stream)
        fields = self._calls.call(Command.STREAM_STATS, name(stream), stream=stream, access=needs)
        return answers.stats(fields)

    def create(self, stream: str, arguments: Mapping[str, str | int] | None = None) -> None:
        """Create a stream.

        Args:
            stream: its name.
            arguments: such as ``max-length-bytes``, ``max-age`` or ``stream-max-segment-size-bytes``; values are text or integers.
        """
        fields = name(stream), requests.arguments(arguments)
        self._calls.call(Command.CREATE, *fields, stream=stream, access=permissions.changing(stream))

    def delete(self, stream: str) -> None:
        """Delete a stream."""
        self._calls.call(Command.DELETE, name(stream), stream=stream, access=permissions.changing(stream))

    def create_super_stream(
        self,
        super_stream: str,
        partitions: Mapping[str, str],
        arguments: Mapping[str, str | int] | None = None,
    ) -> None:
        """Create a super stream; requires RabbitMQ 3.13.

        Args:
            super_stream: its name.
            partitions: stream name -> binding key, in partition order; the keys are usually ``"0"``, ``"1"`` and so on.
            arguments: for each stream, as in `create`.
        """
        self._check_supports(Command.CREATE_SUPER_STREAM)
        self._calls.call(
            Command.CREATE_SUPER_STREAM,
            name(super_stream, "super stream name"),
            *requests.partitions(partitions),
            requests.arguments(arguments),
            stream=super_stream,
            access=permissions.changing_super_stream(super_stream, partitions),
        )

    def delete_super_stream(self, super_stream: str) -> None:
        """Delete a super stream and its streams; requires RabbitMQ 3.13."""
        self._check_supports(Command.DELETE_SUPER_STREAM)
        encoded = name(super_stream, "super stream name")
        needs = permissions.changing_super_stream(super_stream)
        self._calls.call(Command.DELETE_SUPER_STREAM, encoded, stream=super_stream, access=needs)

    # ---- reading

    def _subscribe(
        self, stream: str, start: OffsetSpec, *, credit: int, properties: Mapping[str, str] | None = None
    ) -> int:
        """Subscribe to a stream and return the number of the subscription.

        The broker may send ``credit`` chunks, at most 65,535, before a call of `_credit` allows more. With
        the property ``single-active-consumer``, `_events` yields the broker's questions, which
        `_answer_update` must answer within a minute.
        """
        # The broker removes the subscriptions of a stream that moves; what is under way for one must not reach another.
        number = _free(self._subscriptions, "subscriptions", self._last_subscription + 1)
        self._last_subscription = number
        fields = (
            U8.pack(number),
            name(stream),
            start.encoded(),
            U16.pack(check_integer("credit", credit, 0, MAX_CREDIT)),
            requests.string_map(properties or {}),
        )
        self._calls.call(Command.SUBSCRIBE, *fields, stream=stream, access=permissions.reading(stream))
        self._subscriptions[number] = stream
        return number

    def _credit(self, subscription: int, chunks: int) -> None:
        self._calls.send(requests.one_way(Command.CREDIT, U8.pack(subscription), U16.pack(chunks)))

    def _chunks(self, timeout: float) -> Iterator[tuple[int, memoryview]]:
        """Yield the chunks of all subscriptions as they arrive, each with the number of its subscription.

        A chunk is a header of 48 bytes and entries, as the stream stores them. The connection does not reuse its memory. The iterator
        ends when nothing has arrived for ``timeout`` seconds; another call continues.

        Raises:
            StreamUnavailable: the connection was lost, or a stream was deleted or moved.
        """
        for found in self._events(timeout):
            if isinstance(found, Delivery):
                yield found.subscription, found.chunk

    def _events(self, timeout: float) -> Iterator[Delivery | ConsumerUpdate]:
        """Yield what arrives for the subscriptions, as `_chunks` does, and the changes of single active consumers."""
        return self._arriving(self._calls.deliveries, timeout)

    def _answer_update(self, update: ConsumerUpdate, start: OffsetSpec | None) -> None:
        """Answer that a consumer is active and starts here, or with None that it is passive."""
        self._calls.send(requests.consumer_update_answer(update.correlation, start))

    def _unsubscribe(self, subscription: int, *, timeout: float | None = None) -> list[memoryview]:
        """End a subscription and return its chunks that `_chunks` has not yielded yet.

        Without a ``timeout``, an answer may take longer while chunks arrive before it.
        """
        stream = self._subscriptions.get(subscription)
        answer = self._calls.answer(Command.UNSUBSCRIBE, U8.pack(subscription), timeout=timeout)
        if stream is not None and subscription not in self._subscriptions:
            raise _gone(stream)  # the broker removed the subscription before it read the request
        if answer.code != OK:
            raise self._calls.refusal(answer, stream)
        self._subscriptions.pop(subscription, None)
        arrived = list(self._calls.deliveries)
        self._calls.deliveries.clear()
        self._calls.deliveries.extend(each for each in arrived if each.subscription != subscription)
        ours = [each for each in arrived if each.subscription == subscription]
        for each in ours:
            if isinstance(each, ConsumerUpdate):  # the broker waits for the answer of one that is gone, too
                self._answer_update(each, OffsetSpec.next() if each.active else None)
        return [each.chunk for each in ours if isinstance(each, Delivery)]

    def store_offset(self, reference: str, stream: str, offset: int) -> None:
        """Store an offset under a name in the stream, or -1 for the place before the first message. The broker does not confirm this."""
        place = as_integer(offset)
        if place is None or not -1 <= place < 2**63:
            raise InvalidValue("offset", offset, "an integer from -1 to 2^63 - 1")
        fields = name(reference, "reference"), name(stream), U64.pack(_NO_MESSAGE if place == -1 else place)
        self._calls.send(requests.one_way(Command.STORE_OFFSET, *fields))

    def query_offset(self, reference: str, stream: str) -> int | None:
        """Return the last offset stored under a name; None without one, and -1 as in `store_offset`."""
        answer = self._calls.answer(Command.QUERY_OFFSET, name(reference, "reference"), name(stream))
        if answer.code == NO_OFFSET:
            return None
        if answer.code != OK:
            raise self._calls.refusal(answer, stream, permissions.reading(stream))
        offset = answer.fields.u64()
        return -1 if offset == _NO_MESSAGE else offset

    # ---- writing

    def _declare_publisher(self, stream: str, publisher: str | None = None) -> int:
        """Prepare to publish and return the number to publish with.

        If the publisher has a name, the broker drops messages whose publishing id is not higher than the last
        one under this name.
        """
        number = _free(self._publishers, "publishers")
        reference = name(publisher, "publisher name") if publisher is not None else requests.string("")
        needs = permissions.publishing(stream, named=publisher is not None)
        fields = U8.pack(number), reference, name(stream)
        self._calls.call(Command.DECLARE_PUBLISHER, *fields, stream=stream, access=needs)
        self._publishers[number] = stream
        return number

    def _delete_publisher(self, publisher: int) -> None:
        """Remove a publisher; its number can be reused."""
        self._calls.call(Command.DELETE_PUBLISHER, U8.pack(publisher), stream=self._publishers.get(publisher))
        self._publishers.pop(publisher, None)

    def query_publisher_sequence(self, publisher: str, stream: str) -> int:
        """Return the highest publishing id that the stream remembers for a publisher; 0 without one."""
        fields = name(publisher, "publisher name"), name(stream)
        needs = permissions.publishing(stream, named=True, missing="read")
        return self._calls.call(Command.QUERY_PUBLISHER_SEQUENCE, *fields, stream=stream, access=needs).u64()

    def _publish(
        self, publisher: int, ids: Iterable[int], messages: Iterable[bytes], *, timeout: float | None = None
    ) -> None:
        """Send messages; `_confirms` yields their confirms. The broker stores these bytes, usually AMQP 1.0.

        It must take each frame in ``timeout`` seconds, by default those for an answer. Under a disk alarm, it
        takes none.

        Raises:
            StreamUnavailable: the connection was lost, or a message exceeds the maximum size of a frame.
        """
        for frame in requests.publish_frames(publisher, ids, messages, self.frame_max):
            self._calls.send(frame, timeout)

    def _confirms(self, timeout: float) -> Iterator[Confirms | Refusals]:
        """Yield confirms and refusals of published messages, until nothing has arrived for ``timeout`` seconds.

        Raises:
            StreamUnavailable: the connection was lost, or a stream was deleted or moved.
        """
        return self._arriving(self._calls.outcomes, timeout)

    def _arriving(self, queue: deque[_T], timeout: float) -> Iterator[_T]:
        def found() -> _T | None:
            if not queue and self._moved:
                raise _gone(self._moved.pop())
            return queue.popleft() if queue else None

        while (one := self._calls.take(found, timeout)) is not None:
            yield one

    def _drop(self, stream: str) -> None:
        """Forget the subscriptions and publishers of a stream, which the broker has removed."""
        for numbers in (self._subscriptions, self._publishers):
            gone = [number for number, of in numbers.items() if of == stream]
            for number in gone:
                del numbers[number]
            if gone and stream not in self._moved:
                self._moved.append(stream)

    def _check_supports(self, command: Command) -> None:
        if not self._supports(command):
            missing = f"does not support {command.title}, which requires {_SINCE[command]}"
            raise StreamUnavailable(f"RabbitMQ {self.release} {missing}", "unsupported")


def _gone(stream: str) -> StreamUnavailable:
    text = f"stream {stream!r} was deleted or moved to another node"
    return StreamUnavailable(text, "not available", stream)


def _free(taken: Mapping[int, str], what: str, first: int = 0) -> int:
    for number in range(first, first + MAX_IDS):
        if number % MAX_IDS not in taken:
            return number % MAX_IDS
    expected, hint = f"at most {MAX_IDS} on a connection", "Open another connection"
    raise InvalidValue(f"number of {what}", MAX_IDS + 1, expected, hint)
