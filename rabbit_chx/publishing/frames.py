"""Messages as the bytes of AMQP 0-9-1 frames, many at once.

A message is three or more frames: the method ``basic.publish``, a content header with the properties, and the
body in pieces that fit the negotiated frame size. Everything that a batch has in common is packed once.
Properties are encoded by pika. This file opens no socket and knows nothing of confirms.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import InvalidValue
from rabbit_chx.fields import seconds
from rabbit_chx.hashing import shortstr

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rabbit_chx.publishing.account import Outcome

__all__ = [
    "FRAME_OVERHEAD",
    "LISTS_OF_KEYS",
    "SHORT_STRINGS",
    "Message",
    "encode",
    "encode_properties",
    "encode_property",
    "flag_of",
    "most_bytes",
    "with_defaults",
]

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

SHORT_STRINGS: Final = (
    *("app_id", "cluster_id", "content_encoding", "content_type", "correlation_id"),
    *("message_id", "reply_to", "type", "user_id"),
)
LISTS_OF_KEYS: Final = ("CC", "BCC")
"""Headers whose value is a list of routing keys, or the broker closes the channel."""
_PROPERTIES: Final = {*SHORT_STRINGS, "delivery_mode", "expiration", "headers", "priority", "timestamp"}


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
    encoded = _encode(with_defaults(properties))
    if len(encoded) > most_bytes(frame_max):
        raise InvalidValue(
            "properties",
            f"{len(encoded)} bytes",
            f"one frame, so at most {most_bytes(frame_max)} bytes with all headers",
            "The broker would close the connection; put the data into the body",
        )
    return encoded


def encode_property(name: str, value: Any) -> bytes:
    """One property as it stands in a content header, without its flag."""
    return _encode({name: value})[2:]


def flag_of(name: str) -> int:
    """The flag by which a content header says that it holds a property."""
    import pika

    return int(getattr(pika.BasicProperties, f"FLAG_{name.upper()}"))


def with_defaults(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that a message has; one that is None it has not."""
    given = {name: value for name, value in properties.items() if value is not None}
    return {"delivery_mode": _PERSISTENT} | given


def most_bytes(frame_max: int) -> int:
    """How long properties may be, since a content header is one frame."""
    return frame_max - len(_BASIC_HEADER) - 8 - FRAME_OVERHEAD


def _encode(properties: Mapping[str, Any]) -> bytes:
    import pika
    from pika.exceptions import AMQPError

    unknown = properties.keys() - _PROPERTIES
    if unknown:
        raise InvalidValue(
            "properties",
            sorted(unknown),
            ", ".join(sorted(_PROPERTIES)),
            "What AMQP has no property for goes into a header",
        )
    checked = {name: _CHECKS.get(name, _as_is)(name, value) for name, value in properties.items()}
    try:
        return b"".join(pika.BasicProperties(**checked).encode())
    except (AMQPError, struct.error, TypeError, AttributeError, AssertionError, ValueError) as error:
        raise InvalidValue(
            "properties",
            sorted(checked),
            "what pika can encode",
            f"Pika says {type(error).__name__}; headers as text always work",
        ) from None


def _as_is(_name: str, value: Any) -> Any:
    return value


def _short(name: str, value: Any) -> Any:
    shortstr(value, f"the property {name}")
    return value


def _expiration(name: str, value: Any) -> str:
    text = str(value) if type(value) is int else value
    digits = text.lstrip("0") if isinstance(text, str) and text.isascii() and text.isdigit() else None
    # Ten digits first: Python refuses to read thousands of them.
    if digits is None or len(digits) > 10 or int(digits or "0") >= 2**32:
        raise InvalidValue(
            f"property {name}",
            value,
            "whole milliseconds below 2^32, as text or int",
            "The broker would close the channel; leave it out for a message that stays",
        )
    return text


def _timestamp(name: str, value: Any) -> int:
    try:
        number = seconds(value) if isinstance(value, datetime) else value
    except OverflowError:
        number = None
    if type(number) is not int or not 0 <= number < 2**64:
        raise InvalidValue(
            f"property {name}",
            value,
            "a datetime, or whole seconds since 1970",
            "Use int(time.time())",
        )
    return number


def _headers(_name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidValue(
            "headers",
            value,
            "a mapping of names to values",
            "A column of headers holds one mapping a row",
        )
    for name in LISTS_OF_KEYS:
        keys = value.get(name, [])
        if not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
            raise InvalidValue(
                f"header {name}",
                keys,
                "a list of str",
                "The broker takes it for more routing keys, and would close the channel",
            )
    for name, content in value.items():
        shortstr(name, "the name of a header")
        _whole_numbers(name, content)
    return dict(value)


def _whole_numbers(name: str, value: Any) -> None:
    """Refuse what some releases of pika would wrap around without a word."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidValue(
            f"header {name}",
            value,
            "whole numbers of 64 bits",
            "Headers as text always work",
        )
    for content in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _whole_numbers(name, content)


_CHECKS: Final[dict[str, Any]] = dict.fromkeys(SHORT_STRINGS, _short) | {
    "expiration": _expiration,
    "headers": _headers,
    "timestamp": _timestamp,
}


def encode(messages: Iterable[Message], *, frame_max: int) -> bytes:
    """All frames of the messages, on channel 1, mandatory."""
    limit = frame_max - FRAME_OVERHEAD
    pieces: list[bytes | memoryview] = []
    add = pieces.extend
    exchange = properties = None
    heads_of: dict[bytes, _Heads] = {}
    for message in messages:
        if message.exchange is not exchange:
            exchange = message.exchange
            if exchange not in heads_of:
                heads_of[exchange] = _Heads(_BASIC_PUBLISH + bytes([len(exchange)]) + exchange)
            heads = heads_of[exchange]
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
