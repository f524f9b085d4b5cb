"""Offsets in a checkpoint: prepared, compared as Spark compares them, and checked against their streams."""

from __future__ import annotations

from spark_connector.reading.offsets import OffsetTracker, offsets_in

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
