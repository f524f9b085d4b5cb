"""Which message the broker returned.

A ``basic.return`` carries no number, only the message: exchange, key, body and properties. Returns arrive in publish
order, so the first message that matches, after the previously returned one, is the right one. The broker may have
changed the properties (it removes BCC, and interceptors add headers), so the comparison is relaxed in three passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pika

if TYPE_CHECKING:
    from collections.abc import Callable

    from rabbit_chx.publishing.messages import Message
    from rabbit_chx.publishing.window import Window

__all__ = ["find_returned"]

_PLAIN: Final = (
    *("app_id", "cluster_id", "content_encoding", "content_type", "correlation_id", "delivery_mode"),
    *("expiration", "message_id", "priority", "reply_to", "timestamp", "type", "user_id"),
)


def find_returned(
    window: Window, method: Any, properties: pika.BasicProperties, body: bytes
) -> Message | None:
    """Find the message in flight that a ``basic.return`` is about."""
    exchange, key = method.exchange.encode(), method.routing_key.encode()
    encoded = b"".join(properties.encode())

    def same_content(message: Message) -> bool:
        return message.routing_key == key and message.body == body and message.exchange == exchange

    passes: tuple[Callable[[Message], bool], ...] = (
        lambda message: message.properties == encoded and same_content(message),
        lambda message: same_content(message) and not _contradict(message.properties, properties),
        same_content,
    )
    for matches in passes:
        message = window.find_returned(matches)
        if message is not None:
            return message
    return None


def _contradict(encoded: bytes, returned: pika.BasicProperties) -> bool:
    """Whether a header or property has two different values."""
    sent = pika.BasicProperties()
    sent.decode(encoded)
    return _differ(_set_in(sent), _set_in(returned)) or _differ(sent.headers or {}, returned.headers or {})


def _set_in(properties: pika.BasicProperties) -> dict[str, Any]:
    return {name: value for name in _PLAIN if (value := getattr(properties, name)) is not None}


def _differ(some: dict[str, Any], others: dict[str, Any]) -> bool:
    return any(some[name] != others[name] for name in some.keys() & others.keys())
