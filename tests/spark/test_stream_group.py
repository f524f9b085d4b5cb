"""A group on streams, and Spark, read the same streams at the same time."""

from __future__ import annotations

import pytest

from rabbit_chx.streams import StreamGroup
from tests.members import running
from tests.patience import wait_until
from tests.spark.streams import numbered
from tests.spark.test_read_streams import read, values

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

ROWS = 2_000


def test_spark_and_a_group_read_the_same_streams_undisturbed(spark, broker, streams):
    super_stream, partitions = streams.super_stream(3)
    seen, told = [], []
    group = StreamGroup(
        broker.stream_url,
        super_stream=super_stream,
        name="beside Spark",
        store_every=10,
        on_assigned=told.append,
        on_revoked=lambda stream: told.append(f"without {stream}"),
    )
    with running(group, lambda message: seen.append((message.queue, message.offset))):
        for first in range(0, ROWS, ROWS // 4):
            for number, partition in enumerate(partitions):
                rows = range(first, first + ROWS // 4)
                streams.fill(partition, numbered(rows.start, rows.stop)[number::3])
            found = values(read(spark, broker, superStream=super_stream))
            assert sorted(found) == list(range(first + ROWS // 4))
            wait_until(lambda: len(seen) >= len(found), "the group handled the rows")  # noqa: B023
        assert sorted(told) == partitions
    assert len(seen) == len(set(seen)) == ROWS
