"""Which rows of an Arrow batch cannot be sent, and what the publisher gets of the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pika.compat import long
from pyspark.sql import types as t

from spark_connector.columns import Layout, layout_of
from spark_connector.prepare import Prepared, prepare
from spark_connector.rules import Limits, row_rules

LIMITS = Limits(body=100, properties=131_044)
TEXT = t.StringType()
STAMP = pa.timestamp("us", "Asia/Tokyo")


def layout(**columns: t.DataType) -> Layout:
    schema = t.StructType(
        [t.StructField(name, kind) for name, kind in {"value": t.BinaryType(), **columns}.items()]
    )
    given = {"exchange"} if {"key", "routing_key"} & set(columns) else {"exchange", "routing_key"}
    return layout_of(schema, given=frozenset(given))


def batch(values: list[Any], **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary()), *columns.values()], names=["value", *columns])


def prepared(rows: pa.RecordBatch, shape: Layout, *, empty: bool = False) -> Prepared:
    return prepare(rows, shape, [*row_rules(shape, LIMITS, null_is_empty=empty)])


def arguments(rows: pa.RecordBatch, shape: Layout, headers: dict[str, Any]) -> dict[str, Any]:
    """Those of the only chunk."""
    ((count, found),) = prepared(rows, shape, empty=True).chunks(rows.num_rows, headers)
    assert count == rows.num_rows
    return found


def complaints(
    values: list[Any], shape: Layout, *, empty: bool = False, **columns: pa.Array
) -> dict[int, str]:
    invalid = prepared(batch(values, **columns), shape, empty=empty).invalid
    assert invalid == sorted(invalid)
    return dict(invalid)


def test_the_default_limits_are_those_of_an_unconfigured_broker() -> None:
    assert Limits.default(None) == Limits(body=16 * 1024 * 1024, properties=131_052)
    assert Limits.default(1_000) == Limits(body=1_000, properties=131_052)


def test_a_valid_batch_has_no_invalid_row() -> None:
    assert complaints([b"", b"a", b"x" * 100], layout()) == {}


def test_a_null_body_is_invalid_unless_it_may_be_empty() -> None:
    assert complaints([b"a", None], layout()).keys() == {1}
    assert complaints([b"a", None], layout(), empty=True) == {}
    assert arguments(batch([b"a", None]), layout(), {}) == {"bodies": [b"a", b""]}


def test_each_row_is_named_with_its_key_and_its_first_fault() -> None:
    keys = pa.array(["k" * 256, None, "good", "k-3"])
    found = complaints([b"a", b"a", b"x" * 101, None], layout(routing_key=TEXT), routing_key=keys)
    assert found.keys() == {0, 1, 2, 3}
    assert "routing_key is longer than 255 bytes" in found[0]
    assert found[0].endswith(f"(routing key '{'k' * 60}')")
    assert found[1] == "routing_key is null"
    assert "value is longer than 100 bytes" in found[2]
    assert "value is null" in found[3]
    assert "'k-3'" in found[3]


def test_the_length_of_a_key_counts_bytes_and_not_characters() -> None:
    keys = pa.array(["é" * 127, "é" * 128])
    assert complaints([b"a"] * 2, layout(key=TEXT), routing_key=keys).keys() == {1}


def test_text_that_is_not_utf8_is_invalid() -> None:
    wrong = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    assert complaints([b"a"] * 2, layout(key=TEXT), routing_key=wrong) == {
        1: "routing_key is not valid UTF-8 (routing key '\N{REPLACEMENT CHARACTER}')"
    }


@pytest.mark.parametrize(
    ("name", "kind", "values", "bad"),
    [
        ("priority", t.IntegerType(), pa.array([0, 255, 256, -1, None], pa.int32()), {2, 3}),
        ("delivery_mode", t.ByteType(), pa.array([1, 2, 3, 0, None], pa.int8()), {2, 3}),
        ("expiration", TEXT, pa.array(["0", "4294967295", "4294967296", "1.5", None]), {2, 3}),
        ("expiration", t.LongType(), pa.array([0, 2**32 - 1, 2**32, -1, None], pa.int64()), {2, 3}),
        ("timestamp", t.TimestampType(), pa.array([0, 999_999, -1, -(10**15), None], STAMP), {2, 3}),
        ("message_id", TEXT, pa.array(["", "m" * 255, "m" * 256, "é" * 128, None]), {2, 3}),
    ],
)
def test_properties_out_of_range_are_invalid_and_null_is_none(
    name: str, kind: t.DataType, values: pa.Array, bad: set[int]
) -> None:
    assert complaints([b"a"] * 5, layout(**{name: kind}), **{name: values}).keys() == bad


def test_properties_become_what_the_publisher_takes() -> None:
    shape = layout(
        key=TEXT, message_id=TEXT, priority=t.ByteType(), expiration=TEXT, timestamp=t.TimestampType()
    )
    columns = {
        "key": pa.array(["k", "é"]),
        "message_id": pa.array(["m", None]),
        "priority": pa.array([5, None], pa.int8()),
        "expiration": pa.array(["60", None]),
        "timestamp": pa.array([1_999_999, None], STAMP),
    }
    assert arguments(batch([b"a", b"b"], **columns), shape, {}) == {
        "bodies": [b"a", b"b"],
        "routing_keys": [b"k", "é".encode()],
        "message_id": [b"m", None],
        "priority": [5, None],
        "expiration": ["60", None],
        "timestamp": [1, None],
    }


# ---- headers

MAPS = pa.map_(pa.string(), pa.int64())
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))


def tables(column: pa.Array, kind: t.DataType) -> list[Any]:
    found = arguments(batch([b""] * len(column), headers=column), layout(headers=kind), {})
    headers: list[Any] = found["headers"]
    return headers


def test_maps_become_tables_without_what_is_null() -> None:
    column = pa.array([[("a", 1), ("b", None)], None, []], MAPS)
    found = tables(column, t.MapType(TEXT, t.LongType()))
    assert found == [{"a": 1}, None, {}]
    assert type(found[0]["a"]) is long  # which goes over the wire as 64 bits


def test_a_slice_of_maps_is_its_own_rows() -> None:
    column = pa.array([[("a", 1)], [("b", 2), ("c", 3)], [], [("d", 4)]], MAPS).slice(1, 2)
    assert tables(column, t.MapType(TEXT, t.LongType())) == [{"b": 2, "c": 3}, {}]


def test_arrays_of_key_and_value_become_tables() -> None:
    column = pa.array([[{"key": "a", "value": "1"}], None, [{"key": "b", "value": None}]], PAIRS).slice(0, 3)
    kind = t.StructType([t.StructField("key", TEXT), t.StructField("value", TEXT)])
    assert tables(column, t.ArrayType(kind)) == [{"a": "1"}, None, {}]


def test_a_struct_mixes_types() -> None:
    kind = t.StructType(
        [
            t.StructField("text", TEXT),
            t.StructField("whole", t.IntegerType()),
            t.StructField("flag", t.BooleanType()),
            t.StructField("raw", t.BinaryType()),
            t.StructField("at", t.TimestampType()),
        ]
    )
    moment = datetime(2024, 2, 29, 12, 30, 15, 999_999, tzinfo=UTC)
    rows = [{"text": "é", "whole": 5, "flag": True, "raw": b"\xff", "at": moment}, None, {"whole": 0}]
    arrow = pa.struct(
        [
            ("text", pa.string()),
            ("whole", pa.int32()),
            ("flag", pa.bool_()),
            ("raw", pa.binary()),
            ("at", STAMP),
        ]
    )
    assert tables(pa.array(rows, arrow), kind) == [
        {
            "text": "é",
            "whole": 5,
            "flag": True,
            "raw": b"\xff",
            "at": moment - timedelta(microseconds=999_999),
        },
        None,
        {"whole": 0},
    ]


def test_headers_that_the_broker_would_not_take_are_invalid() -> None:
    big = "v" * 131_000
    rows = [
        [("a", 1)],
        [("n" * 256, 1)],
        [("CC", 1)],
        [(f"name-{n}", 1) for n in range(10_000)],
    ]
    found = complaints(
        [b"a"] * 4, layout(headers=t.MapType(TEXT, t.LongType())), headers=pa.array(rows, MAPS)
    )
    assert found.keys() == {1, 2, 3}
    assert "one frame" in found[3]
    assert "CC and BCC are reserved" in found[2]
    kind = t.ArrayType(t.StructType([t.StructField("key", TEXT), t.StructField("value", TEXT)]))
    pairs = [
        [{"key": "a", "value": big}],
        [{"key": None, "value": "1"}],
        [{"key": "a", "value": "1"}, {"key": "b", "value": "1"}, {"key": "a", "value": "2"}],
        [None],
        [{"key": "a", "value": "1"}],
        None,
    ]
    found = complaints([b"a"] * 6, layout(headers=kind), headers=pa.array(pairs, PAIRS))
    assert found.keys() == {0, 1, 2, 3}
    assert "twice" in found[2]


def test_struct_headers_are_measured_and_dated_too() -> None:
    kind = t.StructType([t.StructField("a", TEXT), t.StructField("at", t.TimestampType())])
    rows = [{"a": "v" * 131_000}, {"at": datetime(1969, 12, 31, tzinfo=UTC)}, {"a": "fine"}, None]
    column = pa.array(rows, pa.struct([("a", pa.string()), ("at", STAMP)]))
    found = complaints([b"a"] * 4, layout(headers=kind), headers=column)
    assert found.keys() == {0, 1}
    assert "headers: at is not from 1970" in found[1]


def test_the_tasks_own_headers_join_the_rows() -> None:
    own = {"x-spark-partition": 3}
    assert arguments(batch([b""]), layout(), own) == {"bodies": [b""], "headers": own}
    column = pa.array([[("a", 1)], None], MAPS)
    found = arguments(batch([b""] * 2, headers=column), layout(headers=t.MapType(TEXT, t.LongType())), own)
    assert found["headers"] == [{"a": 1, **own}, own]


def test_large_arrow_types_are_the_same() -> None:
    shape = layout(key=TEXT)
    large = pa.record_batch(
        [pa.array([b"a"], pa.large_binary()), pa.array(["k"], pa.large_string())], names=["value", "key"]
    )
    assert arguments(large, shape, {}) == {"bodies": [b"a"], "routing_keys": [b"k"]}


def test_a_batch_may_have_no_valid_row() -> None:
    found = prepared(batch([None, None]), layout())
    assert (len(found.invalid), found.batch.num_rows, [*found.chunks(2, {})]) == (2, 0, [])


def test_large_rows_are_converted_a_few_at_a_time() -> None:
    def chunks(rows: pa.RecordBatch, most: int = 10_000) -> list[int]:
        return [count for count, _ in prepared(rows, layout()).chunks(most, {})]

    assert chunks(batch([b"x" * 100] * 1000)) == [1000]
    assert chunks(batch([b"x" * 100] * 1000), 400) == [400, 400, 200]
    large = Limits(body=16 << 20, properties=131_044)
    big = prepare(
        batch([b"x" * (1 << 20)] * 20), layout(), [*row_rules(layout(), large, null_is_empty=False)]
    )
    assert all(6 <= count <= 8 for count, _ in [*big.chunks(20, {})][:-1])


def test_valid_rows_keep_their_numbers_when_others_are_left_out() -> None:
    found = prepared(batch([b"a", None, b"c", None, b"e"]), layout())
    assert [row for row, _ in found.invalid] == [1, 3]
    assert [*found.rows] == [0, 2, 4]
    assert [arguments["bodies"] for _, arguments in found.chunks(2, {})] == [[b"a", b"c"], [b"e"]]
