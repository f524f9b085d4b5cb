"""Frames made in bulk against the ones that pika marshals, and the checks before the wire."""

from __future__ import annotations

import pika
import pytest
from hypothesis import given, strategies as st
from pika import frame, spec

from rabbit_chx.errors import InvalidValue
from rabbit_chx.publishing import Publisher
from rabbit_chx.publishing.connection import FRAME_OVERHEAD, encode
from rabbit_chx.publishing.messages import OutgoingMessage
from rabbit_chx.publishing.properties import encode_properties
from tests.amqp_server import AmqpServer, received

FRAME_MAX = 131_072


def message(exchange: bytes, key: bytes, properties: bytes, body: bytes) -> OutgoingMessage:
    return OutgoingMessage(0, exchange, key, properties, body)


def as_pika_sends_it(sent: OutgoingMessage, frame_max: int) -> bytes:
    properties = pika.BasicProperties()
    properties.decode(sent.properties)
    method = spec.Basic.Publish(
        exchange=sent.exchange.decode(), routing_key=sent.routing_key.decode(), mandatory=True
    )
    pieces = [frame.Method(1, method).marshal(), frame.Header(1, len(sent.body), properties).marshal()]
    step = frame_max - FRAME_OVERHEAD
    pieces += [frame.Body(1, sent.body[at : at + step]).marshal() for at in range(0, len(sent.body), step)]
    return b"".join(pieces)


shortstr = st.text(max_size=60).map(str.encode).filter(lambda text: len(text) <= 255)
messages = st.builds(
    message,
    st.sampled_from([b"", b"orders", "é".encode() * 127]),
    shortstr,
    st.sampled_from(
        [
            encode_properties({}, frame_max=FRAME_MAX),
            encode_properties({"message_id": "m", "headers": {"a": 1, "b": ["x"]}}, frame_max=FRAME_MAX),
        ]
    ),
    st.binary(max_size=40),
)


@given(st.lists(messages, max_size=8), st.sampled_from([8 + 1, 8 + 7, 4096, FRAME_MAX]))
def test_a_batch_is_byte_for_byte_what_pika_would_send(batch: list[OutgoingMessage], frame_max: int) -> None:
    assert encode(batch, frame_max=frame_max) == b"".join(as_pika_sends_it(one, frame_max) for one in batch)


def test_headers_that_just_fit_into_one_frame_are_accepted() -> None:
    room = FRAME_MAX - FRAME_OVERHEAD - 12
    empty = len(encode_properties({"headers": {"a": ""}}, frame_max=FRAME_MAX))
    assert len(encode_properties({"headers": {"a": "x" * (room - empty)}}, frame_max=FRAME_MAX)) == room
    with pytest.raises(InvalidValue, match="one frame"):
        encode_properties({"headers": {"a": "x" * (room - empty + 1)}}, frame_max=FRAME_MAX)


def test_default_properties_that_do_not_fit_into_a_negotiated_frame_are_refused() -> None:
    large = {"headers": {"a": "x" * 5_000}}
    with (
        AmqpServer(lambda client: list(received(client))) as server,
        Publisher(f"{server.url}?frame_max=4096", "x", properties=large) as publisher,
    ):
        for call in (lambda: publisher.publish(b""), lambda: publisher.publish_many([b""])):
            with pytest.raises(InvalidValue, match="at most 4076 bytes"):
                call()
        assert publisher.totals.published == 0
