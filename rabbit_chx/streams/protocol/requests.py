"""Requests of the stream protocol as bytes, without I/O.

A frame consists of its size (4 bytes), the command (2 bytes), the version of the command (2 bytes) and the fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.streams.protocol.answers import ANSWER, OK, SIZE, VERSION, Command

MAX_NAME: Final = 255
"""The maximum size in bytes of the name of a stream or publisher."""
MAX_CREDIT: Final = 65_535
"""The maximum number of chunks that a subscription may request ahead."""

_COMMAND: Final = struct.Struct(">HH")
_REQUEST: Final = struct.Struct(">HHI")
_U8: Final = struct.Struct(">B")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_MESSAGE: Final = struct.Struct(">QI")
_BATCH: Final = struct.Struct(">QBHII")
_IS_BATCH: Final = 0x80


def string(text: str | None) -> bytes:
    """Encode a string or null."""
    if text is None:
        return _I16.pack(-1)
    data = text.encode()
    return _I16.pack(len(data)) + data


def array(elements: Iterable[bytes]) -> bytes:
    """Encode an array of encoded elements."""
    parts = list(elements)
    return _I32.pack(len(parts)) + b"".join(parts)


def string_map(pairs: Mapping[str, str]) -> bytes:
    """Encode an array of pairs of strings."""
    return array(string(key) + string(value) for key, value in pairs.items())


def name(text: str, what: str = "stream name") -> bytes:
    """Encode the name of a stream or publisher."""
    try:
        data = text.encode()
    except (AttributeError, UnicodeEncodeError):
        data = b""
    if not 0 < len(data) <= MAX_NAME:
        raise InvalidValue(what, text, f"text of 1 to {MAX_NAME} bytes in UTF-8")
    return _I16.pack(len(data)) + data


def binary(data: bytes) -> bytes:
    """Encode bytes with their length."""
    return _I32.pack(len(data)) + data


def u8(number: int) -> bytes:
    """Encode an unsigned integer of 8 bits."""
    return _U8.pack(number)


def u16(number: int) -> bytes:
    """Encode an unsigned integer of 16 bits."""
    return _U16.pack(number)


def u64(number: int) -> bytes:
    """Encode an unsigned integer of 64 bits."""
    return _U64.pack(number)


def request(command: Command, correlation: int, *fields: bytes) -> bytes:
    """Build the frame of a command that the broker answers."""
    return _framed(_REQUEST.pack(command, VERSION, correlation), fields)


def one_way(command: Command, *fields: bytes) -> bytes:
    """Build the frame of a command without an answer."""
    return _framed(_COMMAND.pack(command, VERSION), fields)


def _framed(head: bytes, fields: Iterable[bytes]) -> bytes:
    body = b"".join((head, *fields))
    return SIZE.pack(len(body)) + body


def tuned(frame_max: int, heartbeat: int) -> bytes:
    """Build the answer to `Tune`."""
    return one_way(Command.TUNE, _U32.pack(frame_max), _U32.pack(heartbeat))


def close_answer(correlation: int) -> bytes:
    """Build the answer to `Close`."""
    return _framed(_REQUEST.pack(Command.CLOSE | ANSWER, VERSION, correlation), [_U16.pack(OK)])


def consumer_update_answer(correlation: int, start: OffsetSpec | None) -> bytes:
    """Build the answer to `ConsumerUpdate`: where an active consumer starts, or None for a passive one."""
    position = _U16.pack(0) if start is None else start.encoded()
    head = _REQUEST.pack(Command.CONSUMER_UPDATE | ANSWER, VERSION, correlation)
    return _framed(head, [_U16.pack(OK), position])


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
        try:
            return _U16.pack(self.kind) + self._value()
        except struct.error:
            raise InvalidValue(
                "start of a subscription", self.value, "an integer from 0 to 2^63 - 1"
            ) from None

    def _value(self) -> bytes:
        match self.kind:
            case self.OFFSET:
                return _U64.pack(self.value)
            case self.TIMESTAMP:
                return _I64.pack(self.value)
            case _:
                return b""


Batch: TypeAlias = tuple[int, int, int, bytes]
"""Messages that the stream stores as one entry: compression (0: none, 1: gzip, 2: snappy, 3: lz4, 4: zstd), number of messages,
size before compression, and the data. In the data, each message follows its size (4 bytes)."""


def sub_batch(messages: Sequence[bytes], *, compression: int = 0, data: bytes | None = None) -> Batch:
    """Combine messages into one entry; ``data`` is their compressed form."""
    plain = b"".join(part for message in messages for part in (_U32.pack(len(message)), message))
    return compression, len(messages), len(plain), plain if data is None else data


_PUBLISH_HEAD: Final = _COMMAND.size + _U8.size + _I32.size


def max_message(frame_max: int) -> int:
    """Return the size of the largest message that fits into a frame."""
    return frame_max - _PUBLISH_HEAD - _MESSAGE.size


def publish_frames(
    publisher: int, messages: Iterable[tuple[int, bytes | Batch]], frame_max: int
) -> Iterable[bytes]:
    """Build as few frames as the maximum size allows to publish messages, each with its publishing id.

    Raises:
        StreamUnavailable: a single message exceeds the maximum size of a frame.
    """
    limit = frame_max or 1 << 31
    parts: list[bytes] = []
    count, size = 0, _PUBLISH_HEAD
    for number, message in messages:
        prefix, body = _entry(number, message)
        length = len(prefix) + len(body)
        if size + length > limit and count:
            yield _published(publisher, count, parts)
            parts, count, size = [], 0, _PUBLISH_HEAD
        if size + length > limit:
            raise StreamUnavailable(
                f"a message of {len(body)} bytes does not fit into a frame: the agreed maximum is {limit} bytes "
                "(stream.frame_max in rabbitmq.conf)",
                "frame too large",
            )
        parts += (prefix, body)
        count += 1
        size += length
    if count:
        yield _published(publisher, count, parts)


def _entry(number: int, message: bytes | Batch) -> tuple[bytes, bytes]:
    if isinstance(message, tuple):
        compression, count, plain, data = message
        return _BATCH.pack(number, _IS_BATCH | compression << 4, count, plain, len(data)), data
    return _MESSAGE.pack(number, len(message)), message


def _published(publisher: int, count: int, parts: list[bytes]) -> bytes:
    return one_way(Command.PUBLISH, _U8.pack(publisher), _I32.pack(count), *parts)


def command_versions() -> bytes:
    """Encode the commands that this client uses, each with version 1."""
    return array(struct.pack(">HHH", each, VERSION, VERSION) for each in Command)
