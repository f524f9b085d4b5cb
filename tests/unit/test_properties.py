"""Headers of received messages keep every value that a broker can send, also when they are published again."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pika import frame, spec

from rabbit_chx import Field
from rabbit_chx.broker.amqp import connect
from rabbit_chx.broker.properties import Properties, content_header
from tests.amqp_server import AmqpServer
from tests.stream_messages import PROPERTIES

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

FAR = 1_700_000_000_000
"""The current time in milliseconds, which a publisher took for seconds."""
VALUES = {
    "double": (b"d" + struct.pack(">d", 2.75), 2.75),
    "float": (b"f" + struct.pack(">f", 0.5), 0.5),
    "infinity": (b"d" + struct.pack(">d", float("inf")), float("inf")),
    "timestamp": (b"T" + struct.pack(">Q", 1_700_000_000), datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
    "timestamp after 9999": (b"T" + struct.pack(">Q", FAR), Field("T", FAR)),
    "largest timestamp": (b"T" + b"\xff" * 8, Field("T", 2**64 - 1)),
    "long": (b"l" + struct.pack(">q", -5), -5),
    "byte": (b"b\xff", -1),
    "unsigned byte": (b"B\xff", 255),
    "decimal": (b"D\x02" + struct.pack(">i", 150), Decimal("1.50")),
    "text": (b"S" + struct.pack(">I", 5) + b"k\xc3\xa4se", "käse"),
    "text that is not UTF-8": (b"S" + struct.pack(">I", 1) + b"\xff", b"\xff"),
    "array": (b"A" + struct.pack(">I", 11) + b"t\x01d" + struct.pack(">d", 1.5), [True, 1.5]),
    "table": (b"F" + struct.pack(">I", 11) + b"\x01ad" + struct.pack(">d", 1.5), {"a": 1.5}),
}


def header_frame(entries: bytes) -> bytes:
    """A content header with these entries of the headers, a content type and a priority."""
    flags = spec.BasicProperties.FLAG_CONTENT_TYPE | spec.BasicProperties.FLAG_HEADERS
    properties = struct.pack(">H", flags | spec.BasicProperties.FLAG_PRIORITY)
    properties += b"\x04text" + struct.pack(">I", len(entries)) + entries + b"\x07"
    return struct.pack(">BHIHHQ", 2, 1, 12 + len(properties), 60, 0, 1) + properties + b"\xce"


def answer(entries: bytes) -> Callable[[socket.socket], object]:
    """Answer basic.get with a message that has these headers."""
    method = frame.Method(1, spec.Basic.GetOk(1, False, "", "key", 0)).marshal()

    def behave(client: socket.socket) -> None:
        client.sendall(method + header_frame(entries) + frame.Body(1, b"x").marshal())
        client.recv(1 << 16)

    return behave


@pytest.mark.parametrize("name", VALUES)
def test_a_header_is_received_as_it_was_sent(name: str) -> None:
    encoded, value = VALUES[name]
    with AmqpServer(answer(b"\x01h" + encoded)) as server, connect(server.url) as connection:
        _, properties, body = connection.channel().basic_get("q")
        assert properties.headers == {"h": value}
        assert type(properties.headers["h"]) is type(value) or isinstance(value, int)
        assert (properties.content_type, properties.priority, body) == ("text", 7, b"x")


@pytest.mark.parametrize("name", VALUES)
def test_received_headers_are_published_again_without_a_change(name: str) -> None:
    _, value = VALUES[name]
    sent = Properties(**PROPERTIES, headers={"first": 1, "h": value, "last": "x"})
    received = received_from(frame.Header(1, 5, sent).marshal())
    assert received == sent


def received_from(encoded: bytes) -> Any:
    found = content_header(encoded + b"next frame")
    assert found
    assert found[0] == len(encoded)
    return found[1].properties


@pytest.mark.parametrize("headers", [None, {}, {"a": "b", "n": None, "list": [1, {"deep": b"\xff"}]}])
@pytest.mark.parametrize("others", [{}, {"content_encoding": "gzip"}, PROPERTIES])
def test_other_properties_are_those_of_pika(others: dict[str, Any], headers: dict[str, Any] | None) -> None:
    of_pika = pika.BasicProperties(**others, headers=headers)
    encoded = frame.Header(1, 5, of_pika).marshal()
    received = received_from(encoded)
    assert vars(received) == vars(of_pika)
    assert frame.Header(1, 5, received).marshal() == encoded


def test_tables_that_are_nested_too_deep_stay_encoded() -> None:
    entries = b""
    for _ in range(10_000):
        entries = b"\x01aF" + struct.pack(">I", len(entries)) + entries
    value, depth = received_from(header_frame(entries)).headers, 0
    while isinstance(value, dict):
        value, depth = value["a"], depth + 1
    assert isinstance(value, bytes)
    assert depth == 1 + 32  # the headers themselves are a table


@pytest.mark.parametrize("size", [0, 1, 18, 19, 40])
def test_an_incomplete_content_header_is_not_decoded(size: int) -> None:
    assert content_header(header_frame(b"\x01ht\x01" * 5)[:size]) is None
