"""Deliveries, read in one pass from the data that a connection has received.

A delivery is a ``basic.deliver`` method frame, a content header frame with the properties, and the body in frames of the
negotiated size. pika decodes each frame into objects; here the deliveries at the front of the data are cut out of it, and
their properties stay encoded until somebody asks for them.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from contextlib import suppress
from typing import Any, Final, NamedTuple

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
_BASIC, _DELIVER = 60, 60

_BEFORE_PAYLOAD: Final = 7
_FRAME = struct.Struct(">BHI").unpack_from
"""Type, channel and size of the payload."""
_DELIVER_SIZE: Final = 12
_DELIVER_FRAME = struct.Struct(">BHIHHB").unpack_from
"""The same, then class, method, and the length of the consumer tag."""
_AFTER_TAG_SIZE: Final = 10
_AFTER_TAG = struct.Struct(">QBB").unpack_from
"""Delivery tag, redelivered, and the length of the exchange."""
BEFORE_PROPERTIES: Final = 19
"""Bytes of a content header frame before the properties; after them, only the end byte follows."""
_HEADER_FRAME = struct.Struct(">BHIHHQ").unpack_from
"""Type, channel and size; then class, weight and body size."""


class RawDelivery(NamedTuple):
    """A delivery as it was received. A name that is not UTF-8 stays bytes, as pika leaves it."""

    tag: int
    redelivered: bool
    exchange: Any
    routing_key: Any
    properties: bytes
    body: bytes


Run = tuple[bytes, list[RawDelivery]]
"""A consumer and deliveries for it, in their order."""


def consumer(channel: int, tag: str) -> bytes:
    """Return what identifies a consumer in a frame: the channel, and the tag with its length."""
    encoded = tag.encode()
    return channel.to_bytes(2, "big") + bytes([len(encoded)]) + encoded


def read_deliveries(data: bytes, consumers: Container[bytes]) -> tuple[list[Run], int, int]:
    """Read the complete deliveries for these consumers at the front of the data.

    Returns:
        The runs, the bytes that they take, and how many frames these are. Whatever is not a complete and possible
        delivery for one of the consumers ends the reading.
    """
    runs: list[Run] = []
    run: list[RawDelivery] = []
    start = frames = 0
    last = exchange_bytes = b""
    exchange: Any = ""
    with suppress(struct.error, IndexError):  # incomplete
        while True:
            kind, channel, size, of_class, method, tag_size = _DELIVER_FRAME(data, start)
            end, at = start + _BEFORE_PAYLOAD + size, start + _DELIVER_SIZE + tag_size
            who = data[start + 1 : start + 3] + data[start + _DELIVER_SIZE - 1 : at]
            if kind != _METHOD or of_class != _BASIC or method != _DELIVER or who not in consumers:
                break
            tag, redelivered, exchange_size = _AFTER_TAG(data, at)
            at += _AFTER_TAG_SIZE
            if data[at : at + exchange_size] != exchange_bytes:
                exchange_bytes = data[at : at + exchange_size]
                exchange = text_or_bytes(exchange_bytes)
            at += exchange_size
            key = data[at + 1 : end]
            if at >= end or len(key) != data[at] or data[end] != _END:
                break
            kind, its_channel, size, of_class, _, body_size = _HEADER_FRAME(data, end + 1)
            at, end = end + 1 + BEFORE_PROPERTIES, end + 1 + _BEFORE_PAYLOAD + size
            if kind != _HEADER or its_channel != channel or of_class != _BASIC:
                break
            if end < at or data[end] != _END:
                break
            properties = data[at:end]
            body, after, count = _body(data, end + 1, channel, body_size)
            if after == 0:
                break
            if who != last:
                last, run = who, []
                runs.append((who, run))
            run.append(RawDelivery(tag, redelivered != 0, exchange, text_or_bytes(key), properties, body))
            start, frames = after, frames + 2 + count
    return runs, start, frames


def _body(data: bytes, at: int, channel: int, size: int) -> tuple[bytes, int, int]:
    """Read a body from its frames: return it, where it ends (0 if it is incomplete or impossible), and its frames."""
    if size == 0:
        return b"", at, 0
    kind, its_channel, length = _FRAME(data, at)
    at += _BEFORE_PAYLOAD
    if length == size and kind == _BODY and its_channel == channel:
        end = at + size
        return (data[at:end], end + 1, 1) if data[end] == _END else (b"", 0, 0)
    pieces: list[bytes] = []
    missing = size
    while kind == _BODY and its_channel == channel and 0 < length <= missing and data[at + length] == _END:
        pieces.append(data[at : at + length])
        missing -= length
        at += length + 1
        if not missing:
            return b"".join(pieces), at, len(pieces)
        kind, its_channel, length = _FRAME(data, at)
        at += _BEFORE_PAYLOAD
    return b"", 0, 0


def text_or_bytes(encoded: bytes) -> Any:
    """Decode UTF-8; anything else stays as it is."""
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return encoded
