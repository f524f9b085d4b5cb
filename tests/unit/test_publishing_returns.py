"""Which message the broker has returned: it names exchange and key, and sends properties and body back."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from pika import frame, spec

from rabbit_chx.publishing import Failure, Outcome, Publisher, Timeouts
from rabbit_chx.publishing.connection import encode
from rabbit_chx.publishing.messages import OutgoingMessage
from rabbit_chx.publishing.properties import encode_properties
from rabbit_chx.publishing.window import Window, find_returned
from tests.amqp_server import AmqpServer, received

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from typing import Any

FRAME_MAX = 131_072
MOMENT = datetime(2026, 1, 2, tzinfo=UTC)


def sent(row: int, properties: Mapping[str, Any], *, key: bytes = b"k", body: bytes = b"") -> OutgoingMessage:
    return OutgoingMessage(row, b"x", key, encode_properties(properties, frame_max=FRAME_MAX), body)


def look_up(
    messages: list[OutgoingMessage], *returns: Mapping[str, Any], key: str | bytes = "k", body: bytes = b""
) -> list[int | None]:
    """The rows that are found for messages that come back with these properties."""
    window = Window()
    window.sent(messages)
    method = SimpleNamespace(exchange="x", routing_key=key)
    rows: list[int | None] = []
    for properties in returns:
        found = find_returned(window, method, encode_properties(properties, frame_max=FRAME_MAX), body)
        if found is not None:
            found.returned = True
        rows.append(None if found is None else found.row)
    return rows


def test_the_message_with_identical_properties_is_preferred() -> None:
    messages = [sent(0, {}), sent(1, {"headers": {"a": 1}}), sent(2, {"headers": {"a": 2}})]
    assert look_up(messages, {"headers": {"a": 2}}) == [2]
    messages = [sent(0, {}), sent(1, {"headers": {"a": 1}})]
    assert look_up(messages, {}) == [0]


def test_a_message_whose_properties_the_broker_changed_is_recognised() -> None:
    def messages() -> list[OutgoingMessage]:
        return [sent(0, {"headers": {"a": 1}}), sent(1, {"headers": {"a": 2, "BCC": ["q"]}})]

    assert look_up(messages(), {"headers": {"a": 2}}) == [1]
    assert look_up(messages(), {"headers": {"a": 2, "x-stamp": 7}, "timestamp": MOMENT}) == [1]
    assert look_up(messages(), {"headers": {"a": 3}}) == [0]  # overwritten, so only the rest is compared


def test_another_property_makes_another_message_even_if_the_broker_changed_the_headers() -> None:
    common = {
        "content_type": "text/plain",
        "priority": 3,
        "timestamp": MOMENT,
        "headers": {"a": 1, "BCC": ["q"]},
    }
    messages = [sent(0, {**common, "type": "t"}), sent(1, {**common, "type": "u"})]
    assert look_up(messages, {**common, "type": "u", "headers": {"a": 1}}) == [1]


def test_headers_that_differ_in_a_fraction_are_told_apart() -> None:
    messages = [sent(row, {"headers": {"a": a, "BCC": ["q"]}}) for row, a in enumerate((1.2, 1.7))]
    assert look_up(messages, {"headers": {"a": 1.7, "BCC": ["q"]}}) == [1]
    messages = [sent(row, {"headers": {"a": a, "BCC": ["q"]}}) for row, a in enumerate((1.2, 1.7))]
    assert look_up(messages, {"headers": {"a": 1.7}}) == [1]  # the broker has removed BCC


def test_similar_messages_that_are_all_returned_are_all_found() -> None:
    bcc, plain = {"headers": {"a": 1, "BCC": ["q"]}}, {"headers": {"a": 1}}
    messages = [sent(0, bcc), sent(1, plain), sent(2, bcc)]
    assert look_up(messages, plain, plain, plain, plain) == [1, 2, 0, None]
    messages = [sent(0, bcc), sent(1, plain), sent(2, {"headers": {"a": 2}})]
    assert look_up(messages, plain, plain) == [1, 0]


def test_another_key_or_body_is_another_message() -> None:
    messages = [sent(0, {}, body=b"b")]
    assert look_up(messages, {}, key="other", body=b"b") == [None]
    assert look_up(messages, {}, body=b"c") == [None]


# -- with a server -------------------------------------------------------------------------------------------


def answer(returned: OutgoingMessage, last: int) -> bytes:
    """A return of one message, as a server sends it, and an ack of all messages up to a number."""
    frames = encode([returned], frame_max=FRAME_MAX)
    size, _ = frame.decode_frame(frames)
    method = spec.Basic.Return(312, "NO_ROUTE", returned.exchange, returned.routing_key)
    ack = spec.Basic.Ack(last, multiple=True)
    return frame.Method(1, method).marshal() + frames[size:] + frame.Method(1, ack).marshal()


@pytest.mark.parametrize(
    ("keys", "headers"),
    [
        ([b"\xff", b"\xfe"], [{}, {}]),
        ([b"k", b"k"], [{"a": 1.2}, {"a": 1.7}]),
        ([b"k", b"k"], [{"a": 1e300}, {"a": -1e300}]),
    ],
    ids=["keys that are not UTF-8", "fractions", "doubles beyond 64 bits"],
)
def test_a_message_that_pika_does_not_decode_exactly_is_reported_when_it_comes_back(
    keys: list[bytes], headers: list[Mapping[str, Any]]
) -> None:
    messages = [
        sent(row, {"headers": own}, key=key) for row, (key, own) in enumerate(zip(keys, headers, strict=True))
    ]

    def behave(client: socket.socket) -> None:
        client.sendall(answer(messages[1], 2))
        for _ in received(client):  # it is sent again
            client.sendall(answer(messages[1], 3))

    timeouts = Timeouts(connect=60, reconnect=60, retry=0.001, confirm=60)
    failures: list[Failure] = []
    with (
        AmqpServer(behave) as server,
        Publisher(server.url, "x", timeouts=timeouts) as publisher,
        publisher.bulk(on_failure=failures.append) as bulk,
    ):
        bulk.add_many([b"", b""], keys, headers=headers)
    assert [(failure.row, failure.outcome) for failure in failures] == [(1, Outcome.RETURNED)]
    assert publisher.totals.connections == 1
