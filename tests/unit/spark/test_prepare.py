"""Which rows of an Arrow batch cannot be sent, and what the publisher gets of the others."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from spark_connector.writing.prepare import Prepared, prepare
from spark_connector.writing.rules import Layout, Limits, layout_of, row_rules

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


def test_a_null_body_is_invalid_unless_it_may_be_empty() -> None:
    assert complaints([b"a", None, b""], layout()).keys() == {1}
    assert complaints([b"a", None], layout(), empty=True) == {}
    assert arguments(batch([b"a", None]), layout(), {}) == {"bodies": [b"a", b""]}


def test_each_row_is_named_with_its_key_and_its_first_fault() -> None:
    keys = pa.array(["k" * 256, None, "good", "k-3"])
    found = complaints([b"a", b"x" * 100, b"x" * 101, None], layout(routing_key=TEXT), routing_key=keys)
    assert found.keys() == {0, 1, 2, 3}
    assert "routing_key is longer than 255 bytes" in found[0]
    assert found[0].endswith(f"(routing key '{'k' * 60}')")
    assert found[1] == "routing_key is null"
    assert "value is longer than 100 bytes" in found[2]
    assert "value is null" in found[3]
    assert "'k-3'" in found[3]


def test_text_that_is_not_utf8_is_invalid() -> None:
    wrong = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    assert complaints([b"a"] * 2, layout(key=TEXT), routing_key=wrong) == {
        1: "routing_key is not valid UTF-8 (routing key '\N{REPLACEMENT CHARACTER}')"
    }


# ---- headers

MAPS = pa.map_(pa.string(), pa.int64())
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))


def tables(column: pa.Array, kind: t.DataType) -> list[Any]:
    found = arguments(batch([b""] * len(column), headers=column), layout(headers=kind), {})
    headers: list[Any] = found["headers"]
    return headers


def test_a_slice_of_maps_is_its_own_rows() -> None:
    column = pa.array([[("a", 1)], [("b", 2), ("c", None)], None, [], [("d", 4)]], MAPS).slice(1, 3)
    assert tables(column, t.MapType(TEXT, t.LongType())) == [{"b": 2}, None, {}]


def test_arrays_of_key_and_value_become_tables() -> None:
    column = pa.array([[{"key": "a", "value": "1"}], None, [{"key": "b", "value": None}]], PAIRS)
    kind = t.StructType([t.StructField("key", TEXT), t.StructField("value", TEXT)])
    assert tables(column, t.ArrayType(kind)) == [{"a": "1"}, None, {}]


def test_numbers_and_times_of_every_type() -> None:
    days = pa.array([date(1970, 1, 2), date(2024, 2, 29)], pa.date32())
    moments = pa.array([datetime(1970, 1, 1, 0, 0, 1, 999_999), None], pa.timestamp("us"))  # noqa: DTZ001
    column = pa.StructArray.from_arrays(
        [days, moments, pa.array([1.5, -2.0]), pa.array([0.5, None], pa.float32())],
        ["day", "moment", "d", "f"],
    )
    kinds = {"day": t.DateType(), "moment": t.TimestampNTZType(), "d": t.DoubleType(), "f": t.FloatType()}
    kind = t.StructType([t.StructField(name, each) for name, each in kinds.items()])
    assert tables(column, kind) == [
        {
            "day": datetime(1970, 1, 2, tzinfo=UTC),
            "moment": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
            "d": 1.5,
            "f": 0.5,
        },
        {"day": datetime(2024, 2, 29, tzinfo=UTC), "d": -2.0},
    ]


@pytest.mark.parametrize("day", [2_932_897, 106_751_992, 2**31 - 1])
def test_a_date_after_9999_is_an_invalid_header(day: int) -> None:
    """Once, one that is beyond a timestamp in microseconds ended the task with an error of Arrow's."""
    due = pa.StructArray.from_arrays([pa.array([0, day], pa.date32())], names=["due"])
    shape = layout(headers=t.StructType([t.StructField("due", t.DateType())]))
    assert complaints([b"", b""], shape, headers=due).keys() == {1}


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
