"""Reads of Spark: limits and partitions for any streams, and each message of a queue once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from spark_connector.queues.source import HandedOut
from spark_connector.reading.offsets import OffsetRange, divided, limited
from tests.unit.spark.test_handed_out import at, batch, tags

OFFSETS = st.integers(0, 2**62)
MAPS = st.dictionaries(
    st.text("abcd", min_size=1, max_size=2), st.tuples(OFFSETS, OFFSETS).map(sorted), max_size=6
)


@given(MAPS, st.integers(1, 9) | st.integers(1, 2**62))
def test_a_limit_is_used_up_never_exceeded_and_starves_no_stream(
    streams: dict[str, list[int]], most: int
) -> None:
    start = {name: pair[0] for name, pair in streams.items()}
    end = {name: pair[1] for name, pair in streams.items()}
    found = limited(start, end, most)
    assert list(found) == list(end)  # Spark compares the text of offsets
    assert all(start[name] <= found[name] <= end[name] for name in end)
    waiting = sum(end.values()) - sum(start.values())
    assert sum(found.values()) - sum(start.values()) == min(most, waiting)
    longer = [name for name in end if end[name] > start[name]]
    assert most < len(longer) or all(found[name] > start[name] for name in longer)


@given(MAPS, st.integers(1, 50))
def test_partitions_cover_each_offset_once(streams: dict[str, list[int]], count: int) -> None:
    whole = [OffsetRange(name, *pair) for name, pair in streams.items() if pair[1] > pair[0]]
    found = divided(whole, count)
    assert len(found) >= min(count, sum(one.size for one in whole))
    assert len(found) < count + len(whole) or len(found) == len(whole)
    for one in whole:
        parts = [part for part in found if part.stream == one.stream]
        assert parts[0].start == one.start
        assert parts[-1].end == one.end
        assert all(left.end == right.start for left, right in pairwise(parts))
        assert all(part.size for part in parts)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20))
def test_each_message_of_a_queue_is_in_one_range_and_acknowledged_after_it(steps) -> None:
    """Whatever the sizes of its micro-batches."""
    found, start, seen, acknowledged, next_tag = HandedOut("q", "this"), at(0), [], 0, 1
    for count, again in steps:
        end = found.add(batch(next_tag, count))
        next_tag += count
        seen += tags(found.between(start, end))
        if again:
            found.between(start, end)
        done = found.finished(end)
        if done is not None:
            assert done.messages[-1].tag == seen[-1]
            acknowledged = seen[-1]
        start = end
    assert seen == list(range(1, next_tag))
    assert acknowledged == next_tag - 1
