"""Many messages at once: columns of every kind, their gaps, and what is no column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.errors import InvalidValue
from tests.unit.complaints import complaint
from tests.unit.erlang import HEADER, ROUTING_KEYS, SEVEN, exchange


class Series:
    """What pandas and polars have in common, neither of which need be installed."""

    def __init__(self, values: list) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self):
        return iter(self.values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)

    def to_list(self) -> list:
        return list(self.values)


COLUMNS = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "generator": lambda values: (value for value in values),
    "keys": lambda values: dict.fromkeys(values).keys(),
    "numpy": np.array,
    "object": lambda values: np.array(values, object),
    "arrow": pa.array,
    "chunked": lambda values: pa.chunked_array([values[:1], [], values[1:]], pa.array(values).type),
    "sliced": lambda values: pa.array([*values, *values]).slice(len(values)),
    "series": Series,
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_column_of_any_kind_is_routed(column) -> None:
    keys = [key for key, *_ in ROUTING_KEYS if isinstance(key, str) and key]
    expected = [of_7 for key, _, of_7, _ in ROUTING_KEYS if key in keys]
    got = exchange(SEVEN).route_many(column(keys))
    assert got.dtype == np.int32
    assert got.tolist() == expected
    for x in (exchange(SEVEN, hash_property="message_id"), exchange(SEVEN, **HEADER)):
        assert x.route_many(column(keys)).tolist() == expected  # the same binaries
    assert exchange(["only"]).route_many(column(keys)).tolist() == [0] * len(keys)


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_column_of_integers_of_any_kind_is_routed(column) -> None:
    by_header = exchange(SEVEN, **HEADER)
    assert by_header.bucket_many(column([1, -1, 5, 2**40])).tolist() == [3, 6, 4, 4]
    by_time = exchange(SEVEN, hash_property="timestamp")
    assert by_time.bucket_many(column([1_700_000_000, 0])).tolist() == [5, 3]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_column_of_datetimes_of_any_unit_counts_in_seconds(unit: str) -> None:
    # 2023-11-14T22:13:20 is 1700000000, in an AMQP header of 3.13 and later 1700000000000
    column = np.array(["2023-11-14T22:13:20"], f"datetime64[{unit}]")
    for times in (column, pa.array(column), pa.chunked_array([column])):
        assert exchange(SEVEN, hash_property="timestamp").bucket_many(times).tolist() == [5]
        assert exchange(SEVEN, **HEADER).bucket_many(times, client="pika").tolist() == [5]


@pytest.mark.parametrize(
    ("arguments", "column"),
    [
        ({}, pa.array(["a", None])),
        ({}, [b"a", None]),
        ({"hash_property": "message_id"}, pa.array(["a", None])),
        ({"hash_property": "message_id"}, np.array(["a", None], object)),
        ({"hash_property": "timestamp"}, pa.array([1, None])),
        ({"hash_property": "timestamp"}, np.array(["2020-01-01", "NaT"], "datetime64[s]")),
        (HEADER, pa.array(["a", None])),
        (HEADER, pa.array([1, None, 3])),
        (HEADER, pa.chunked_array([[1], [None]])),
        (HEADER, np.array([1, None], object)),
    ],
)
def test_a_gap_in_any_other_column_is_an_error_that_names_the_row(arguments: dict, column) -> None:
    error = complaint(lambda: exchange(**arguments).route_many(column))
    assert error.what.endswith("in row 1")
    assert error.got is None


@pytest.mark.parametrize(
    "column",
    ["abc", b"abc", bytearray(b"abc"), memoryview(b"abc"), None, 5, {"a": 1}, np.str_("abc"), np.array("a")],
)
def test_a_single_value_is_not_a_column(column) -> None:
    # A str would count as one message per character, a mapping as its keys.
    for arguments in ({}, HEADER, {"hash_property": "message_id"}, {"hash_property": "timestamp"}):
        for queues in (["only"], SEVEN):
            x = exchange(queues, **arguments)
            error = complaint(lambda x=x: x.route_many(column))
            assert error.what == "column"
            assert "route()" in error.hint


@pytest.mark.parametrize(
    "arguments", [{}, HEADER, {"hash_property": "message_id"}, {"hash_property": "timestamp"}]
)
def test_an_empty_column_has_an_empty_answer(arguments: dict) -> None:
    for column in ([], iter([]), np.array([], str), np.array([], object), pa.array([], pa.string())):
        got = exchange(SEVEN, **arguments).route_many(column)
        assert (got.dtype, got.shape) == (np.int32, (0,))


def test_an_error_in_a_column_names_the_row_and_keeps_its_parts() -> None:
    error = complaint(lambda: exchange(**HEADER).route_many(["a", 1, object()]))
    assert error.what.endswith("in row 2")
    assert "text" in error.hint


@pytest.mark.parametrize(
    ("column", "got"),
    [
        (np.array(["2020-01-01", "20000-01-01"], "datetime64[s]"), "20000"),
        (pa.array([0, 568_971_820_800], pa.timestamp("s")), "9999"),
        (np.array([5, 6], "timedelta64[ns]"), "timedelta"),
    ],
)
@pytest.mark.parametrize("arguments", [{"hash_property": "timestamp"}, {"hash_header": "t"}])
def test_a_time_that_python_lacks_is_not_taken_for_a_number(arguments: dict, column, got: str) -> None:
    with pytest.raises(InvalidValue, match=got):
        ConsistentHashExchange(["a", "b"], **arguments).route_many(column)


def test_pandas_timestamps_are_hashed_as_one_by_one_and_missing_ones_are_named() -> None:
    pd = pytest.importorskip("pandas")
    by_time = exchange(SEVEN, hash_property="timestamp")
    for zone in (None, "UTC", "Europe/Berlin"):
        times = pd.Series(pd.date_range("2024-01-01", periods=5, tz=zone))
        for column in (times, pd.DatetimeIndex(times)):
            one_by_one = [by_time.route(timestamp=each) for each in times]
            assert [f"q{number}" for number in by_time.route_many(column)] == one_by_one
    with pytest.raises(InvalidValue, match="in row 1: got NaT"):
        by_time.route_many(pd.Series(pd.to_datetime(["2024-01-01", None])))


@pytest.mark.parametrize("client", [None, "pika", "aio-pika", "py-amqp", "amqplib", "amqp10"])
def test_a_missing_time_of_pandas_is_no_header(client) -> None:
    pd = pytest.importorskip("pandas")
    by_header = exchange(SEVEN, **HEADER)
    with pytest.raises(InvalidValue, match="invalid header value: got NaT, expected a value that"):
        by_header.route(headers={"h": pd.NaT}, client=client)
    with pytest.raises(InvalidValue, match="in row 0: got NaT"):
        by_header.route_many(pd.Series(pd.to_datetime([None])), client=client)


@pytest.mark.parametrize("client", [None, "pika", "aio-pika", "amqp10", "mqtt"])
@pytest.mark.parametrize(
    "arguments", [{}, HEADER, {"hash_property": "correlation_id"}, {"hash_property": "timestamp"}]
)
@pytest.mark.parametrize("kind", [list, lambda values: pytest.importorskip("pandas").Series(values)])
def test_an_array_or_na_of_pandas_is_an_invalid_value_in_any_column(kind, arguments: dict, client) -> None:
    for value in (np.array([1, 2]), pytest.importorskip("pandas").NA):
        with pytest.raises(InvalidValue, match="in row 0"):
            exchange(SEVEN, **arguments).route_many(kind([value, value]), client=client)


def test_a_masked_value_is_missing() -> None:
    with pytest.raises(InvalidValue, match="row 1"):
        exchange(SEVEN).route_many(np.ma.array(["a", "b", "c"], mask=[False, True, False]))
