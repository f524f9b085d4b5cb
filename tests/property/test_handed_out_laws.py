"""Whatever the sizes of its micro-batches, a read of a queue hands out each message once and acknowledges it afterwards."""

from __future__ import annotations

from hypothesis import given, strategies as st

from spark_connector.queues.source import HandedOut
from tests.unit.spark.test_handed_out import at, batch, tags


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20))
def test_each_message_is_in_one_range_and_acknowledged_after_it(steps) -> None:
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
