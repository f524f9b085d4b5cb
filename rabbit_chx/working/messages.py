"""The messages that a member or a reader gets."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

from rabbit_chx.base.text import text_of
from rabbit_chx.broker.deliveries import RawDelivery
from rabbit_chx.broker.properties import decoded as decode
from rabbit_chx.messages.message import SENT_AGAIN, DecodedLater, Message

_SENDER_SELECTED: Final = {"CC", "BCC"}
"""The headers that name further queues for a message."""
PARKED: Final = "x-rabbit-chx-parked-"
"""The prefix of the headers that a parked message gets."""
_ADDED: Final = (PARKED, "x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")
"""Beginnings of the names of headers that members and the broker add. A copy leaves out those of the original."""
_OURS: Final = b"x-rabbit-chx-"


class Delivery(DecodedLater, Message):
    """A message on a channel, which acknowledges it by its tag. Its properties are decoded when somebody asks for them."""

    __slots__ = ("encoded", "given_up", "key", "key_error", "may_be_ours", "suspect", "tag")

    def __init__(
        self,
        body: bytes,
        routing_key: str,
        *,
        queue: str,
        exchange: str = "",
        redelivered: bool = False,
        encoded: bytes = b"\0\0",
        tag: int = 0,
    ) -> None:
        # Without the checks of a `Message`, which every message would pay for.
        self.body = body
        self.routing_key = routing_key
        self.queue = queue
        self.exchange = exchange
        self.redelivered = redelivered
        self.attempt = 1
        self.encoded: Final = encoded
        """The properties as received."""
        self.may_be_ours: Final = _OURS in encoded
        """Whether the message may have a header of this package; most have none, which is seen without decoding."""
        self.tag: Final = tag
        """The delivery tag on the channel of its queue."""
        self.key: Hashable = None
        """With ``order="key"``, what keeps it in order: messages of one key are handled one at a time."""
        self.key_error: Exception | None = None
        """Why the message has no key."""
        self.given_up: tuple[Any, ...] | None = None
        """Why the message is to be parked, if it waits for room in the parking queue; its handler no longer gets it."""
        self.suspect: bool = False
        """Whether the message may have ended processes, so that the handler gets it alone (`member.trials`)."""

    def _decoded(self) -> Mapping[str, Any]:
        return vars(decode(self.encoded))

    def __copy__(self) -> Delivery:
        """The same message without what was decoded of it, which can take many times as much memory."""
        copied = Delivery(
            self.body,
            self.routing_key,
            queue=self.queue,
            exchange=self.exchange,
            redelivered=self.redelivered,
            encoded=self.encoded,
            tag=self.tag,
        )
        copied.attempt = self.attempt
        return copied


def copied_properties(message: Message, added: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of a copy of a message for one place, as the client library has decoded them, with other headers.

    The copy is persistent, and lacks CC and BCC: the broker would send it to their queues as well.
    """
    decoded = message._properties  # the attributes would change them
    given = {name: decoded[name] for name in SENT_AGAIN if decoded.get(name) is not None}
    headers = {
        name: value
        for name, value in message.headers.items()
        if name not in _SENDER_SELECTED and not text_of(name).startswith(_ADDED)
    }
    return {**given, "headers": {**headers, **added}, "delivery_mode": 2}


def from_raw(queue: str, received: RawDelivery) -> Delivery:
    """The message that was received from a queue."""
    tag, redelivered, exchange, routing_key, encoded, body = received
    return Delivery(
        body, routing_key, queue=queue, exchange=exchange, redelivered=redelivered, encoded=encoded, tag=tag
    )
