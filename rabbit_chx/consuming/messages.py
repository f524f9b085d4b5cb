"""The messages that a member or a reader gets."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

from rabbit_chx.broker.deliveries import RawDelivery
from rabbit_chx.broker.properties import decoded as decode
from rabbit_chx.message import Message

_COPIED: Final = (
    *("content_type", "content_encoding", "priority", "correlation_id"),
    *("reply_to", "message_id", "timestamp", "app_id"),
    "type",
)
_SENDER_SELECTED: Final = {"CC", "BCC"}
"""The headers that name further queues for a message."""


_OURS: Final = b"x-rabbit-chx-"
_OF_STREAM: Final = b"x-stream-offset"


class Delivery(Message):
    """A message on a channel, which acknowledges it by its tag. Its properties are decoded when somebody asks for them."""

    __slots__ = ("encoded", "key", "key_error", "suspect", "tag")

    def __init__(
        self,
        body: bytes,
        routing_key: str,
        *,
        queue: str,
        exchange: str = "",
        redelivered: bool = False,
        decoded: Mapping[str, Any] | None = None,
        encoded: bytes = b"",
        tag: int = 0,
    ) -> None:
        # Without the checks of a `Message`, which every message would pay for.
        self.body = body
        self.routing_key = routing_key
        self.queue = queue
        self.exchange = exchange
        self.redelivered = redelivered
        self.attempt = 1
        if decoded is not None:
            self._properties = decoded
        self.encoded: Final = encoded
        """The properties as received, unless the message was made from decoded ones."""
        self.tag: Final = tag
        """The delivery tag on the channel of its queue."""
        self.key: Hashable = None
        """With ``order="key"``, what keeps it in order: messages of one key are handled one at a time."""
        self.key_error: Exception | None = None
        """Why the message has no key."""
        self.suspect = False
        """Whether the message may have ended processes, so that the handler gets it alone (`member.trials`)."""

    def __getattr__(self, name: str) -> Any:
        """Decode the properties, which have no value until somebody asks for them."""
        if name != "_properties":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._properties = vars(decode(self.encoded)) if self.encoded else {}
        return self._properties

    def __copy__(self) -> Delivery:
        """The same message without what was decoded of it, which can take many times as much memory."""
        copied = Delivery(
            self.body,
            self.routing_key,
            queue=self.queue,
            exchange=self.exchange,
            redelivered=self.redelivered,
            decoded=None if self.encoded else self._properties,
            encoded=self.encoded,
            tag=self.tag,
        )
        copied.attempt = self.attempt
        return copied

    def __sizeof__(self) -> int:
        """The memory of the message as received."""
        return super().__sizeof__() + len(self.body) + len(self.encoded)

    @property
    def may_be_ours(self) -> bool:
        """Whether the message may have a header of this package; most have none, which is seen without decoding."""
        return not self.encoded or _OURS in self.encoded

    @property
    def may_be_of_stream(self) -> bool:
        """Whether the message may have the header that the broker adds to messages of a stream."""
        return _OF_STREAM in self.encoded


def copied_properties(
    message: Message, added: Mapping[str, Any], without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The properties of a copy of a message for one place, as the client library has decoded them, with other headers.

    Args:
        message: from a queue or a stream.
        added: headers that are added.
        without: beginnings of the names of headers that are left out.

    The broker would refuse a ``user_id`` other than the member's, drop the copy after its ``expiration``, and send it
    to the queues in CC and BCC as well.
    """
    decoded = message._properties  # noqa: SLF001 - the attributes would change them
    copied = {name: decoded.get(name) for name in _COPIED}
    given = {name: value for name, value in copied.items() if value is not None}
    headers = {
        name: value
        for name, value in message.headers.items()
        if name not in _SENDER_SELECTED and not name.startswith(without)
    }
    return {**given, "headers": {**headers, **added}, "delivery_mode": 2}


def from_raw(queue: str, received: RawDelivery) -> Delivery:
    """The message that was received from a queue."""
    tag, redelivered, exchange, routing_key, encoded, body = received
    return Delivery(
        body, routing_key, queue=queue, exchange=exchange, redelivered=redelivered, encoded=encoded, tag=tag
    )
