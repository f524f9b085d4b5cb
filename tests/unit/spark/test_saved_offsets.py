"""Offsets in a checkpoint: prepared, compared as Spark compares them, and checked against their streams."""

from __future__ import annotations

import pytest

from spark_connector.reading.offsets import OffsetTracker, check_of_queue, check_of_streams, offsets_in
from tests.unit.complaints import complaint

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


def test_after_a_gap_the_earlier_message_is_kept() -> None:
    tracker = OffsetTracker(Broker())
    before = tracker.to_save({"a": 5}, {})
    assert tracker.to_save({"a": 8}, before) == {"a": {"offset": 8, "seen": [4, 1_000]}}
    assert tracker.to_save({"b": 8}, {}) == {"b": {"offset": 8}}


def test_an_unchanged_offset_is_not_looked_up_again() -> None:
    broker = Broker()
    tracker = OffsetTracker(broker)
    before = tracker.to_save({"a": 5}, {})
    broker.times.clear()
    assert tracker.to_save({"a": 5}, before) == tracker.to_save({"a": 5}, {}) == before
    assert broker.asked == 1
    assert tracker.is_own("a", before["a"])
    assert not OffsetTracker(broker).is_own("a", before["a"])


def test_a_stream_with_another_message_at_the_offset_was_created_again() -> None:
    broker = Broker()
    tracker = OffsetTracker(broker)
    before = tracker.to_save({"a": 5, "b": 5}, {})
    ends = {"a": 9, "b": 5}
    assert tracker.recreated(before, ends) == set()
    broker.times["a", 4] += 1
    assert tracker.recreated(before, ends) == {"a"}
    # The tracker has forgotten the saved offset of the old stream.
    assert tracker.to_save({"a": 5}, {}) == {"a": {"offset": 5, "seen": [4, 1_001]}}


def test_a_stream_that_ends_before_its_offset_was_created_again() -> None:
    broker = Broker()
    tracker = OffsetTracker(broker)
    before = tracker.to_save({"a": 5, "b": 5}, {})
    assert tracker.recreated(before, {"a": 4, "b": 5}) == {"a"}
    assert not tracker.is_own("a", before["a"])


def test_a_message_that_retention_has_deleted_proves_nothing() -> None:
    broker = Broker()
    tracker = OffsetTracker(broker)
    before = tracker.to_save({"a": 5, "b": 0}, {})
    broker.times.clear()
    assert tracker.recreated(before, {"a": 9, "b": 9}) == set()


STREAMS = {"s1": {"offset": 5}, "s0": {"offset": 2, "seen": [1, 1_000]}}
QUEUE = {"queue": "q", "session": "a", "rows": 5}


@pytest.mark.parametrize(
    ("saved", "owner"),
    [
        (STREAMS, "streams ['s0', 's1']"),
        (QUEUE, "queue 'q'"),
        ({"topic": {"0": 5}}, "another format: {'topic': {'0': 5}}"),  # of the source of Kafka
        ({"logOffset": 3}, "another format: {'logOffset': 3}"),  # of files
        (5, "another format: 5"),  # of the source rate
        (0, "another format: 0"),
    ],
)
def test_a_checkpoint_of_another_source_is_an_error_that_names_both(saved: object, owner: str) -> None:
    got = f"got offsets of {owner}, expected offsets of"
    if saved is not STREAMS:
        assert f"{got} streams. " in str(complaint(lambda: check_of_streams(saved)))
    assert f"{got} queue 'other'. " in str(complaint(lambda: check_of_queue(saved, "other")))


def test_a_checkpoint_of_the_same_source_is_accepted() -> None:
    check_of_streams({})
    check_of_streams(STREAMS)
    check_of_queue(QUEUE, "q")
