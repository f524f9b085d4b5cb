"""A received message: what every reader of messages returns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Generic, TypeVar, Unpack, cast

from rabbit_chx.messages.message_fields import PROPERTIES, Headers, Properties, check_name, moment

T = TypeVar("T")
_COUNT: Final = "x-delivery-count"
SENT_AGAIN: Final = tuple(name for name in PROPERTIES if name not in {"headers", "user_id", "expiration"})
"""The properties of a copy of a message. The broker rejects the ``user_id`` of another user, and the countdown of an ``expiration``
would restart, so that the copy could expire; the broker also removes it from messages that it dead-letters."""


class _Property(Generic[T]):
    """An attribute of a message that reads one of its properties."""

    def __set_name__(self, owner: type[Message], name: str) -> None:
        self._name = name

    def __get__(self, message: Message, owner: type[Message]) -> T | None:
        found: T | None = message._properties.get(self._name)
        return found


class Message:
    """A message from a queue or a stream. A property that its publisher did not set is None.

    A test can make one: ``Message(b"body", "key", headers={"tenant": "acme"}, message_id="m-1")``.
    """

    __slots__ = ("_properties", "attempt", "body", "exchange", "queue", "redelivered", "routing_key")

    def __init__(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        exchange: str = "",
        queue: str = "",
        headers: Headers | None = None,
        redelivered: bool = False,
        attempt: int = 1,
        **properties: Unpack[Properties],
    ) -> None:
        for name in properties:
            check_name(name)
        self.body: bytes = body
        self.routing_key: str = routing_key
        self.exchange: str = exchange
        self.queue: str = queue
        """The queue or stream that the message comes from."""
        self.redelivered: bool = redelivered
        """Whether the broker has delivered the message before, perhaps to a member that handled it."""
        self.attempt: int = attempt
        """How many times this process has begun to handle the message, from 1."""
        self._properties: Mapping[str, Any] = {**properties, "headers": headers}
        """The properties as the client library has decoded them: a timestamp is a datetime or in seconds."""

    content_type: _Property[str] = _Property()
    content_encoding: _Property[str] = _Property()
    delivery_mode: _Property[int] = _Property()
    """1 (transient) or 2 (persistent)."""
    priority: _Property[int] = _Property()
    correlation_id: _Property[str] = _Property()
    reply_to: _Property[str] = _Property()
    expiration: _Property[str] = _Property()
    """In milliseconds."""
    message_id: _Property[str] = _Property()
    type: _Property[str] = _Property()
    user_id: _Property[str] = _Property()
    app_id: _Property[str] = _Property()

    @property
    def timestamp(self) -> datetime | None:
        """The time that the publisher set, aware; None if it is after the year 9999."""
        value = self._properties.get("timestamp")
        return moment(value) if isinstance(value, int) else value

    @property
    def deliveries(self) -> int | None:
        """How many earlier deliveries the broker has taken back, as a quorum queue counts them: 0 at the first one, later None in other queues.

        Each end of a member adds one, whether it was stopped or killed, also for messages that no handler has seen.
        """
        if not self.redelivered:
            return 0
        count = self.headers.get(_COUNT)
        return int(count) if isinstance(count, int) else None

    @property
    def headers(self) -> dict[str, Any]:
        """The headers; an empty dict if the message has none."""
        return self._properties.get("headers") or {}

    @property
    def properties(self) -> Properties:
        """The properties that are set, without the headers: what ``publish(..., **message.properties)`` sends again.

        They leave out ``user_id``, because the broker rejects the name of another user, and ``expiration``, whose countdown would restart.
        """
        found = {name: getattr(self, name) for name in SENT_AGAIN}
        return cast("Properties", {name: value for name, value in found.items() if value is not None})

    def __repr__(self) -> str:
        return f"<Message of {len(self.body)} bytes with key {self.routing_key!r} from {self.queue!r}>"


class DecodedLater:
    """For messages whose properties are decoded when somebody asks for them, in front of their class."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name != "_properties":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._properties = self._decoded()  # type: ignore[misc]  # the slot of `Message`
        return self._properties

    def _decoded(self) -> Mapping[str, Any]:
        raise NotImplementedError


class StreamMessage(Message):
    """A message from a stream. A null body, which AMQP 1.0 has, is empty; a missing routing key or exchange, too."""

    __slots__ = ("offset", "stream_timestamp")

    def __init__(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        offset: int = 0,
        stream_timestamp: datetime | None = None,
        exchange: str = "",
        queue: str = "",
        headers: Headers | None = None,
        attempt: int = 1,
        **properties: Unpack[Properties],
    ) -> None:
        super().__init__(
            body, routing_key, exchange=exchange, queue=queue, headers=headers, attempt=attempt, **properties
        )
        self.offset: int = offset
        """Its place in the stream."""
        self.stream_timestamp: datetime | None = stream_timestamp
        """When the broker stored the message; the same for all messages of a chunk."""
