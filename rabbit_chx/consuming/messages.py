"""The deliveries of a member: messages for the handler, markers that drain or hold queues, and canaries."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.broker.applying.handover import is_marker
from rabbit_chx.canaries import is_canary

if TYPE_CHECKING:
    from pika import BasicProperties
    from pika.spec import Basic

HOLD: Final = "x-rabbit-chx-hold"
"""The header of a marker that holds its queue. Its value names another queue, whose deletion releases the held one."""

_COPIED: Final = (
    *("content_type", "content_encoding", "priority", "correlation_id"),
    *("reply_to", "message_id", "timestamp", "app_id"),
    *("type", "message_type"),  # pika's name and pamqp's
)
_SENDER_SELECTED: Final = {"CC", "BCC"}
"""The headers that name further queues for a message."""


class Kind(Enum):
    """The kind of a delivery."""

    MESSAGE = "message"
    """Goes to the handler."""
    DRAIN = "drain"
    """Is answered and acknowledged after all earlier messages."""
    HOLD = "hold"
    """Stops the queue until another queue, which the marker names, is deleted."""
    CANARY = "canary"
    """Is reported to the watch that sent it, and acknowledged."""


def kind_of(headers: Mapping[str, Any] | None) -> Kind:
    """The kind of a delivery with these headers."""
    if headers:
        if is_marker(headers):
            return Kind.DRAIN
        if isinstance(headers.get(HOLD), str):
            return Kind.HOLD
        if is_canary(headers):
            return Kind.CANARY
    return Kind.MESSAGE


class Message:
    """A message from one of the group's queues."""

    __slots__ = ("body", "exchange", "properties", "queue", "redelivered", "routing_key", "tag")

    def __init__(
        self,
        body: bytes,
        routing_key: str,
        *,
        queue: str,
        exchange: str = "",
        redelivered: bool = False,
        properties: Any = None,
        tag: int = 0,
    ) -> None:
        self.body: Final = body
        self.routing_key: Final = routing_key
        self.queue: Final = queue
        self.exchange: Final = exchange
        self.redelivered: Final = redelivered
        """Whether the broker has delivered the message before, perhaps to a member that handled it."""
        self.properties: Final = properties
        """All properties: pika's `BasicProperties`, or pamqp's in `AsyncGroup`."""
        self.tag: Final = tag
        """The delivery tag on the channel of its queue."""

    def __repr__(self) -> str:
        return f"<Message of {len(self.body)} bytes with key {self.routing_key!r} from queue {self.queue!r}>"

    @property
    def headers(self) -> dict[str, Any]:
        """The headers; an empty dict if the message has none."""
        return getattr(self.properties, "headers", None) or {}

    @property
    def message_id(self) -> str | None:
        """The property ``message_id``."""
        return getattr(self.properties, "message_id", None)

    @property
    def correlation_id(self) -> str | None:
        """The property ``correlation_id``."""
        return getattr(self.properties, "correlation_id", None)

    @property
    def content_type(self) -> str | None:
        """The property ``content_type``."""
        return getattr(self.properties, "content_type", None)

    def parked_properties(self) -> dict[str, Any]:
        """The properties of a copy that stays in one queue, by the client library's names for them.

        The broker would refuse a ``user_id`` other than the member's, drop the copy after its ``expiration``, and send it
        to the queues in CC and BCC as well.
        """
        copied = {name: getattr(self.properties, name, None) for name in _COPIED}
        given = {name: value for name, value in copied.items() if value is not None}
        headers = {name: value for name, value in self.headers.items() if name not in _SENDER_SELECTED}
        return {**given, "headers": headers, "delivery_mode": 2}


def from_pika(queue: str, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> Message:
    """The message that pika has delivered from a queue."""
    return Message(
        body,
        method.routing_key,
        queue=queue,
        exchange=method.exchange,
        redelivered=method.redelivered,
        properties=properties,
        tag=method.delivery_tag,
    )
