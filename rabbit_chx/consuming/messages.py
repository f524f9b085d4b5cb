"""The messages that a member or a reader gets."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.message import Message

if TYPE_CHECKING:
    from pika import BasicProperties
    from pika.spec import Basic

_COPIED: Final = (
    *("content_type", "content_encoding", "priority", "correlation_id"),
    *("reply_to", "message_id", "timestamp", "app_id"),
    "type",
)
_SENDER_SELECTED: Final = {"CC", "BCC"}
"""The headers that name further queues for a message."""


class Delivery(Message):
    """A message on a channel, which acknowledges it by its tag."""

    __slots__ = ("key", "key_error", "tag")

    def __init__(
        self,
        body: bytes,
        routing_key: str,
        *,
        queue: str,
        exchange: str = "",
        redelivered: bool = False,
        decoded: Mapping[str, Any] | None = None,
        tag: int = 0,
    ) -> None:
        # Without the checks of a `Message`, which every message would pay for.
        self.body = body
        self.routing_key = routing_key
        self.queue = queue
        self.exchange = exchange
        self.redelivered = redelivered
        self.attempt = 1
        self._properties = decoded or {}
        self.tag: Final = tag
        """The delivery tag on the channel of its queue."""
        self.key: Hashable = None
        """With ``order="key"``, what keeps it in order: messages of one key are handled one at a time."""
        self.key_error: Exception | None = None
        """Why the message has no key."""

    def copied_properties(self, added: Mapping[str, Any], without: tuple[str, ...] = ()) -> dict[str, Any]:
        """The properties of a copy for one place, as the client library has decoded them, with other headers.

        Args:
            added: headers that are added.
            without: beginnings of the names of headers that are left out.

        The broker would refuse a ``user_id`` other than the member's, drop the copy after its ``expiration``, and send it
        to the queues in CC and BCC as well.
        """
        copied = {name: self._properties.get(name) for name in _COPIED}
        given = {name: value for name, value in copied.items() if value is not None}
        headers = {
            name: value
            for name, value in self.headers.items()
            if name not in _SENDER_SELECTED and not name.startswith(without)
        }
        return {**given, "headers": {**headers, **added}, "delivery_mode": 2}


def from_pika(queue: str, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> Delivery:
    """The message that pika has delivered from a queue."""
    return Delivery(
        body,
        method.routing_key,
        queue=queue,
        exchange=method.exchange,
        redelivered=method.redelivered,
        decoded=vars(properties),
        tag=method.delivery_tag,
    )
