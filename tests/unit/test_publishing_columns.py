"""Columns encoded in one pass, compared with rows one by one, and frames made in bulk, with those of pika; and errors about rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pika
import pytest
from hypothesis import given, strategies as st
from pika import frame, spec

from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.message_fields import ROUTING_HEADERS
from rabbit_chx.publishing import Publisher, batch_columns as columns
from rabbit_chx.publishing.batch_columns import body_column, key_column, property_column
from rabbit_chx.publishing.connection import FRAME_OVERHEAD, encode
from rabbit_chx.publishing.encoder import Encoder
from rabbit_chx.publishing.messages import OutgoingMessage
from rabbit_chx.publishing.properties import encode_properties
from rabbit_chx.streams.messages.encode import encode_message
from rabbit_chx.streams.publishing.encoder import StreamEncoder
from tests.amqp_server import AmqpServer, received
from tests.unit.complaints import complaint

FRAME_MAX = 131_072

text = st.text(max_size=80)
header_values = st.one_of(
    text, st.integers(-(2**40), 2**40), st.booleans(), st.none(), st.lists(text, max_size=2)
)
names = text.filter(lambda name: name not in ROUTING_HEADERS)
tables = st.one_of(
    st.dictionaries(names, text, max_size=4), st.dictionaries(names, header_values, max_size=4), st.none()
)
kinds: dict[str, st.SearchStrategy[Any]] = {
    "headers": tables,
    "message_id": st.one_of(text, st.none()),
    "type": text,
    "priority": st.integers(0, 255),
    "expiration": st.one_of(st.integers(0, 10**6), st.integers(0, 10**6).map(str)),
    "delivery_mode": st.sampled_from([1, 2]),
    "content_type": st.sampled_from(["text/plain", "application/json"]),
}


@st.composite
def batches(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, list[Any]], int]:
    count = draw(st.integers(0, 6))
    varying = draw(st.sets(st.sampled_from(sorted(kinds)), max_size=4))
    constant = draw(st.sets(st.sampled_from(sorted(set(kinds) - varying)), max_size=3))
    return (
        {name: draw(kinds[name]) for name in constant},
        {name: draw(st.lists(kinds[name], min_size=count, max_size=count)) for name in varying},
        count,
    )


@given(batches())
def test_a_batch_of_properties_is_the_same_as_its_rows_one_by_one(batch) -> None:
    constant, varying, count = batch
    rows = [{**constant, **{name: found[row] for name, found in varying.items()}} for row in range(count)]
    expected = [encode_properties(row, frame_max=FRAME_MAX) for row in rows]
    assert property_column(constant, varying, count, frame_max=FRAME_MAX) == expected


def test_text_columns_need_no_closer_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def closer_look(*_: Any) -> None:
        raise AssertionError("these columns are plain")

    monkeypatch.setattr(columns, "by_row", closer_look)
    varying = {"message_id": ["a", "b"], "headers": [{"tenant": "x"}, {"tenant": "é"}]}
    first, second = property_column({"priority": 3}, varying, 2, frame_max=FRAME_MAX)
    assert first != second


def test_equal_properties_are_one_object() -> None:
    # The frames are packed again only if the properties are another object.
    first, second = property_column({"type": "t"}, {}, 2, frame_max=FRAME_MAX)
    assert first is second


@pytest.mark.parametrize(
    ("varying", "what"),
    [
        ({"message_id": ["ok", "x" * 256]}, "property message_id in row 1"),
        ({"message_id": ["ok", 7]}, "property message_id in row 1"),
        ({"headers": [{"a": "b"}, {"CC": "not a list"}]}, "header CC in row 1"),
        ({"headers": [{"a": "b"}, {"n" * 256: "b"}]}, "header name in row 1"),
        ({"headers": [{"a": "b"}, {"a": "x" * FRAME_MAX}]}, "properties in row 1"),
        ({"headers": [{"a": "b"}, {"a": 2**63}]}, "header a in row 1"),
        ({"headers": [{"a": "b"}, {"a": "\ud800"}]}, "header a in row 1"),
        ({"expiration": ["10", "-1"]}, "property expiration in row 1"),
        ({"flavour": ["a", "b"]}, "property in row 0"),
    ],
)
def test_the_invalid_row_is_named(varying: dict[str, list[Any]], what: str) -> None:
    error = complaint(lambda: property_column({}, varying, 2, frame_max=FRAME_MAX))
    assert error.what == what


@pytest.mark.parametrize("keys", [["a", "é" * 128], ["a", None], ["a", b"x" * 256], ["a", "\ud800"]])
def test_the_row_of_an_invalid_key_is_named(keys: list[Any]) -> None:
    assert complaint(lambda: key_column(keys, 2)).what == "routing key in row 1"


def test_keys_are_str_or_bytes_for_all_rows_or_one_per_row() -> None:
    assert key_column(["a", "é"], 2) == [b"a", "é".encode()]
    assert key_column([b"a", b"\xff"], 2) == [b"a", b"\xff"]
    assert key_column([b"a", "b", bytearray(b"c")], 3) == [b"a", b"b", b"c"]
    assert key_column("a", 2) == [b"a", b"a"]
    assert key_column((key for key in "ab"), 2) == [b"a", b"b"]
    assert key_column({"a": 1, "b": 2}.keys(), 2) == [b"a", b"b"]
    assert sorted(key_column({"a", "b"}, 2)) == [b"a", b"b"]
    with pytest.raises(InvalidValue, match="invalid routing key: got"):
        key_column({"a": 1}, 1)


def test_bodies_are_bytes_or_str_within_the_limit() -> None:
    assert body_column([b"ab", b""], 2) == [b"ab", b""]
    assert body_column(["é", b"ab", bytearray(b"c"), memoryview(b"d")], 2) == [
        "é".encode(),
        b"ab",
        b"c",
        b"d",
    ]
    for wrong in ([b"a", b"abc"], [b"a", "éa"], [b"a", None]):
        assert complaint(lambda wrong=wrong: body_column(wrong, 2)).what == "body in row 1"
    assert "got 'int', expected bytes or str" in str(complaint(lambda: body_column([5], 2)))


def test_columns_of_uneven_length_are_refused() -> None:
    with pytest.raises(InvalidValue, match="as many rows as bodies"):
        key_column(["a", "b"], 3)


def test_arrow_columns_are_taken_as_they_are() -> None:
    pa = pytest.importorskip("pyarrow")
    assert key_column(pa.array(["a", "b"]), 2) == [b"a", b"b"]
    when = datetime(2026, 1, 2, tzinfo=UTC)
    encoded = property_column({}, {"timestamp": [when, when]}, 2, frame_max=FRAME_MAX)
    assert encoded[0] == encode_properties({"timestamp": when}, frame_max=FRAME_MAX)


# ---- frames


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


def test_properties_that_do_not_fit_into_a_negotiated_frame_are_refused() -> None:
    large = {"headers": {"a": "x" * 5_000}}
    with (
        AmqpServer(lambda client: list(received(client))) as server,
        Publisher(f"{server.url}?frame_max=4096", "x", properties=large) as publisher,
        Publisher(f"{server.url}?frame_max=4096", "x") as plain,
    ):
        for call in (
            lambda: publisher.publish(b""),
            lambda: publisher.publish_many([b""]),
            lambda: plain.publish(b"", **large),
        ):
            with pytest.raises(InvalidValue, match="at most 4076 bytes"):
                call()
        assert publisher.totals.published == 0


@pytest.mark.parametrize("context", [{}, {"traceparent": "00-a-b-01"}])
@pytest.mark.parametrize("own", [None, {}, {"a": "own"}, {"b": "own"}, {"traceparent": "own"}])
@pytest.mark.parametrize("defaults", [None, {"a": "default"}, {"traceparent": "default"}])
def test_own_headers_come_before_the_defaults_and_before_the_context_of_a_trace(
    monkeypatch, context: dict[str, str], own: dict[str, str] | None, defaults: dict[str, str] | None
) -> None:
    monkeypatch.setattr("rabbit_chx.publishing.encoder.context_headers", lambda: lambda: dict(context))
    expected = (defaults or {}) | (own or {})
    expected |= {} if "traceparent" in expected else context
    encoder = Encoder("x", {"headers": defaults, "app_id": "shop"}, None)
    found = [encoder.one(b"", "key", None, own, {})[2]]
    for headers in (own, [own]):
        found += encoder.many([b""], "key", None, headers, {})[2]
    decoded = [spec.BasicProperties() for _ in found]
    for properties, encoded in zip(decoded, found, strict=True):
        properties.decode(encoded)
    assert [(each.headers or {}, each.app_id) for each in decoded] == [(expected, "shop")] * 3
    streams = StreamEncoder({"headers": defaults, "app_id": "shop"}, by_key=False)
    batches = [streams.one(b"", "key", own, None, {})]
    batches += [streams.many([b""], "key", headers, None, {}) for headers in (own, [own])]
    expected_message = encode_message(b"", "key", expected or None, {"app_id": "shop"})
    assert [sorted(batch.messages.take(0, 1)[0]) for batch in batches] == [sorted(expected_message)] * 3
