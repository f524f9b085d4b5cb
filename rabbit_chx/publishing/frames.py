"""Messages as AMQP 0-9-1 frames, many at once.

A message is a ``basic.publish`` method frame, a content header frame with its properties, and its body in frames of the
negotiated size. The fields that all messages of a batch have in common are packed once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from rabbit_chx.publishing.messages import OutgoingMessage

FRAME_OVERHEAD: Final = 8
"""Type, channel and size before a frame's payload, and the end byte after it."""

_METHOD, _HEADER, _BODY, _END = b"\x01", b"\x02", b"\x03", b"\xce"
_BASIC_PUBLISH: Final = struct.pack(">HHH", 60, 40, 0)  # class, method, and a reserved field
_MANDATORY: Final = b"\x01"
_CHANNEL: Final = struct.pack(">H", 1)
_BODY_START: Final = _BODY + _CHANNEL
_SIZE = struct.Struct(">I").pack
_BASIC_HEADER: Final = struct.pack(">HH", 60, 0)  # class and weight
_BODY_SIZE = struct.Struct(">Q").pack


def encode(messages: Iterable[OutgoingMessage], *, frame_max: int) -> bytes:
    """Return all frames of the messages, on channel 1, mandatory."""
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
            header_size = len(_BASIC_HEADER) + 8 + len(properties)
            middle = _MANDATORY + _END + _HEADER + _CHANNEL + _SIZE(header_size) + _BASIC_HEADER
            tail = properties + _END
        key, body = message.routing_key, message.body
        size = len(body)
        head = heads[len(key)]
        if 0 < size <= limit:  # one call: there are many of these
            add((head, key, middle, _BODY_SIZE(size), tail, _BODY_START, _SIZE(size), body, _END))
            continue
        add((head, key, middle, _BODY_SIZE(size), tail))
        view = memoryview(body)
        for start in range(0, size, limit):
            part = view[start : start + limit]
            add((_BODY_START, _SIZE(len(part)), part, _END))
    return b"".join(pieces)


class _Heads(dict[int, bytes]):
    """The bytes before a routing key, by the length of the key."""

    def __init__(self, method_start: bytes) -> None:
        super().__init__()
        self._method_start = method_start

    def __missing__(self, length: int) -> bytes:
        size = len(self._method_start) + 1 + length + len(_MANDATORY)
        head = _METHOD + _CHANNEL + _SIZE(size) + self._method_start + bytes([length])
        self[length] = head
        return head
