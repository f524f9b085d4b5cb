"""AMQP 1.0 messages for `make_stream_chunks`, which Qpid Proton encodes."""

from __future__ import annotations

import uuid
from typing import Any

from proton import Message, byte, char, float32, int32, short, symbol, timestamp, ubyte, uint, ulong, ushort

from tests.stream_messages import SECONDS


def _message(body: Any = b"body", **parts: Any) -> Message:
    made = Message(body=body, inferred=True)
    for name, value in parts.items():
        setattr(made, name, value)
    return made


APPLICATION_PROPERTIES = {
    "text": "käse",
    "long text": "x" * 300,
    "symbol": symbol("sym"),
    "binary": b"\x00\xff",
    "true": True,
    "false": False,
    "null": None,
    "byte": byte(-5),
    "ubyte": ubyte(200),
    "short": short(-300),
    "ushort": ushort(60_000),
    "int": int32(-70_000),
    "small int": int32(5),
    "uint": uint(4_000_000_000),
    "small uint": uint(5),
    "uint 0": uint(0),
    "long": -5_000_000_000,
    "small long": 5,
    "ulong": ulong(2**64 - 1),
    "small ulong": ulong(5),
    "ulong 0": ulong(0),
    "float": float32(0.1),
    "double": 0.1,
    "timestamp": timestamp(SECONDS * 1000 + 123),
    "uuid": uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"),
    "char": char("ä"),
}
FROM_1_0: dict[str, Message] = {
    "data": _message(),
    "empty data": _message(b""),
    "long data": _message(b"x" * 300),
    "value text": _message("käse"),
    "value null": _message(None),
    "value number": _message(5),
    "value map": _message({"a": 1, "b": [True, None]}),
    "value binary": Message(body=b"\x00\xff", inferred=False),
    "sequence": _message([1, "two"]),
    "every property": _message(
        id="id-1",
        user_id=b"guest",
        address="somewhere",
        subject="kind",
        reply_to="answers",
        correlation_id="correlation",
        content_type="application/json",
        content_encoding="gzip",
        expiry_time=SECONDS + 60,
        creation_time=SECONDS,
        group_id="app",
        group_sequence=3,
        reply_to_group_id="group",
        durable=True,
        priority=7,
        ttl=60,
        first_acquirer=True,
        delivery_count=2,
    ),
    "numeric ids": _message(id=ulong(5), correlation_id=ulong(6)),
    "uuid ids": _message(id=APPLICATION_PROPERTIES["uuid"], correlation_id=APPLICATION_PROPERTIES["uuid"]),
    "binary ids": _message(id=b"\x00\xff", correlation_id=b"\x00\xff"),
    "application properties": _message(properties=APPLICATION_PROPERTIES),
    "annotations of RabbitMQ": _message(
        annotations={symbol("x-text"): "a", symbol("x-list"): [1, "b"], symbol("x-map"): {"c": 1}}
    ),
    "annotations": _message(
        annotations={
            symbol("x-text"): "a",
            symbol("x-list"): [1, "b"],
            symbol("x-map"): {"c": 1},
            symbol("own"): "d",
        },
        instructions={symbol("x-delivery"): "gone"},
    ),
}
_NEVER = frozenset({"annotations", "value null"})
REFUSED = {"3.10": _NEVER | {"numeric ids"}, "4.0": _NEVER, "4.3": _NEVER}
"""Messages that brokers refuse over AMQP 1.0 by closing the link or the connection. Stream clients can store them."""
