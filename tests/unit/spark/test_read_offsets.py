"""Offsets of a read: ranges, the offsets in a checkpoint, and those of a query's progress."""

from __future__ import annotations

import json

import pytest

from spark_connector.reading.lag import offsets_behind
from spark_connector.reading.offsets import (
    DataLoss,
    OffsetRange,
    OffsetTracker,
    between,
    check_present,
    divided,
    limited,
    offsets_in,
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


def test_long_ranges_are_divided_and_short_ones_are_not() -> None:
    ranges = [OffsetRange("a", 0, 90), OffsetRange("b", 5, 15)]
    assert divided(ranges, None) == divided(ranges, 2) == ranges
    assert divided(ranges, 4) == [
        *(OffsetRange("a", *pair) for pair in ((0, 22), (22, 45), (45, 67), (67, 90))),
        OffsetRange("b", 5, 15),
    ]
    assert divided([OffsetRange("a", 0, 2)], 100) == [OffsetRange("a", 0, 1), OffsetRange("a", 1, 2)]
    assert divided([], 4) == []


def test_a_stream_that_is_no_longer_among_those_of_the_source_is_lost_data() -> None:
    check_present({"s": 0}, ["t", "s"], "exchange 'x'")
    with pytest.raises(DataLoss, match="'s', which the query has read, is no longer among"):
        check_present({"s": 0, "t": 1}, ["t"], "exchange 'x'")


# ---- saved in a checkpoint

TIMES = {("a", 4): 1_000, ("a", 9): 2_000, ("b", 4): 1_500}


class Broker:
    """Returns the times at which messages were stored, and counts its calls."""

    def __init__(self) -> None:
        self.times = dict(TIMES)
        self.asked = 0

    def __call__(self, stream: str, offset: int) -> int | None:
        self.asked += 1
        return self.times.get((stream, offset))


def test_a_saved_offset_has_the_time_of_the_message_before_it() -> None:
    saved = OffsetTracker(Broker()).to_save({"a": 5, "b": 0}, {})
    assert saved == {"a": {"offset": 5, "seen": [4, 1_000]}, "b": {"offset": 0}}
    assert offsets_in(saved) == {"a": 5, "b": 0}


def test_an_unchanged_offset_is_not_looked_up_again() -> None:
    broker = Broker()
    tracker = OffsetTracker(broker)
    before = tracker.to_save({"a": 5}, {})
    broker.times.clear()
    assert tracker.to_save({"a": 5}, before) == tracker.to_save({"a": 5}, {}) == before
    assert broker.asked == 1
    assert tracker.is_own("a", before["a"])
    assert not OffsetTracker(broker).is_own("a", before["a"])


def test_a_message_that_retention_has_deleted_proves_nothing() -> None:
    broker = Broker()
    tracker = OffsetTracker(broker)
    before = tracker.to_save({"a": 5, "b": 0}, {})
    broker.times.clear()
    assert tracker.recreated(before, {"a": 9, "b": 9}) == set()


# ---- the progress of a query

SAVED = {"s0": {"offset": 5, "seen": [4, 1_769_860_800_000]}, "s1": {"offset": 0}}


@pytest.mark.parametrize(
    ("latest", "end", "behind"),
    [
        ({"s0": 12, "s1": 0}, SAVED, {"s0": 7, "s1": 0}),
        ({"s0": 12, "s1": 0, "new": 3}, SAVED, {"s0": 7, "s1": 0}),
        ({"s0": 3}, SAVED, {"s0": 0}),  # the stream was created again
        (None, SAVED, {}),
        ({"s0": 12}, None, {}),
        ({"events": {"0": 12}}, {"events": {"0": 5}}, {}),  # of the source of Kafka
        (None, {"queue": "q", "session": "a", "rows": 5}, {}),
        ({"offset": 12}, {"offset": 5}, {}),
        (7, 5, {}),
    ],
)
def test_offsets_behind_are_counted_by_stream_and_only_for_streams(latest, end, behind) -> None:
    texts = [None if one is None else json.dumps(one) for one in (latest, end)]
    assert offsets_behind(*texts) == behind


def test_an_offset_that_is_not_json_is_ignored() -> None:
    assert offsets_behind("-", "-") == {}
