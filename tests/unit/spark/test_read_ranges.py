"""Ranges of offsets: limited, divided, and compared with the bounds of a stream."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from rabbit_chx import RabbitChxError
from spark_connector.reading.offsets import (
    DataLoss,
    OffsetRange,
    between,
    check_not_truncated,
    check_present,
    divided,
    limited,
    streams_recreated,
)


def test_ranges_without_rows_are_left_out() -> None:
    assert between({"a": 1, "b": 5}, {"a": 3, "b": 5, "new": 9}) == [OffsetRange("a", 1, 3)]
    assert between({"a": 5}, {"a": 3}) == []


def test_a_limit_is_shared_in_proportion() -> None:
    assert limited({"a": 0, "b": 10}, {"a": 300, "b": 110}, 100) == {"a": 75, "b": 35}
    assert limited({"a": 0, "b": 0, "c": 0}, {"a": 5, "b": 5, "c": 5}, 1) == {"a": 1, "b": 0, "c": 0}
    assert limited({"a": 0}, {"a": 5}, 5) == {"a": 5}
    assert limited({"a": 0}, {"a": 50, "new": 7}, 5) == {"a": 5, "new": 7}
    assert limited({}, {}, 5) == {}


@given(
    st.dictionaries(
        st.text(max_size=2), st.tuples(st.integers(0, 9), st.integers(0, 10**7)), min_size=1, max_size=9
    ),
    st.integers(1, 10**4),
)
def test_a_limit_is_used_up_and_starves_no_stream(ranges: dict[str, tuple[int, int]], most: int) -> None:
    start = {stream: first for stream, (first, _) in ranges.items()}
    end = {stream: first + size for stream, (first, size) in ranges.items()}
    found = limited(start, end, most)
    assert all(start[stream] <= found[stream] <= end[stream] for stream in ranges)
    assert sum(found[stream] - start[stream] for stream in ranges) == min(
        most, sum(size for _, size in ranges.values())
    )
    waiting = [stream for stream, (_, size) in ranges.items() if size]
    if most >= len(waiting):
        assert all(found[stream] > start[stream] for stream in waiting)


def test_limits_by_stream_leave_other_streams_alone() -> None:
    end = {"a": 50, "b": 50, "c": 12, "new": 7}
    assert limited({"a": 0, "b": 10, "c": 10}, end, {"a": 5, "c": 9, "new": 1}) == {**end, "a": 5}


def test_long_ranges_are_divided_and_short_ones_are_not() -> None:
    ranges = [OffsetRange("a", 0, 90), OffsetRange("b", 5, 15)]
    assert divided(ranges, None) == divided(ranges, 2) == ranges
    assert divided(ranges, 4) == [
        *(OffsetRange("a", *pair) for pair in ((0, 22), (22, 45), (45, 67), (67, 90))),
        OffsetRange("b", 5, 15),
    ]
    assert divided([OffsetRange("a", 0, 2)], 100) == [OffsetRange("a", 0, 1), OffsetRange("a", 1, 2)]
    assert divided([], 4) == []


def test_lost_rows_are_an_error_with_a_hint() -> None:
    check_not_truncated("s", 5, 5)
    check_present({"s": 0}, ["t", "s"], "exchange 'x'")
    for call, words in [
        (lambda: check_not_truncated("s", 5, 9), "no longer has the offsets 5 to 8"),
        (lambda: check_not_truncated("s", 5, 9), "failOnDataLoss=false"),
        (
            lambda: check_present({"s": 0, "t": 1}, ["t"], "exchange 'x'"),
            "'s', which the query has read, is no longer among",
        ),
        (
            lambda: check_present({"s": 0}, ["t"], "the option stream (t)"),
            "checkpoint is that of a query that read stream 's', .* another checkpointLocation",
        ),
    ]:
        with pytest.raises(DataLoss, match=words):
            call()
    assert issubclass(DataLoss, RabbitChxError)
    text = str(streams_recreated({"t", "s"}))
    assert text.startswith("stream 's' was deleted and created again")
    assert "failOnDataLoss=false" in text
