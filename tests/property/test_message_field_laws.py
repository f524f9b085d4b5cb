"""Publishers, streams and the Spark connector accept the same properties, and every call refuses with the same errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st
from pika import BasicProperties
from pyspark.sql import types as t

from rabbit_chx.broker.properties import Properties
from rabbit_chx.errors import InvalidValue, RabbitChxError
from rabbit_chx.messages.message_fields import PROPERTIES
from rabbit_chx.publishing import AsyncPublisher, Publisher
from rabbit_chx.publishing.batch_columns import property_column
from rabbit_chx.publishing.properties import encode_properties
from rabbit_chx.streams import AsyncStreamPublisher, StreamPublisher
from rabbit_chx.streams.messages.encode import encode_message, encode_messages
from rabbit_chx.streams.messages.message import decode
from spark_connector.columns import COLUMNS
from spark_connector.writing.prepare import prepare
from spark_connector.writing.rules import Limits, layout_of, row_rules

FRAME_MAX = 131_072
moments = st.datetimes(datetime(1960, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC) | st.none())  # noqa: DTZ001
anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(0, 300),
    st.floats(),
    st.text(max_size=5),
    st.text(min_size=250, max_size=260),
    st.sampled_from(["5", "05", "-1", "1.5", "soon", "\ud800", str(2**32)]),
    moments,
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=1),
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=5),
    st.just("\ud800"),
    moments,
    st.binary(max_size=5),
    st.builds(object),
)
"""Streams store no lists, dicts and decimals, so only these are compared in headers."""
headers = st.dictionaries(
    st.one_of(st.text(max_size=5), st.just("x" * 256), st.just("CC")), plain, max_size=3
)


def outcome(encode: Any) -> Any:
    """What an encoder returns; for an invalid value its error, without the row."""
    try:
        return encode()
    except InvalidValue as error:
        return str(error).replace(" in row 0", "")


@st.composite
def named(draw: st.DrawFn) -> tuple[str, Any]:
    name = draw(st.sampled_from(sorted(PROPERTIES)))
    return name, draw(headers if name == "headers" else anything)


def one_for_a_stream(name: str, value: Any) -> bytes:
    if name == "headers":
        return encode_message(b"", None, value, {})
    return encode_message(b"", None, None, {name: value})


@given(named())
def test_every_encoder_accepts_the_same_values_and_raises_the_same_errors(one: tuple[str, Any]) -> None:
    name, value = one
    found = {
        "one": outcome(lambda: encode_properties({name: value}, frame_max=FRAME_MAX)),
        "column": outcome(lambda: property_column({}, {name: [value]}, 1, frame_max=FRAME_MAX)[0]),
        "stream": outcome(lambda: next(iter(encode_messages([b""], **{name: [value]})))),  # type: ignore[arg-type]
        "one for a stream": outcome(lambda: one_for_a_stream(name, value)),
    }
    errors = {each for each in found.values() if isinstance(each, str)}
    if errors:
        assert len(errors) == 1
        assert all(isinstance(each, str) for each in found.values())
        return
    assert found["one"] == found["column"]
    assert found["stream"] == found["one for a stream"]
    if name not in {"headers", "delivery_mode"}:
        sent = Properties().decode(found["one"])
        stored = decode(found["stream"], "s", 0)
        read = getattr(stored, name)
        at = None if name != "timestamp" or read is None else int(read.timestamp())
        kept = getattr(sent, name)
        assert (at if name == "timestamp" else read) == (kept if not isinstance(kept, bytes) else read)


finite = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
            lambda when: when.replace(microsecond=0)
        ),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=5).filter(lambda name: name not in {"CC", "BCC"}), finite, max_size=3)
)
def test_headers_arrive_as_they_were_given_however_deep_their_floats_are(table: dict[str, Any]) -> None:
    encoded = encode_properties({"headers": table}, frame_max=FRAME_MAX)
    assert (Properties().decode(encoded).headers or {}) == table


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(
                ("message_id", "type", "content_type", "app_id", "user_id"), st.text(max_size=20)
            ),
            "expiration": st.integers(0, 2**32 - 1).map(str),
            "priority": st.integers(0, 255),
            "delivery_mode": st.sampled_from([1, 2]),
        },
    )
)
def test_a_content_header_is_what_pika_encodes(properties: dict[str, Any]) -> None:
    found = encode_properties(properties, frame_max=FRAME_MAX)
    assert found == b"".join(BasicProperties(**{"delivery_mode": 2, **properties}).encode())


SPARK_TYPES = {
    "tinyint": (t.ByteType(), pa.int8(), st.integers(-128, 127)),
    "smallint": (t.ShortType(), pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int": (t.IntegerType(), pa.int32(), st.integers(-5, 300) | st.integers(-(2**31), 2**31 - 1)),
    "bigint": (t.LongType(), pa.int64(), st.integers(-5, 300) | st.integers(-(2**63), 2**63 - 1)),
    "timestamp": (
        t.TimestampType(),
        pa.timestamp("us", "UTC"),
        st.datetimes(datetime(1960, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    ),
    "string": (
        t.StringType(),
        pa.string(),
        st.text(max_size=5)
        | st.text(min_size=120, max_size=260)
        | st.integers(0, 2**33).map(str)
        | st.sampled_from(["\ud800", "05", "-1", "1.5", "soon", "0" * 300 + "7", str(2**32), "\u0661"]),
    ),
    "map": (
        t.MapType(t.StringType(), t.StringType()),
        pa.map_(pa.string(), pa.string()),
        st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3)
        | st.dictionaries(st.sampled_from(["CC", "x" * 256]), st.text(max_size=3), max_size=1),
    ),
}
"""Types of Spark, as Arrow has them, and values."""
SAID = [
    ("at most 255 bytes", "longer than 255 bytes"),
    ("lone surrogates", "not valid UTF-8"),
    ("header CC", "CC and BCC are reserved"),
]
"""Of texts and headers: the words of an error, for a str of Python and for the bytes that Spark has."""


@st.composite
def cells(draw: st.DrawFn) -> tuple[str, str, Any]:
    """A property, a type of Spark that its column may have, and a value of this type."""
    columns = [column for column in COLUMNS if column.name in PROPERTIES]
    column = draw(st.sampled_from(columns))
    kind = draw(st.sampled_from([kind for kind in column.types if kind in SPARK_TYPES]))
    return column.name, kind, draw(st.none() | SPARK_TYPES[kind][2])


def spark_array(kind: str, value: Any) -> pa.Array:
    """A column with one row; a cast from binary makes any bytes a string of Spark."""
    if kind == "string" and value is not None:
        return pa.array([value.encode(errors="surrogatepass")], pa.binary()).view(pa.string())
    return pa.array(
        [list(value.items()) if kind == "map" and value is not None else value], SPARK_TYPES[kind][1]
    )


@given(cells())
@example(("expiration", "string", "0" * 254 + "7"))
@example(("expiration", "string", "0" * 255 + "7"))
def test_spark_accepts_the_values_that_the_publisher_accepts(cell: tuple[str, str, Any]) -> None:
    name, kind, value = cell
    schema = t.StructType([t.StructField("value", t.BinaryType()), t.StructField(name, SPARK_TYPES[kind][0])])
    layout = layout_of(schema, given=frozenset({"exchange", "routing_key"}))
    batch = pa.record_batch([pa.array([b""]), spark_array(kind, value)], names=["value", name])
    prepared = prepare(batch, layout, [*row_rules(layout, Limits.default(None), null_is_empty=False)])
    direct = outcome(lambda: encode_properties({name: value}, frame_max=FRAME_MAX))
    if isinstance(direct, str):
        ((row, reason),) = prepared.invalid
        assert row == 0
        assert reason.startswith(name)
        limits = PROPERTIES[name].kind.limits
        words = [(limits, limits)] if limits else SAID
        assert [ours in direct for ours, _ in words] == [sparks in reason for _, sparks in words]
        assert any(ours in direct for ours, _ in words)
        return
    assert not prepared.invalid
    ((_, arguments),) = prepared.chunks(1, {})
    assert property_column({}, {name: arguments[name]}, 1, frame_max=FRAME_MAX) == [direct]


def test_spark_has_a_column_for_every_property_that_a_publisher_has() -> None:
    assert {column.name for column in COLUMNS} == {"value", "routing_key", "exchange", *PROPERTIES}


# ---- the calls of a publisher

URL, STREAM_URL = "amqp://127.0.0.1:1", "rabbitmq-stream://127.0.0.1:1"
"""Nothing listens here: what a publisher that is not open accepts fails with an error that says so."""
LIMIT = 10
keys = st.one_of(st.text(max_size=5), st.binary(max_size=5), st.text(min_size=250, max_size=260), anything)
messages = st.fixed_dictionaries(
    {
        "body": st.one_of(st.binary(max_size=LIMIT + 3), st.text(max_size=LIMIT + 3), anything),
        "routing_key": keys,
    },
    optional={
        "exchange": keys.filter(lambda name: name is not None),  # None is the publisher's own
        "headers": headers,
        **dict.fromkeys([*sorted(PROPERTIES.keys() - {"headers"}), "colour"], anything),
    },
)


def error_of(call: Callable[[], object]) -> str:
    """The error of a call, without the row that only a batch has."""
    try:
        call()
    except RabbitChxError as error:
        return re.sub(r" in row \d+", "", f"{type(error).__name__}: {error}")
    raise AssertionError("a publisher that is not open accepted a message")


KINDS = {
    "AMQP": (
        lambda: Publisher(URL, "x", max_message_bytes=LIMIT),
        lambda: AsyncPublisher(URL, "x", max_message_bytes=LIMIT),
    ),
    "one stream": (
        lambda: StreamPublisher(STREAM_URL, "events"),
        lambda: AsyncStreamPublisher(STREAM_URL, "events"),
    ),
    "a super stream": (
        lambda: StreamPublisher(STREAM_URL, super_stream="events"),
        lambda: AsyncStreamPublisher(STREAM_URL, super_stream="events"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@given(messages)
@example({"body": b"x" * (LIMIT + 1), "routing_key": "k"})
@example({"body": "\ud800", "routing_key": "k"})
@example({"body": b"", "routing_key": "x" * 256, "colour": 1})
@example({"body": b"", "routing_key": "k", "exchange": "x" * 256, "headers": {"CC": ["k"]}})
@example({"body": b"", "routing_key": "k", "headers": {}, "expiration": "soon"})
def test_every_call_refuses_the_same_input_with_the_same_error(kind: str, message: dict[str, Any]) -> None:
    publisher, asynchronous = (make() for make in KINDS[kind])
    if kind != "AMQP":
        message = {name: value for name, value in message.items() if name != "exchange"}
    bulk = publisher.bulk()
    batch = {name: [value] for name, value in message.items()}
    bodies, keys = batch.pop("body"), batch.pop("routing_key")
    found = {
        "publish": error_of(lambda: publisher.publish(**message)),
        "submit": error_of(lambda: publisher.submit(**message)),
        "bulk.add": error_of(lambda: bulk.add(**message)),
        "publish_many": error_of(lambda: publisher.publish_many(bodies, keys, **batch)),
        "bulk.add_many": error_of(lambda: bulk.add_many(bodies, keys, **batch)),
        "await publish": error_of(lambda: asyncio.run(asynchronous.publish(**message))),
        "await publish_many": error_of(lambda: asyncio.run(asynchronous.publish_many(bodies, keys, **batch))),
    }
    assert len(set(found.values())) == 1, found
    assert publisher.totals.published == asynchronous.totals.published == 0
