"""``df.write`` and ``df.writeStream`` store each row in real streams once, in order and with all columns."""

from __future__ import annotations

from collections import defaultdict

import pytest
from pyspark import TaskContext

from rabbit_chx import SuperStream
from rabbit_chx.streams import StreamReader, connect
from tests.broker.stream_scene import stored
from tests.patience import wait_until
from tests.spark.test_batch_write import failure
from tests.spark.test_read_streams import given

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def write(frame, broker, **options):
    frame.write.format("rabbitmq").options(**given(broker, **options)).mode("append").save()


def numbers(spark, count, partitions=2):
    return spark.range(0, count, 1, partitions).selectExpr(
        "cast(id as string) as value", "concat('key-', id % 100) as routing_key"
    )


def bodies(broker, stream):
    return [int(message.body) for message in stored(broker.stream_url, stream)]


def test_a_super_stream_gets_each_row_in_the_partition_of_its_key(spark, broker, streams):
    name, partitions = streams.super_stream(3)
    write(numbers(spark, 5_000, 1), broker, superStream=name)
    official = SuperStream(partitions)
    found = {stream: stored(broker.stream_url, stream) for stream in partitions}
    assert sorted(int(one.body) for rows in found.values() for one in rows) == list(range(5_000))
    for stream, rows in found.items():
        assert {official.route(one.routing_key) for one in rows} == {stream}
        by_key = defaultdict(list)
        for one in rows:
            by_key[one.routing_key].append(int(one.body))
        for key, sent in by_key.items():
            assert sent == sorted(sent), key


def test_rows_of_one_stream_are_written_to_another_and_read_back_equal(spark, broker, streams):
    source, target = streams.stream(), streams.stream()
    rows = spark.sql(
        """select 'käse' as value, 'a key' as routing_key, map('a', '1') as headers, 'id-1' as message_id,
        'application/json' as content_type, 'gzip' as content_encoding, 'c' as correlation_id, 'answers' as reply_to,
        'kind' as type, 'app' as app_id, 'guest' as user_id, '60000' as expiration, 7 as priority, 2 as delivery_mode,
        timestamp'2023-11-14 22:13:20' as timestamp
        union all select '', 'other', null, null, null, null, null, null, null, null, null, null, null, null, null"""
    )
    write(rows.coalesce(1), broker, stream=source)
    position = "stream", "offset", "stream_timestamp"
    first = spark.read.format("rabbitmq").options(**given(broker, stream=source)).load().drop(*position)
    write(first.coalesce(1), broker, stream=target)
    second = spark.read.format("rabbitmq").options(**given(broker, stream=target)).load().drop(*position)
    assert second.collect() == first.collect()
    found = first.selectExpr(
        *(f"cast({name} as string) as {name}" if name == "value" else name for name in rows.columns)
    )
    expected = [row.asDict() | {"headers": row.headers or {}} for row in rows.collect()]
    assert sorted((row.asDict() for row in found.collect()), key=lambda row: row["value"]) == sorted(
        expected, key=lambda row: row["value"]
    )


FAILING = 20_000
"""Rows of a task: far more than the buffers between two Python workers hold."""


def failing(spark, frame, url, stream):
    """Return a frame whose first attempt fails when the stream has some of its rows."""

    def rows(all_rows):
        yield from all_rows
        if TaskContext.get().attemptNumber() == 0:
            wait_until(lambda: count(url, stream) > 0, "some rows are stored")
            raise RuntimeError("the first attempt fails")

    return spark.createDataFrame(frame.rdd.mapPartitions(rows), frame.schema)


def count(url, stream):
    with StreamReader(url, stream) as reader:
        found = reader.bounds()
        return found.end - found.first


@pytest.fixture
def small_batches(spark):
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_task_that_runs_again_adds_only_the_missing_rows(spark, broker, streams, small_batches):
    frame = numbers(spark, FAILING, 1)
    expected = list(range(FAILING))
    for exactly_once in (True, False):
        stream = streams.stream()
        again = failing(spark, frame, broker.stream_url, stream)
        write(again, broker, stream=stream, exactlyOnce=exactly_once)
        found = bodies(broker, stream)
        # The control: without names, the stream has the rows of the first attempt twice.
        assert (found == expected) == exactly_once
        assert set(found) == set(expected)


def test_invalid_writes_are_rejected_before_a_task_starts(spark, broker, streams):
    frame, stream = numbers(spark, 10), streams.stream()
    for options, words in [
        ({"stream": "no-such-stream"}, "has no stream 'no-such-stream'"),
        ({"superStream": "no-such-stream"}, "no-such-stream"),
        ({"stream": stream, "exchange": "x"}, "invalid target of a write: got 'options stream and exchange'"),
    ]:
        assert words in failure(lambda options=options: write(frame, broker, **options))
    with connect(broker.stream_url) as connection:
        assert connection.metadata([stream])[stream].exists
    assert bodies(broker, stream) == []
