"""Messages for streams of real brokers.

`tests/vectors/make_stream_chunks.py` publishes them and records their chunks in `tests/vectors/stream_chunks.jsonl`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pika

from rabbit_chx.mirror.fields import Field
from rabbit_chx.streams.messages.message import row_of

EXCHANGE = "a-hash-exchange"
"""An exchange that is bound to the stream. Messages to the default exchange have '' instead."""
SECONDS = 1_700_000_000
MOMENT = datetime.fromtimestamp(SECONDS, UTC)


@dataclass(slots=True)
class Row:
    """The columns of a message; None means not set."""

    body: bytes | None = None
    routing_key: str | None = None
    exchange: str | None = None
    headers: dict[str, str | None] = field(default_factory=dict)
    message_id: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    reply_to: str | None = None
    type: str | None = None
    app_id: str | None = None
    user_id: str | None = None
    expiration: str | None = None
    priority: int | None = None
    delivery_mode: int | None = None
    timestamp: datetime | None = None


def decode(data: bytes, stream: str, offset: int) -> Row:
    """Decode one message to its columns."""
    return Row(**row_of(data, stream, offset))


@dataclass(frozen=True)
class Sent:
    """A message sent over AMQP 0-9-1."""

    body: bytes = b"body"
    routing_key: str = "key"
    headers: tuple[tuple[str, Field], ...] = ()
    properties: dict[str, Any] = field(default_factory=dict)
    """Properties, with the names that pika uses."""


# Without a decimal: every release closes the connection of a publisher that sends one to a stream.
HEADERS = {
    "text": Field("S", "käse".encode()),
    "empty text": Field("S", b""),
    "long text": Field("S", b"x" * 300),
    "text that is not UTF-8": Field("S", b"\xff\xfe"),
    "binary": Field("x", b"abc"),
    "binary that is not UTF-8": Field("x", b"\x00\xff"),
    "true": Field("t", True),
    "false": Field("t", False),
    "null": Field("V"),
    "byte": Field("b", -5),
    "unsigned byte": Field("B", 200),
    "short": Field("s", -300),
    "unsigned short": Field("u", 60_000),
    "int": Field("I", -70_000),
    "unsigned int": Field("i", 4_000_000_000),
    "long": Field("l", -5_000_000_000),
    "small long": Field("l", 5),
    "float": Field("f", 0.5),
    "double": Field("d", 0.1),
    "timestamp": Field("T", SECONDS),
    "array": Field("A", (Field("I", 1), Field("S", b"two"), Field("t", True))),
    "empty array": Field("A", ()),
    "table": Field("F", (("a", Field("I", 1)), ("b", Field("F", (("c", Field("S", b"d")),))))),
    "empty table": Field("F", ()),
}
PROPERTIES: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "correlation",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "id-1",
    "timestamp": SECONDS,
    "type": "kind",
    "user_id": "guest",
    "app_id": "app",
}

FROM_0_9_1 = {
    "plain": Sent(),
    "empty body": Sent(body=b""),
    "body of 300 bytes": Sent(body=bytes(range(256)) + b"x" * 44),
    "empty key": Sent(routing_key=""),
    "long key": Sent(routing_key="k" * 255),
    "every property": Sent(properties=PROPERTIES),
    **{f"property {name}": Sent(properties={name: value}) for name, value in PROPERTIES.items()},
    "transient": Sent(properties={"delivery_mode": 1}),
    **{f"header {name}": Sent(headers=((name, value),)) for name, value in HEADERS.items()},
    "every header": Sent(headers=tuple(HEADERS.items()), properties=PROPERTIES),
    "header x-one": Sent(headers=(("x-one", Field("S", b"x")),)),
    "header x-routing-key": Sent(headers=(("x-routing-key", Field("S", b"false")),)),
    "header CC": Sent(headers=(("CC", Field("A", (Field("S", b"other"),))),)),
    "a numeric message id": Sent(properties={"message_id": "5", "correlation_id": "6"}),
    "reply to a name to be encoded": Sent(properties={"reply_to": "a/b %41 ü"}),
    "reply to an address": Sent(properties={"reply_to": "/queues/a%20b"}),
    "expiration 0": Sent(properties={"expiration": "0"}),
}
FROM_0_9_1["default exchange"] = Sent(routing_key="")  # the routing key is the name of the stream

RAW: dict[str, bytes] = {
    "bytes": b"bytes that are no AMQP",
    "no bytes": b"",
    "a zero byte": b"\x00",
    "JSON": b'{"a": 1}',
}
"""Messages of a stream client that are not AMQP 1.0."""

TEXTS = {
    "text": "käse",
    "empty text": "",
    "long text": "x" * 300,
    "text that is not UTF-8": "//4=",
    "binary": "YWJj",
    "binary that is not UTF-8": "AP8=",
    "true": "true",
    "false": "false",
    "null": None,
    "byte": "-5",
    "unsigned byte": "200",
    "short": "-300",
    "unsigned short": "60000",
    "int": "-70000",
    "unsigned int": "4000000000",
    "long": "-5000000000",
    "small long": "5",
    "float": "0.5",
    "double": "0.1",
    "timestamp": "2023-11-14T22:13:20Z",
    "x-one": "x",
}
"""The headers that streams store, as text. No release stores arrays and tables."""


def expected_of(name: str, release: str, stream: str) -> Row:
    """The message as read from this stream of this release."""
    sent = FROM_0_9_1[name]
    old = release == "3.10"
    properties = {"delivery_mode": None if old else 1} | sent.properties
    if "timestamp" in properties:
        properties["timestamp"] = MOMENT
    headers = {header: TEXTS[header] for header, _ in sent.headers if header in TEXTS}
    if name == "header CC" and not old:
        headers = {"x-cc": '["other"]'}
    if name == "header x-routing-key" and old:
        headers = {"x-routing-key": "false"}
    if name == "reply to an address" and release != "4.3":
        properties["reply_to"] = "a b"  # 4.3 stores queue names as addresses, so an address is ambiguous
    exchange, key = (EXCHANGE, sent.routing_key) if name != "default exchange" else ("", stream)
    return Row(sent.body, key, exchange, headers, **properties)


class Properties(pika.BasicProperties):
    """Properties with headers of any type: pika encodes only some types."""

    def __init__(self, sent: Sent) -> None:
        super().__init__(**sent.properties, headers={} if sent.headers else None)
        self.fields = sent.headers

    def encode(self) -> list[bytes]:
        # Replace the length 0 by which pika encodes an empty table.
        flags, *pieces = super().encode()
        if not self.fields:
            return [flags, *pieces]
        at = pieces.index(bytes(4))
        pieces[at] = table(self.fields)
        return [flags, *pieces]


def table(entries: Iterable[tuple[str, Field]]) -> bytes:
    return sized(
        b"".join(bytes([len(name.encode())]) + name.encode() + tagged(value) for name, value in entries)
    )


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


NUMBERS = {
    "b": ">b",
    "B": ">B",
    "s": ">h",
    "u": ">H",
    "I": ">i",
    "i": ">I",
    "l": ">q",
    "L": ">q",
    "f": ">f",
    "d": ">d",
    "T": ">Q",
}


def tagged(value: Field) -> bytes:
    tag = value.tag.encode()
    match value.tag:
        case "V":
            return tag
        case "t":
            return tag + bytes([value.value])
        case "S" | "x":
            return tag + sized(value.value)
        case "D":
            return tag + struct.pack(">Bi", *value.value)
        case "A":
            return tag + sized(b"".join(map(tagged, value.value)))
        case "F":
            return tag + table(value.value)
    return tag + struct.pack(NUMBERS[value.tag], value.value)
