"""Places of streams in a checkpoint: made, compared as Spark compares them, and recognised in a stream."""

from __future__ import annotations

from spark_connector.places import Places, offsets_in

TIMES = {("a", 4): 1_000, ("a", 9): 2_000, ("b", 4): 1_500}


class Broker:
    """Knows when messages were stored, and counts how often it is asked."""

    def __init__(self) -> None:
        self.times = dict(TIMES)
        self.asked = 0

    def __call__(self, stream: str, offset: int) -> int | None:
        self.asked += 1
        return self.times.get((stream, offset))


def test_a_place_has_the_time_of_the_message_before_it() -> None:
    made = Places(Broker()).at({"a": 5, "b": 0}, {})
    assert made == {"a": {"offset": 5, "seen": [4, 1_000]}, "b": {"offset": 0}}
    assert offsets_in(made) == {"a": 5, "b": 0}


def test_a_gap_keeps_the_message_that_was_seen_before() -> None:
    places = Places(Broker())
    before = places.at({"a": 5}, {})
    assert places.at({"a": 8}, before) == {"a": {"offset": 8, "seen": [4, 1_000]}}
    assert places.at({"b": 8}, {}) == {"b": {"offset": 8}}


def test_a_stream_that_does_not_move_keeps_its_place_and_is_not_asked_again() -> None:
    broker = Broker()
    places = Places(broker)
    before = places.at({"a": 5}, {})
    broker.times.clear()
    assert places.at({"a": 5}, before) == places.at({"a": 5}, {}) == before
    assert broker.asked == 1
    assert places.is_new("a", before["a"])
    assert not Places(broker).is_new("a", before["a"])


def test_a_stream_with_another_message_there_was_created_again() -> None:
    broker = Broker()
    places = Places(broker)
    before = places.at({"a": 5, "b": 5}, {})
    assert places.created_again(before) == set()
    broker.times["a", 4] += 1
    assert places.created_again(before) == {"a"}
    assert places.at({"a": 5}, {}) == {"a": {"offset": 5, "seen": [4, 1_001]}}  # the old place is forgotten


def test_a_message_that_retention_has_deleted_proves_nothing() -> None:
    broker = Broker()
    places = Places(broker)
    before = places.at({"a": 5, "b": 0}, {})
    broker.times.clear()
    assert places.created_again(before) == set()
