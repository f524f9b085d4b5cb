"""Requests of the stream protocol as bytes, without I/O.

A frame consists of its size (4 bytes), the command (2 bytes), the version of the command (2 bytes) and the fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from rabbit_chx.base.limits import as_integer
from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.streams.protocol.answers import (
    ANSWER,
    I16,
    I32,
    I64,
    OK,
    SIZE,
    U16,
    U64,
    VERSION,
    Command,
)

MAX_NAME: Final = 255
"""The maximum size in bytes of the name of a stream or publisher."""
MAX_IDS: Final = 256
"""The maximum number of subscriptions, and of publishers, of one connection."""
MAX_CREDIT: Final = 65_535
"""The maximum number of chunks that a subscription may request ahead."""

_COMMAND: Final = struct.Struct(">HH")
_REQUEST: Final = struct.Struct(">HHI")
_MESSAGE: Final = struct.Struct(">QI")


def string(text: str | None) -> bytes:
    """Encode a string or null."""
    if text is None:
        return I16.pack(-1)
    try:
        data = text.encode()
        return I16.pack(len(data)) + data
    except (AttributeError, UnicodeEncodeError, struct.error):
        raise InvalidValue("text in a request", text, "text of at most 32,767 bytes in UTF-8") from None


def array(elements: Iterable[bytes]) -> bytes:
    """Encode an array of encoded elements."""
    parts = list(elements)
    return I32.pack(len(parts)) + b"".join(parts)


def string_map(pairs: Mapping[str, str]) -> bytes:
    """Encode an array of pairs of strings."""
    return array(string(key) + string(value) for key, value in pairs.items())


def arguments(given: Mapping[str, str | int] | None) -> bytes:
    """Encode the arguments of a stream, integers as text."""
    found = _mapping("arguments", given or {}, "a dict such as {'max-age': '7D'}")
    return string_map({_name(key): _argument(key, value) for key, value in found.items()})


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidValue("name of an argument", key, "text")
    return key


def _argument(key: str, value: object) -> str:
    number = as_integer(value)
    if not isinstance(value, str) and number is None:
        raise InvalidValue(f"argument {key}", value, "text or an integer")
    return value if isinstance(value, str) else str(number)


def partitions(given: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Encode the streams of a super stream, and their binding keys."""
    found = _mapping(
        "partitions", given, "a dict of stream names and binding keys, such as {'orders-0': '0'}"
    )
    for stream, key in found.items():
        if not isinstance(key, str):
            raise InvalidValue(f"binding key of stream {stream!r}", key, "text")
    return array(map(name, found)), array(map(string, found.values()))


def _mapping(what: str, given: object, expected: str) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise InvalidValue(what, given, expected)
    return given


def name(text: str, what: str = "stream name") -> bytes:
    """Encode the name of a stream or publisher."""
    try:
        data = text.encode()
    except (AttributeError, UnicodeEncodeError):
        data = b""
    if not 0 < len(data) <= MAX_NAME:
        raise InvalidValue(what, text, f"text of 1 to {MAX_NAME} bytes in UTF-8")
    return I16.pack(len(data)) + data


def binary(data: bytes) -> bytes:
    """Encode bytes with their length."""
    return I32.pack(len(data)) + data


def request(command: Command, correlation: int, *fields: bytes) -> bytes:
    """Build the frame of a command that the broker answers."""
    return _framed(_REQUEST.pack(command, VERSION, correlation), fields)


def one_way(command: Command, *fields: bytes) -> bytes:
    """Build the frame of a command without an answer."""
    return _framed(_COMMAND.pack(command, VERSION), fields)


def _framed(head: bytes, fields: Iterable[bytes]) -> bytes:
    body = b"".join((head, *fields))
    return SIZE.pack(len(body)) + body


def close_answer(correlation: int) -> bytes:
    """Build the answer to `Close`."""
    return _framed(_REQUEST.pack(Command.CLOSE | ANSWER, VERSION, correlation), [U16.pack(OK)])


def consumer_update_answer(correlation: int, start: OffsetSpec | None) -> bytes:
    """Build the answer to `ConsumerUpdate`: where an active consumer starts, or None for a passive one."""
    position = U16.pack(0) if start is None else start.encoded()
    head = _REQUEST.pack(Command.CONSUMER_UPDATE | ANSWER, VERSION, correlation)
    return _framed(head, [U16.pack(OK), position])


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Where a subscription starts. The broker delivers whole chunks, so the first one may begin earlier."""

    kind: int
    value: int = 0

    FIRST = 1
    LAST = 2
    NEXT = 3
    OFFSET = 4
    TIMESTAMP = 5

    @classmethod
    def first(cls) -> OffsetSpec:
        """Start at the first chunk of the stream."""
        return cls(cls.FIRST)

    @classmethod
    def last(cls) -> OffsetSpec:
        """Start at the last chunk."""
        return cls(cls.LAST)

    @classmethod
    def next(cls) -> OffsetSpec:
        """Start after the last chunk."""
        return cls(cls.NEXT)

    @classmethod
    def offset(cls, offset: int) -> OffsetSpec:
        """Start at the chunk that contains this offset."""
        return cls(cls.OFFSET, offset)

    @classmethod
    def timestamp(cls, milliseconds: int) -> OffsetSpec:
        """Start at the first chunk stored at or after a time, in milliseconds since 1970."""
        return cls(cls.TIMESTAMP, milliseconds)

    def encoded(self) -> bytes:
        """Encode the position as fields of a request."""
        kind = U16.pack(self.kind)
        try:
            match self.kind:
                case self.OFFSET:
                    return kind + U64.pack(self.value)
                case self.TIMESTAMP:
                    return kind + I64.pack(self.value)
        except struct.error:
            raise InvalidValue(
                "start of a subscription", self.value, "an integer from 0 to 2^63 - 1"
            ) from None
        return kind


_PUBLISH: Final = struct.Struct(">IHHBi")
_PUBLISH_HEAD: Final = _PUBLISH.size - SIZE.size
"""The frame's own size does not count."""
_AT_ONCE: Final = 1_000


def max_message(frame_max: int) -> int | None:
    """Return the size of the largest message that fits into a frame; None for no limit."""
    return frame_max - _PUBLISH_HEAD - _MESSAGE.size if frame_max else None


def check_sizes(messages: Iterable[Sized], frame_max: int) -> None:
    """Check that each message fits into a frame.

    Raises:
        StreamUnavailable: a message is too large.
    """
    most, largest = max_message(frame_max), max(map(len, messages), default=0)
    if most is not None and largest > most:
        raise _too_large(largest, frame_max)


def _too_large(size: int, limit: int) -> StreamUnavailable:
    return StreamUnavailable(
        f"a message of {size} bytes does not fit into a frame: the agreed maximum is {limit} bytes "
        "(stream.frame_max in rabbitmq.conf)",
        "frame too large",
    )


def publish_frames(
    publisher: int, ids: Iterable[int], messages: Iterable[bytes], frame_max: int
) -> Iterable[bytes]:
    """Build frames to publish messages, each with its publishing id: of at most the maximum size, and 1,000 messages.

    Raises:
        InvalidValue: a publishing id is invalid, or missing.
        StreamUnavailable: a single message exceeds the maximum size of a frame.
    """
    numbers, rest = iter(ids), iter(messages)
    while some := list(islice(rest, _AT_ONCE)):
        try:
            heads = list(map(_MESSAGE.pack, islice(numbers, len(some)), map(len, some)))
        except struct.error:
            heads = []
        if len(heads) < len(some):
            raise InvalidValue("publishing ids", ids, "an integer from 0 to 2^64 - 1 for each message")
        yield from _frames(publisher, heads, some, frame_max)


def _frames(
    publisher: int, heads: Sequence[bytes], bodies: Sequence[bytes], frame_max: int
) -> Iterable[bytes]:
    """Build one frame, or those of each half."""
    size, count = _PUBLISH_HEAD + sum(map(len, heads)) + sum(map(len, bodies)), len(bodies)
    if size <= (frame_max or 1 << 31):
        head = _PUBLISH.pack(size, Command.PUBLISH, VERSION, publisher, count)
        yield b"".join([head, *chain.from_iterable(zip(heads, bodies, strict=True))])
    elif count == 1:
        raise _too_large(len(bodies[0]), frame_max)
    else:
        half = count // 2
        yield from _frames(publisher, heads[:half], bodies[:half], frame_max)
        yield from _frames(publisher, heads[half:], bodies[half:], frame_max)


def command_versions() -> bytes:
    """Encode the commands that this client uses, each with version 1."""
    return array(struct.pack(">HHH", each, VERSION, VERSION) for each in Command)
