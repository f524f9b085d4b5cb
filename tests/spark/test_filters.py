"""Options of a read that replace filters, and when the rows of a batch are fixed."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from rabbit_chx import SuperStream
from rabbit_chx.streams import StreamPublisher
from tests.spark.test_read_streams import read

pytestmark = [pytest.mark.spark]

pushing = pytest.mark.pyspark("4.1", "it does not push filters to sources written in Python")


@pytest.fixture
def pushdown(spark):
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    yield
    spark.conf.unset(setting)


@pytest.mark.long
@pytest.mark.broker
def test_options_return_the_rows_of_the_filters_that_they_replace(spark, broker, streams, pushdown):
    name, partitions = streams.super_stream(3)
    mirror, keys = SuperStream(partitions), [f"customer-{number}" for number in range(9)]
    for part in range(4):  # a connection takes milliseconds, so the chunks of a stream have different times
        for stream in sorted({mirror.route(key) for key in keys}):
            chosen = [key for key in keys if mirror.route(key) == stream]
            with StreamPublisher(broker.stream_url, stream) as publisher:
                publisher.publish_many([b"%d" % part] * len(chosen), chosen)
    rows = read(spark, broker, superStream=name)
    times = sorted(row.time for row in rows.selectExpr("unix_millis(stream_timestamp) AS time").collect())
    middle = datetime.fromtimestamp(times[18] / 1_000, UTC).isoformat()
    stream = mirror.route(keys[0])
    starts = dict.fromkeys(partitions, "earliest") | {stream: 2}
    ends = dict.fromkeys(partitions, "latest") | {stream: 2}
    for condition, options in [
        ("routing_key = 'customer-0'", {"keys": "customer-0"}),
        ("routing_key IN ('customer-0', 'customer-5')", {"keys": "customer-0,customer-5"}),
        (f"stream <> '{stream}' OR offset >= 2", {"startingOffsets": json.dumps(starts)}),
        (f"stream <> '{stream}' OR offset < 2", {"endingOffsets": json.dumps(ends)}),
        (f"stream_timestamp >= '{middle}'", {"startingOffsets": middle}),
        (f"stream_timestamp < '{middle}'", {"endingOffsets": middle}),
    ]:
        expected = places(rows.where(condition))
        assert 0 < len(expected) < len(times) == 36
        assert places(read(spark, broker, superStream=name, **options)) == expected, condition
    assert len(places(rows)) == 36


def places(frame):
    return sorted((row.stream, row.offset) for row in frame.select("stream", "offset").collect())


@pytest.mark.broker
@pushing
def test_the_first_action_on_a_batch_fixes_its_rows(spark, broker, streams):
    stream = streams.stream()
    streams.fill(stream, [b"0"])
    frame = read(spark, broker, stream=stream)
    assert frame.count() == 1
    streams.fill(stream, [b"1"])
    assert (frame.count(), frame.where("offset >= 0").count()) == (1, 1)
    assert read(spark, broker, stream=stream).count() == 2
