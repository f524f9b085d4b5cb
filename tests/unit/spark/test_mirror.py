"""Arrow columns of Spark's types routed in bulk, compared with the scalar mirror."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from rabbit_chx import BrokerWouldFail, ConsistentHashExchange, Field, InvalidValue, ModulusHashExchange
from spark_connector.routing.mirror import ModulusMirror, RingMirror, header_column

RELEASES = ["3.10.8", "3.13.7", "4.3.6"]
QUEUES = {f"q{number}": 1 + number % 3 for number in range(10)}

MOMENTS = [datetime(1970, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 23, 59, 59, 999_999, UTC)]
SECONDS = [0, 1_709_251_199]
# Spark's type in Arrow, its tag, the values in the column, and what a message then carries.
HEADERS = {
    "string": (pa.string(), "S", texts := ["", "acme", "Zoë", "\N{SNOWMAN}" * 40], texts),
    "large string": (pa.large_string(), "S", texts, texts),
    "binary": (pa.binary(), "x", blobs := [b"", b"acme", bytes(range(256))], blobs),
    "boolean": (pa.bool_(), "t", flags := [True, False, True], flags),
    "tinyint": (pa.int8(), "I", small := [0, 1, -1, 127, -128], small),
    "smallint": (pa.int16(), "I", middle := [5, -5, 2**15 - 1, -(2**15)], middle),
    "int": (pa.int32(), "I", whole := [5, -5, 2**31 - 1, -(2**31), 2**27, -(2**27)], whole),
    "bigint": (pa.int64(), "l", long := [5, -5, 2**63 - 1, -(2**63), 2**31], long),
    "float": (pa.float32(), "d", halves := [0.5, -0.0, 0.0, -(2.0**100)], [0.5, -0.0, 0.0, -(2.0**100)]),
    "double": (pa.float64(), "d", doubles := [*halves, 1.1, -1e300, 5.0], doubles),
    "timestamp_ntz": (pa.timestamp("us"), "T", [one.replace(tzinfo=None) for one in MOMENTS], SECONDS),
    "date": (pa.date32(), "T", [one.date() for one in MOMENTS], [0, 1_709_164_800]),
    "timestamp": (pa.timestamp("us", "UTC"), "T", MOMENTS, SECONDS),
    "timestamp of a zone": (pa.timestamp("us", "Asia/Tokyo"), "T", MOMENTS, SECONDS),
}


def destinations(exchange, numbers) -> list[object]:
    return [exchange.destinations[number] for number in numbers.to_pylist()]


def routed(exchange, column: pa.Array) -> list[object]:
    return destinations(exchange, RingMirror.of(exchange, None).numbers(column))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", HEADERS)
def test_headers_of_every_type_and_missing_ones(release, kind):
    type_, tag, given, carried = HEADERS[kind]
    exchange = ConsistentHashExchange(QUEUES, release=release, hash_header="h")
    expected = [exchange.route(headers={"h": Field(tag, value)}) for value in carried]
    assert routed(exchange, pa.array(given, type_)) == expected
    gaps = pa.array([None, *given, None], type_)
    missing = exchange.route(headers={})
    assert routed(exchange, gaps) == [missing, *expected, missing]
    assert routed(exchange, gaps[1:-1]) == expected
    assert routed(exchange, pa.array([None, None], type_)) == [missing, missing]


MAPS = [[("h", "a"), ("other", "b")], [], None, [("other", "h")], [("x", "y"), ("h", None)], [("h", "c")]]
VALUES = ["a", None, None, None, None, "c"]
FORMS = {
    "map": pa.array(MAPS, pa.map_(pa.string(), pa.string())),
    "map of large strings": pa.array(MAPS, pa.map_(pa.large_string(), pa.large_string())),
    "array": pa.array(
        [row and [{"key": k, "value": v} for k, v in row] for row in MAPS],
        pa.list_(pa.struct({"key": pa.string(), "value": pa.string()})),
    ),
    "array, value first": pa.array(
        [row and [{"Value": v, "Key": k} for k, v in row] for row in MAPS],
        pa.list_(pa.struct({"Value": pa.string(), "Key": pa.string()})),
    ),
    "struct": pa.array(
        [None if row is None else {"other": 1, "h": dict(row).get("h")} for row in MAPS],
        pa.struct({"other": pa.int32(), "h": pa.string()}),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_header_is_taken_out_of_a_column_of_all(form):
    column = FORMS[form]
    assert header_column(column, "h").to_pylist() == VALUES
    for start in range(len(VALUES)):
        assert header_column(column[start:], "h").to_pylist() == VALUES[start:]
        assert header_column(column[:start], "h").to_pylist() == VALUES[:start]


IDS = ["", "m-1", None, "Zoë"]
PROPERTIES = {
    "message_id": (pa.array(IDS), IDS),
    "correlation_id": (pa.array(IDS), IDS),
    "timestamp": (pa.array([*MOMENTS, None], pa.timestamp("us", "UTC")), [*SECONDS, None]),
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_and_missing_ones(name):
    column, carried = PROPERTIES[name]
    exchange = ConsistentHashExchange(QUEUES, hash_property=name)
    assert routed(exchange, column) == [exchange.route(**{name: value}) for value in carried]


@pytest.mark.parametrize(("count", "type_"), [(128, pa.int8()), (129, pa.int16())])
def test_the_numbers_are_as_narrow_as_their_count_allows(count, type_):
    exchange = ConsistentHashExchange([f"q{number}" for number in range(count)])
    keys = [f"customer-{number}" for number in range(2_000)]
    numbers = RingMirror.of(exchange, None).numbers(pa.array(keys))
    assert numbers.type == type_
    assert destinations(exchange, numbers) == [exchange.route(key) for key in keys]


def test_what_is_shipped_is_little_more_than_the_table():
    exchange = ConsistentHashExchange(QUEUES)
    shipped = pickle.dumps(RingMirror.of(exchange, None))
    assert 2**21 < len(shipped) < 2**21 + 2_000
    keys = pa.array([str(number) for number in range(100)])
    assert pickle.loads(shipped).numbers(keys) == RingMirror.of(exchange, None).numbers(keys)


@pytest.mark.parametrize(
    "exchange",
    [ConsistentHashExchange(QUEUES), ModulusHashExchange(["q0", "q1"])],
    ids=["consistent", "modulus"],
)
@pytest.mark.parametrize(
    ("key", "shown"), [(None, "got None"), ("k" * 256, "256 bytes"), ("é" * 128, "256 bytes")]
)
def test_a_routing_key_that_no_message_can_have(exchange, key, shown):
    modulus = isinstance(exchange, ModulusHashExchange)
    mirror = ModulusMirror(exchange) if modulus else RingMirror.of(exchange, None)
    with pytest.raises(InvalidValue, match=rf"^invalid routing key: .*{shown}"):
        mirror.numbers(pa.array(["fine", key]))


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array([float("nan")]), "infinity or NaN"),
        (pa.array([None], pa.decimal128(10, 2)), "decimal"),
        (pa.array([[1]]), "array<bigint>"),
        (pa.array([-1], pa.timestamp("us", "UTC")), "1969"),
    ],
    ids=["not finite", "decimal", "array", "before 1970"],
)
def test_a_header_that_the_writer_would_refuse_has_no_queue(column, shown):
    mirror = RingMirror.of(ConsistentHashExchange(QUEUES, hash_header="h"), None)
    with pytest.raises((InvalidValue, BrokerWouldFail), match=shown):
        mirror.numbers(column)


def test_a_struct_without_the_header_is_an_error():
    with pytest.raises(InvalidValue, match="a field 'Tenant', which the exchange hashes"):
        header_column(pa.array([{"tenant": "a"}]), "Tenant")


def test_a_release_that_fails_on_a_missing_header():
    mirror = RingMirror.of(ConsistentHashExchange(QUEUES, hash_header="h", release="3.13.0"), None)
    with pytest.raises(BrokerWouldFail, match="without the hash header"):
        mirror.numbers(pa.array(["a", None]))
