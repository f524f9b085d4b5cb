"""Frames of the stream protocol as values: what a broker sends, and what it means. Nothing here touches a socket.

`encoding` builds requests. Described in
``deps/rabbitmq_stream/docs/PROTOCOL.adoc`` of rabbitmq-server; checked on 3.10.8, 4.0.5 and 4.3.6.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from rabbit_chx.errors import StreamProblem, StreamUnavailable

SIZE: Final = struct.Struct(">I")
"""The size of a frame, which comes before it."""
VERSION: Final = 1
"""Of all commands that are used here."""
ANSWER: Final = 0x8000
"""The bit of a command that marks its answer."""
_U8: Final = struct.Struct(">B")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_DELIVER: Final = struct.Struct(">HHB")


class Command(IntEnum):
    """The commands of the protocol that are used here."""

    DECLARE_PUBLISHER = 0x01
    PUBLISH = 0x02
    PUBLISH_CONFIRM = 0x03
    PUBLISH_ERROR = 0x04
    QUERY_PUBLISHER_SEQUENCE = 0x05
    DELETE_PUBLISHER = 0x06
    SUBSCRIBE = 0x07
    DELIVER = 0x08
    CREDIT = 0x09
    STORE_OFFSET = 0x0A
    QUERY_OFFSET = 0x0B
    UNSUBSCRIBE = 0x0C
    CREATE = 0x0D
    DELETE = 0x0E
    METADATA = 0x0F
    METADATA_UPDATE = 0x10
    PEER_PROPERTIES = 0x11
    SASL_HANDSHAKE = 0x12
    SASL_AUTHENTICATE = 0x13
    TUNE = 0x14
    OPEN = 0x15
    CLOSE = 0x16
    HEARTBEAT = 0x17
    ROUTE = 0x18
    PARTITIONS = 0x19
    EXCHANGE_COMMAND_VERSIONS = 0x1B
    STREAM_STATS = 0x1C
    CREATE_SUPER_STREAM = 0x1D
    DELETE_SUPER_STREAM = 0x1E

    @property
    def title(self) -> str:
        """The name in the protocol's document."""
        return self.name.title().replace("_", "")


OK: Final = 1
_REASONS: Final[Mapping[int, tuple[StreamProblem, str]]] = {
    2: ("no such stream", "the stream does not exist"),
    3: ("refused", "the subscription exists already"),
    4: ("refused", "the subscription does not exist"),
    5: ("already exists", "the stream, or a queue of this name, exists already"),
    6: ("not available", "the stream is not available on this node"),
    7: ("login", "the broker does not offer this SASL mechanism"),
    8: ("login", "the broker rejected the user name or password"),
    9: ("login", "the broker could not read the user name or password"),
    10: ("login", "the broker asks for another SASL step"),
    11: ("login", "the user may only connect from localhost"),
    12: ("virtual host", "the virtual host does not exist, or the user has no permission in it"),
    13: ("unsupported", "the broker does not know the frame"),
    14: ("frame too large", "the frame is larger than the agreed maximum"),
    15: ("refused", "the broker failed; its log says why"),
    16: ("permission", "the user lacks a permission"),
    17: ("refused", "the broker does not accept the arguments, or a precondition is not met"),
    18: ("refused", "the publisher does not exist"),
    19: ("refused", "no offset is stored"),
}
NO_OFFSET: Final = 19


def reason(code: int) -> tuple[StreamProblem, str]:
    """Explain a response code of the broker."""
    return _REASONS.get(code, ("refused", f"the broker answered with the unknown code {code}"))


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request. ``code`` is None where the command has none."""

    command: Command
    correlation: int
    code: int | None
    fields: Fields


@dataclass(frozen=True, slots=True)
class Delivery:
    """A chunk, with its header of 48 bytes."""

    subscription: int
    chunk: memoryview


@dataclass(frozen=True, slots=True)
class Confirms:
    """Messages that are stored, or known from before."""

    publisher: int
    publishing_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refusals:
    """Messages that are not stored, with the reasons as response codes."""

    publisher: int
    codes: dict[int, int]


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """A stream was deleted or moved: its publishers and subscriptions on this connection are gone."""

    code: int
    stream: str


@dataclass(frozen=True, slots=True)
class CreditRefused:
    """A credit for a subscription that does not exist."""

    code: int
    subscription: int


@dataclass(frozen=True, slots=True)
class Tune:
    """The limits that the broker proposes; 0 is none."""

    frame_max: int
    heartbeat: int


@dataclass(frozen=True, slots=True)
class Close:
    """The broker closes the connection."""

    correlation: int
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life."""


Frame: TypeAlias = (
    Response | Delivery | Confirms | Refusals | MetadataUpdate | CreditRefused | Tune | Close | Heartbeat
)


class Fields:
    """The fields of a frame, read one after the other."""

    __slots__ = ("_at", "_frame", "title")

    def __init__(self, frame: memoryview, title: str = "the frame") -> None:
        self._frame = frame
        self._at = 0
        self.title: str = title

    def number(self, kind: struct.Struct) -> int:
        """Read one number."""
        if self._at + kind.size > len(self._frame):
            raise malformed(f"{self.title} is truncated")
        (found,) = kind.unpack_from(self._frame, self._at)
        self._at += kind.size
        return int(found)

    def u8(self) -> int:
        """Read an unsigned integer of 8 bits."""
        return self.number(_U8)

    def u16(self) -> int:
        """Read an unsigned integer of 16 bits."""
        return self.number(_U16)

    def u32(self) -> int:
        """Read an unsigned integer of 32 bits."""
        return self.number(_U32)

    def u64(self) -> int:
        """Read an unsigned integer of 64 bits."""
        return self.number(_U64)

    def i64(self) -> int:
        """Read a signed integer of 64 bits."""
        return self.number(_I64)

    def string(self) -> str:
        """Read text; its absence is empty text."""
        size = self.number(_I16)
        try:
            return str(self._take(max(size, 0)), "utf-8")
        except UnicodeDecodeError:
            raise malformed(f"a text in {self.title} is not UTF-8") from None

    def count(self) -> int:
        """Read the length of an array; each of its elements has at least one byte."""
        number = self.number(_I32)
        if number > len(self._frame) - self._at:
            raise malformed(f"{self.title} is truncated: it has no room for {number} elements")
        return max(number, 0)

    def strings(self) -> list[str]:
        """Read an array of strings."""
        return [self.string() for _ in range(self.count())]

    def string_map(self) -> dict[str, str]:
        """Read an array of pairs of strings."""
        return {self.string(): self.string() for _ in range(self.count())}

    def numbers(self) -> tuple[int, ...]:
        """Read an array of unsigned integers of 64 bits."""
        count = self.count()
        return struct.unpack(f">{count}Q", self._take(count * _U64.size))

    def rest(self) -> memoryview:
        """The bytes that are left."""
        return self._frame[self._at :]

    def _take(self, size: int) -> memoryview:
        start, self._at = self._at, self._at + size
        if self._at > len(self._frame):
            raise malformed(f"{self.title} is truncated")
        return self._frame[start : self._at]


_WITHOUT_CODE: Final = {Command.METADATA}
"""The only answer without a response code: each stream in it has its own."""


def parse(frame: memoryview) -> Frame:
    """Parse a frame, given without its size.

    Raises:
        StreamUnavailable: the frame is unknown or malformed.
    """
    if len(frame) >= _DELIVER.size:
        key, version, subscription = _DELIVER.unpack_from(frame)
        if key == Command.DELIVER and version == VERSION:
            return Delivery(subscription, frame[_DELIVER.size :])
    fields = Fields(frame)
    key, version = fields.u16(), fields.u16()
    try:
        command = Command(key & ~ANSWER)
    except ValueError:
        raise malformed(f"its command 0x{key:04x} is unknown") from None
    if version != VERSION:
        raise malformed(f"{command.title} has the unknown version {version}")
    fields.title = command.title
    return _answer(command, fields) if key & ANSWER else _pushed(command, fields)


def _answer(command: Command, fields: Fields) -> Frame:
    if command is Command.CREDIT:
        return CreditRefused(fields.u16(), fields.u8())
    correlation = fields.u32()
    return Response(command, correlation, None if command in _WITHOUT_CODE else fields.u16(), fields)


def _pushed(command: Command, fields: Fields) -> Frame:
    match command:
        case Command.PUBLISH_CONFIRM:
            return Confirms(fields.u8(), fields.numbers())
        case Command.PUBLISH_ERROR:
            publisher = fields.u8()
            return Refusals(publisher, {fields.u64(): fields.u16() for _ in range(fields.count())})
        case Command.METADATA_UPDATE:
            return MetadataUpdate(fields.u16(), fields.string())
        case Command.TUNE:
            return Tune(fields.u32(), fields.u32())
        case Command.CLOSE:
            return Close(fields.u32(), fields.u16(), fields.string())
        case Command.HEARTBEAT:
            return Heartbeat()
        case Command.ROUTE | Command.PARTITIONS:  # 3.10 does not mark these two as answers
            return _answer(command, fields)
        case _:
            raise malformed(f"{command.title} is no command of a broker")


def malformed(detail: str) -> StreamUnavailable:
    """Make the error for a frame that breaks the protocol."""
    return StreamUnavailable(f"the broker sent a malformed frame: {detail}", "protocol")


# ---- what answers contain


@dataclass(frozen=True, slots=True)
class Node:
    """The host and port at which a node of the broker says it can be reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class StreamMetadata:
    """Which nodes have a stream."""

    stream: str
    leader: Node | None
    """None while no leader is elected."""
    replicas: tuple[Node, ...]
    code: int = OK

    @property
    def exists(self) -> bool:
        """Whether there is a stream of this name; another type of queue is none."""
        return reason(self.code)[0] != "no such stream"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes from which the stream can be read, the replicas first: they have less to do."""
        return (*self.replicas, *((self.leader,) if self.leader else ()))


@dataclass(frozen=True, slots=True)
class StreamStats:
    """The ends of a stream. None: the stream is empty, or the release does not say."""

    first_chunk_id: int | None
    committed_chunk_id: int | None
    """The first offset of the last committed chunk; from 3.11."""
    committed_offset: int | None
    """The last committed offset; from 4.3."""


def metadata(fields: Fields) -> dict[str, StreamMetadata]:
    """Read the answer to `Metadata`."""
    nodes = {}
    for _ in range(fields.count()):
        number = fields.u16()
        nodes[number] = Node(fields.string(), fields.u32())
    return {each.stream: each for each in (_of_stream(fields, nodes) for _ in range(fields.count()))}


def _of_stream(fields: Fields, nodes: Mapping[int, Node]) -> StreamMetadata:
    stream, code, leader = fields.string(), fields.u16(), nodes.get(fields.u16())
    replicas = [fields.u16() for _ in range(fields.count())]
    return StreamMetadata(stream, leader, tuple(nodes[each] for each in replicas if each in nodes), code)


def stats(fields: Fields) -> StreamStats:
    """Read the answer to `StreamStats`."""
    found = {fields.string(): fields.i64() for _ in range(fields.count())}
    known = {name: value for name, value in found.items() if value >= 0}
    return StreamStats(
        *(known.get(each) for each in ("first_chunk_id", "committed_chunk_id", "committed_offset"))
    )


def commands(fields: Fields) -> frozenset[int]:
    """Read the answer to `ExchangeCommandVersions`: the commands of which the broker has version 1."""
    found = set()
    for _ in range(fields.count()):
        key, least, most = fields.u16(), fields.u16(), fields.u16()
        if least <= VERSION <= most:
            found.add(key)
    return frozenset(found)
