"""Messages that are published to streams of real brokers, whose chunks `tests/vectors/stream_chunks.jsonl` keeps.

`tests/vectors/make_stream_chunks.py` publishes them; the tests of `rabbit_chx.streams` read the chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rabbit_chx.fields import Field

EXCHANGE = "a-hash-exchange"
"""Bound to the stream; the default exchange is named ''."""
SECONDS = 1_700_000_000


@dataclass(frozen=True)
class Sent:
    """A message sent over AMQP 0-9-1."""

    body: bytes = b"body"
    routing_key: str = "key"
    headers: tuple[tuple[str, Field], ...] = ()
    properties: dict[str, Any] = field(default_factory=dict)
    """As pika names them."""


# No decimal: every release closes the connection of who publishes one to a stream.
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
    "expiration 0": Sent(properties={"expiration": "0"}),
}
FROM_0_9_1["default exchange"] = Sent(routing_key="")  # the key is the name of the stream

RAW: dict[str, bytes] = {
    "bytes": b"bytes that are no AMQP",
    "no bytes": b"",
    "a zero byte": b"\x00",
    "JSON": b'{"a": 1}',
}
"""What a client of the stream protocol may store without AMQP 1.0."""
