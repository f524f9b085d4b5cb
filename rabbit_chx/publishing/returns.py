"""Which message came back.

A return carries no number, only the message: exchange, key, body and properties. Returns come in publish
order, so the first message that matches, behind the one that came back before it, is the one. The broker may
have changed the properties meanwhile (it takes BCC out, and interceptors stamp what comes in), hence three
looks, each less strict than the one before. This file opens no socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pika

if TYPE_CHECKING:
    from collections.abc import Callable

    from rabbit_chx.publishing.frames import Message
    from rabbit_chx.publishing.window import Window

__all__ = ["find_returned"]

_PLAIN: Final = (
    *("app_id", "cluster_id", "content_encoding", "content_type", "correlation_id", "delivery_mode"),
    *("expiration", "message_id", "priority", "reply_to", "timestamp", "type", "user_id"),
)


def find_returned(
    window: Window, method: Any, properties: pika.BasicProperties, body: bytes
) -> Message | None:
    """The message in flight that a ``basic.return`` is about."""
    exchange, key = method.exchange.encode(), method.routing_key.encode()
    encoded = b"".join(properties.encode())

    def alike(message: Message) -> bool:
        return message.routing_key == key and message.body == body and message.exchange == exchange

    looks: tuple[Callable[[Message], bool], ...] = (
        lambda message: message.properties == encoded and alike(message),
        lambda message: alike(message) and not _contradict(message.properties, properties),
        alike,
    )
    for look in looks:
        message = window.find_returned(look)
        if message is not None:
            return message
    return None


def _contradict(encoded: bytes, returned: pika.BasicProperties) -> bool:
    """Whether a header or property stands in both with two values."""
    sent = pika.BasicProperties()
    sent.decode(encoded)
    return _differ(_named(sent), _named(returned)) or _differ(sent.headers or {}, returned.headers or {})


def _named(properties: pika.BasicProperties) -> dict[str, Any]:
    return {name: value for name in _PLAIN if (value := getattr(properties, name)) is not None}


def _differ(some: dict[str, Any], others: dict[str, Any]) -> bool:
    return any(some[name] != others[name] for name in some.keys() & others.keys())
