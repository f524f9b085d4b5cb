"""Limits and partitions of a read, for any streams."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from spark_connector.reading.offsets import OffsetRange, divided, limited

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
