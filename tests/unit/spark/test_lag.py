"""The offsets between two offsets of a query's progress."""

from __future__ import annotations

import json

import pytest

from spark_connector.reading.lag import offsets_behind

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
