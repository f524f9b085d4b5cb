"""Messages as the bytes of AMQP 0-9-1 frames, many at once.

A message is three or more frames: the method ``basic.publish``, a content header with the properties, and the
body in pieces that fit the negotiated frame size. Everything that a batch has in common is packed once.
Properties are encoded by pika. This file opens no socket and knows nothing of confirms.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import InvalidValue
from rabbit_chx.hashing import shortstr

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rabbit_chx.broker.publishing.account import Outcome

__all__ = ["FRAME_OVERHEAD", "Message", "encode", "encode_properties"]

FRAME_OVERHEAD: Final = 8
"""Type, channel and size before a frame's payload, and the end byte behind it."""

_METHOD, _HEADER, _BODY, _END = b"\x01", b"\x02", b"\x03", b"\xce"
_BASIC_PUBLISH: Final = struct.pack(">HHH", 60, 40, 0)  # class, method, and a field that is not used
_MANDATORY: Final = b"\x01"
_CHANNEL: Final = struct.pack(">H", 1)
_SIZE = struct.Struct(">I").pack
_BASIC_HEADER: Final = struct.pack(">HH", 60, 0)  # class and weight
_BODY_SIZE = struct.Struct(">Q").pack
_PERSISTENT: Final = 2

_SHORT_STRINGS: Final = (
    *("app_id", "cluster_id", "content_encoding", "content_type", "correlation_id"),
    *("message_id", "reply_to", "type", "user_id"),
)
_PROPERTIES: Final = {*_SHORT_STRINGS, "delivery_mode", "expiration", "headers", "priority", "timestamp"}


@dataclass(slots=True)
class Message:
    """One message, and what has happened to it so far."""

    row: int
    """Its number, counted from 0 in the order in which the publisher took messages in."""
    exchange: bytes
    routing_key: bytes
    properties: bytes
    """As they stand in a content header: flags and values."""
    body: bytes | memoryview
    attempts: int = 0
    retry_until: float = 0.0
    """When a message that came back is given up; 0.0 before it first did."""
    reply: str = ""
    """Why it came back last, in the broker's words."""
    returned: bool = False
    """It came back on this attempt; its ack is still to follow."""
    verdict: Outcome | None = None
    """What the broker said of its last attempt, if it was returned or refused; None while one is under way."""
    doubtful: bool = False
    """An attempt left on a connection that died: it may be enqueued whatever became of later ones."""


def encode_properties(properties: Mapping[str, Any], *, frame_max: int) -> bytes:
    """The properties as they stand in a content header; messages are persistent unless they say otherwise."""
    import pika
    from pika.exceptions import AMQPError

    unknown = properties.keys() - _PROPERTIES
    if unknown:
        raise InvalidValue("the properties", got=sorted(unknown), allowed=", ".join(sorted(_PROPERTIES)))
    checked = {"delivery_mode": _PERSISTENT} | {
        name: _CHECKS.get(name, _as_is)(name, value)
        for name, value in properties.items()
        if value is not None
    }
    try:
        encoded = b"".join(pika.BasicProperties(**checked).encode())
    except (AMQPError, struct.error, TypeError, AssertionError, ValueError) as error:
        raise InvalidValue(
            "the properties",
            got=sorted(checked),
            allowed="what pika can encode",
            way_out=f"pika says {type(error).__name__}; headers as text always work",
        ) from None
    if len(encoded) + 12 + FRAME_OVERHEAD > frame_max:
        raise InvalidValue(
            "the properties",
            got=f"{len(encoded)} bytes",
            allowed=f"one frame, so at most {frame_max - 12 - FRAME_OVERHEAD} bytes with all headers",
            way_out="the broker would close the connection; put the data into the body",
        )
    return encoded


def _as_is(_name: str, value: Any) -> Any:
    return value


def _short(name: str, value: Any) -> Any:
    shortstr(value, f"the property {name}")
    return value


def _expiration(name: str, value: Any) -> str:
    text = str(value) if type(value) is int else value
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and int(text) < 2**32):
        raise InvalidValue(f"the property {name}", got=value, allowed="whole milliseconds, as text or int")
    return text


def _headers(_name: str, value: Any) -> Any:
    for name in ("CC", "BCC"):
        keys = value.get(name, [])
        if not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
            raise InvalidValue(f"the header {name}", got=keys, allowed="a list of str")
    for name, content in value.items():
        shortstr(name, "the name of a header")
        _whole_numbers(name, content)
    return dict(value)


def _whole_numbers(name: str, value: Any) -> None:
    """Refuse what some releases of pika would wrap around without a word."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidValue(
            f"the header {name}",
            got=value,
            allowed="whole numbers of 64 bits",
            way_out="headers as text always work",
        )
    for content in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _whole_numbers(name, content)


_CHECKS: Final[dict[str, Any]] = dict.fromkeys(_SHORT_STRINGS, _short) | {
    "expiration": _expiration,
    "headers": _headers,
}


def encode(messages: Iterable[Message], *, frame_max: int) -> bytes:
    """All frames of the messages, on channel 1, mandatory."""
    limit = frame_max - FRAME_OVERHEAD
    pieces: list[bytes | memoryview] = []
    add = pieces.extend
    exchange = properties = None
    for message in messages:
        if message.exchange is not exchange:
            exchange = message.exchange
            method_start = _BASIC_PUBLISH + bytes([len(exchange)]) + exchange
            heads = _Heads(method_start)
        if message.properties is not properties:
            properties = message.properties
            middle = _middle(properties)
            tail = properties + _END
        key, body = message.routing_key, message.body
        size = len(body)
        if 0 < size <= limit:
            add(
                (
                    heads[len(key)],
                    key,
                    middle,
                    _BODY_SIZE(size),
                    tail,
                    _BODY + _CHANNEL,
                    _SIZE(size),
                    body,
                    _END,
                )
            )
            continue
        add((heads[len(key)], key, middle, _BODY_SIZE(size), tail))
        view = memoryview(body)
        for start in range(0, size, limit):
            part = view[start : start + limit]
            add((_BODY, _CHANNEL, _SIZE(len(part)), part, _END))
    return b"".join(pieces)


class _Heads(dict[int, bytes]):
    """All that precedes a routing key of a given length, made once for each length."""

    def __init__(self, method_start: bytes) -> None:
        super().__init__()
        self._method_start = method_start

    def __missing__(self, length: int) -> bytes:
        size = len(self._method_start) + 1 + length + len(_MANDATORY)
        head = _METHOD + _CHANNEL + _SIZE(size) + self._method_start + bytes([length])
        self[length] = head
        return head


def _middle(properties: bytes) -> bytes:
    """What lies between a routing key and the size of the body."""
    size = len(_BASIC_HEADER) + 8 + len(properties)
    return _MANDATORY + _END + _HEADER + _CHANNEL + _SIZE(size) + _BASIC_HEADER
