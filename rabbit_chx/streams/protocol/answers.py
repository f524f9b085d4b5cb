"""The frames that a broker sends, as values, without I/O. `requests` builds requests.

``deps/rabbitmq_stream/docs/PROTOCOL.adoc`` in rabbitmq-server describes the protocol. Checked on 3.10.8, 4.0.5 and 4.3.6.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from rabbit_chx.errors import StreamProblem, StreamUnavailable

SIZE: Final = struct.Struct(">I")
"""The size of a frame, which precedes the frame."""
VERSION: Final = 1
"""The version of every command that this client uses."""
ANSWER: Final = 0x8000
"""This bit marks a command as an answer."""
U8: Final = struct.Struct(">B")
U16: Final = struct.Struct(">H")
U32: Final = struct.Struct(">I")
U64: Final = struct.Struct(">Q")
I16: Final = struct.Struct(">h")
I32: Final = struct.Struct(">i")
I64: Final = struct.Struct(">q")
_DELIVER: Final = struct.Struct(">HHB")


class Command(IntEnum):
    """The commands that this client uses."""

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
    CONSUMER_UPDATE = 0x1A
    EXCHANGE_COMMAND_VERSIONS = 0x1B
    STREAM_STATS = 0x1C
    CREATE_SUPER_STREAM = 0x1D
    DELETE_SUPER_STREAM = 0x1E

    @property
    def title(self) -> str:
        """The name in the protocol document."""
        return self.name.title().replace("_", "")


OK: Final = 1
_REASONS: Final[Mapping[int, tuple[StreamProblem, str]]] = {
    2: ("no such stream", "the stream does not exist"),
    3: ("refused", "the subscription already exists"),
    4: ("refused", "the subscription does not exist"),
    5: ("already exists", "a stream or queue of this name already exists"),
    6: ("not available", "the stream is not available on this node"),
    7: ("login", "the broker does not offer this SASL mechanism"),
    8: ("login", "the broker rejected the user name or password"),
    9: ("login", "the broker could not read the user name or password"),
    10: ("login", "the broker requires another SASL step"),
    11: ("login", "the user may only connect from localhost"),
    12: ("virtual host", "the virtual host does not exist, or the user has no permission in it"),
    13: ("unsupported", "the broker does not support the command"),
    14: ("frame too large", "the frame is larger than the agreed maximum"),
    15: ("refused", "internal error of the broker; see the broker's log"),
    16: ("permission", "the user lacks a permission"),
    17: ("refused", "the broker rejected the arguments, or a precondition failed"),
    18: ("refused", "the publisher does not exist"),
    19: ("refused", "no offset is stored"),
}
NO_OFFSET: Final = 19


def reason(code: int) -> tuple[StreamProblem, str]:
    """Explain a response code of the broker."""
    return _REASONS.get(code, ("refused", f"the broker answered with the unknown code {code}"))


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request. ``code`` is None for `Command.METADATA`, whose answer has no code."""

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
class ConsumerUpdate:
    """The broker makes a single active consumer active or passive, and waits for the answer."""

    correlation: int
    subscription: int
    active: bool


@dataclass(frozen=True, slots=True)
class Confirms:
    """Messages that the broker stored, or dropped as duplicates."""

    publisher: int
    publishing_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refusals:
    """Messages that the broker did not store, at least one: publishing id -> response code."""

    publisher: int
    codes: dict[int, int]


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """A stream was deleted or moved. The broker removed its publishers and subscriptions of this connection."""

    code: int
    stream: str


@dataclass(frozen=True, slots=True)
class Tune:
    """The limits that the broker proposes; 0 means no limit."""

    frame_max: int
    heartbeat: int


@dataclass(frozen=True, slots=True)
class Close:
    """The broker closes the connection."""

    correlation: int
    code: int
    text: str


Pushed: TypeAlias = Confirms | Refusals | ConsumerUpdate | MetadataUpdate | Tune | Close
Frame: TypeAlias = Response | Delivery | Pushed | None
"""None means nothing: a heartbeat, or a refused credit."""


class Fields:
    """Reads the fields of a frame in order."""

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
        return self.number(U8)

    def u16(self) -> int:
        """Read an unsigned integer of 16 bits."""
        return self.number(U16)

    def u32(self) -> int:
        """Read an unsigned integer of 32 bits."""
        return self.number(U32)

    def u64(self) -> int:
        """Read an unsigned integer of 64 bits."""
        return self.number(U64)

    def i64(self) -> int:
        """Read a signed integer of 64 bits."""
        return self.number(I64)

    def string(self) -> str:
        """Read a string. Null becomes an empty string."""
        size = self.number(I16)
        try:
            return str(self._take(max(size, 0)), "utf-8")
        except UnicodeDecodeError:
            raise malformed(f"a string in {self.title} is not UTF-8") from None

    def count(self) -> int:
        """Read the length of an array. Each element has at least one byte, so larger lengths are malformed."""
        number = self.number(I32)
        if number > len(self._frame) - self._at:
            raise malformed(f"{self.title} is truncated, too short for {number} elements")
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
        return struct.unpack(f">{count}Q", self._take(count * U64.size))

    def rest(self) -> memoryview:
        """Return the remaining bytes."""
        return self._frame[self._at :]

    def _take(self, size: int) -> memoryview:
        start, self._at = self._at, self._at + size
        if self._at > len(self._frame):
            raise malformed(f"{self.title} is truncated")
        return self._frame[start : self._at]


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
        raise malformed(f"unknown command 0x{key:04x}") from None
    if version != VERSION:
        raise malformed(f"unknown version {version} of {command.title}")
    fields.title = command.title
    return _answer(command, fields) if key & ANSWER else _pushed(command, fields)


def _answer(command: Command, fields: Fields) -> Frame:
    if command is Command.CREDIT:
        return None  # the broker may have ended the subscription while the credit was on its way
    correlation = fields.u32()
    code = None if command is Command.METADATA else fields.u16()  # in metadata, each stream has one instead
    return Response(command, correlation, code, fields)


def _pushed(command: Command, fields: Fields) -> Frame:
    match command:
        case Command.PUBLISH_CONFIRM:
            return Confirms(fields.u8(), fields.numbers())
        case Command.PUBLISH_ERROR:
            publisher = fields.u8()
            codes = {fields.u64(): fields.u16() for _ in range(fields.count())}
            if not codes:
                raise malformed(f"{command.title} has no message")
            return Refusals(publisher, codes)
        case Command.METADATA_UPDATE:
            return MetadataUpdate(fields.u16(), fields.string())
        case Command.CONSUMER_UPDATE:
            return ConsumerUpdate(fields.u32(), fields.u8(), fields.u8() == 1)
        case Command.TUNE:
            return Tune(fields.u32(), fields.u32())
        case Command.CLOSE:
            return Close(fields.u32(), fields.u16(), fields.string())
        case Command.HEARTBEAT:
            return None
        case Command.ROUTE | Command.PARTITIONS:  # 3.10 does not set the answer bit of these
            return _answer(command, fields)
        case _:
            raise malformed(f"only clients send {command.title}")


def malformed(detail: str) -> StreamUnavailable:
    """Create the error for a malformed frame."""
    return StreamUnavailable(f"the broker sent a malformed frame: {detail}", "protocol")


# ---- contents of answers


@dataclass(frozen=True, slots=True)
class Node:
    """The host and port that a node advertises."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class StreamMetadata:
    """The nodes that have a stream."""

    stream: str
    leader: Node | None
    """None during the election of a leader."""
    replicas: tuple[Node, ...]
    code: int = OK

    @property
    def exists(self) -> bool:
        """Whether the stream exists; False for other types of queue."""
        return reason(self.code)[0] != "no such stream"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes from which the stream can be read."""
        return (*self.replicas, *((self.leader,) if self.leader else ()))


@dataclass(frozen=True, slots=True)
class StreamStats:
    """The ends of a stream. None means that the stream is empty, or that the release does not report the offset."""

    first_chunk_id: int | None
    committed_chunk_id: int | None
    """The first offset of the last committed chunk; requires RabbitMQ 3.11."""
    committed_offset: int | None
    """The last committed offset; requires RabbitMQ 4.3."""
    last_chunk_id: int | None = None
    """The first offset of the last chunk on this node, or -1 without a chunk; the first releases of 3.11 do not report it."""

    def _lacks(self, chunk: int | None) -> bool:
        """Whether the node does not have a committed chunk yet: the leader announces chunks to a replica before it sends them."""
        return chunk is not None and self.last_chunk_id is not None and self.last_chunk_id < chunk

    @property
    def _is_behind(self) -> bool:
        """Whether the node lacks committed chunks."""
        return self._lacks(self.committed_chunk_id)


def metadata(fields: Fields, streams: Iterable[str]) -> dict[str, StreamMetadata]:
    """Read the answer to `Metadata` about these streams."""
    nodes = {}
    for _ in range(fields.count()):
        number = fields.u16()
        nodes[number] = Node(fields.string(), fields.u32())
    found = {}
    for _ in range(fields.count()):
        stream, code, leader = fields.string(), fields.u16(), nodes.get(fields.u16())
        numbers = [fields.u16() for _ in range(fields.count())]
        replicas = tuple(nodes[each] for each in numbers if each in nodes)
        found[stream] = StreamMetadata(stream, leader, replicas, code)
    for stream in streams:
        if stream not in found:
            raise malformed(f"{fields.title} lacks stream {stream!r}")
    return found


def stats(fields: Fields) -> StreamStats:
    """Read the answer to `StreamStats`."""
    found = {fields.string(): fields.i64() for _ in range(fields.count())}
    known = {name: value for name, value in found.items() if value >= 0}
    return StreamStats(
        known.get("first_chunk_id"),
        known.get("committed_chunk_id"),
        known.get("committed_offset"),
        found.get("last_chunk_id"),
    )


def commands(fields: Fields) -> frozenset[int]:
    """Read the answer to `ExchangeCommandVersions` and return the commands that the broker supports in `VERSION`."""
    found = set()
    for _ in range(fields.count()):
        key, least, most = fields.u16(), fields.u16(), fields.u16()
        if least <= VERSION <= most:
            found.add(key)
    return frozenset(found)
