"""``spark.readStream`` of real streams in a real Spark: restarts, limits, new streams, retention."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from rabbit_chx.streams import StreamPublisher
from tests.members import in_background
from tests.patience import wait_until
from tests.programs import stopping
from tests.spark.streams import SMALL_SEGMENTS, numbered
from tests.spark.test_batch_write import failure
from tests.spark.test_read_streams import DEADLINE, admission, given, read, values

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def read_stream(spark, broker, **options):
    return spark.readStream.format("rabbitmq").options(**given(broker, **options)).load()


class Copy:
    """A query that copies a stream to files, and can be restarted."""

    def __init__(self, spark, broker, folder, **options):
        self._spark, self._broker, self._folder, self._options = spark, broker, folder, options

    def start(self, **changes):
        options = {"columns": "value,stream,offset", "startingOffsets": "earliest", **self._options}
        frame = read_stream(self._spark, self._broker, **(options | changes))
        files = frame.writeStream.format("parquet").option("path", str(self._folder / "rows"))
        return files.option("checkpointLocation", str(self._folder / "checkpoint"))

    def run(self, **changes):
        """Read all available rows, and return the number of rows of each micro-batch."""
        with stopping(self.start(**changes).trigger(availableNow=True).start()) as query:
            assert query.awaitTermination(DEADLINE)
        return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

    def rows(self):
        frame = self._spark.read.parquet(str(self._folder / "rows"))
        return sorted((row.stream, row.offset, int(bytes(row.value))) for row in frame.collect())

    def values(self):
        return [value for *_, value in self.rows()]


def progress(query, rows):
    """Wait until a query has read this many rows."""
    wait_until(
        lambda: query.exception() or sum(batch["numInputRows"] for batch in query.recentProgress) >= rows,
        f"{rows} rows",
        DEADLINE,
    )
    assert query.exception() is None


def test_a_restarted_query_reads_each_row_once(spark, broker, streams, tmp_path):
    one, two = streams.stream(), streams.stream()
    copy = Copy(spark, broker, tmp_path, stream=f"{one},{two}")
    streams.fill(one, numbered(0, 50))
    copy.run()
    streams.fill(two, numbered(50, 70))
    copy.run()
    copy.run()
    assert copy.values() == list(range(70))


@admission
def test_micro_batches_are_limited_and_available_now_reads_all_rows(spark, broker, streams, tmp_path):
    one, two = streams.stream(), streams.stream()
    streams.fill(one, numbered(0, 100))
    streams.fill(two, numbered(100, 120))
    copy = Copy(spark, broker, tmp_path, stream=f"{one},{two}", maxRowsPerTrigger=30)
    batches = copy.run()
    assert max(batches) <= 30
    assert sum(batches) == 120
    assert copy.values() == list(range(120))
    assert copy.run() == []


@pytest.mark.long
def test_a_running_query_reads_new_rows_and_new_streams(spark, broker, streams, tmp_path):
    one, two = streams.stream(), streams.stream()
    exchange = streams.exchange("direct", {one: "1"})
    streams.fill(one, numbered(0, 10))
    copy = Copy(spark, broker, tmp_path, exchange=exchange, managementUrl=broker.management_url)
    query = copy.start().start()

    with stopping(query):
        progress(query, 10)
        streams.fill(two, numbered(10, 20))
        streams.channel.queue_bind(two, exchange, "2")
        progress(query, 20)
        streams.fill(two, numbered(20, 25))
        progress(query, 25)
        assert broker.password not in query.lastProgress.json
    assert Counter(copy.values()) == Counter(range(25))


@pytest.mark.long
def test_rows_deleted_by_retention_fail_a_query_or_are_logged(spark, broker, streams, tmp_path):
    stream = streams.stream(**SMALL_SEGMENTS)
    copy = Copy(spark, broker, tmp_path, stream=stream)
    streams.fill(stream, [body.ljust(200) for body in numbered(0, 20)])
    copy.run()
    streams.fill(stream, [body.ljust(1_000) for body in numbered(20, 400)])
    # It has deleted all that it will delete once its process answers after these confirms.
    broker.eval("sys:get_state(osiris_retention, infinity).")
    assert read(spark, broker, stream=stream, columns="offset").first().offset > 20
    assert "retention deleted them before" in failure(copy.run)
    assert copy.values() == list(range(20))
    copy.run(failOnDataLoss="false")
    kept = values(read(spark, broker, stream=stream, columns="value"))
    assert copy.values() == [*range(20), *kept]
    assert kept == list(range(kept[0], 400))
    options = {"stream": stream, "startingOffsets": f'{{"{stream}": 0}}'}
    assert "failOnDataLoss=false" in failure(lambda: read(spark, broker, **options).collect())
    assert values(read(spark, broker, **options, failOnDataLoss="false", columns="value")) == kept


@pytest.mark.long
def test_a_new_query_at_the_end_of_a_busy_stream_starts(spark, broker, streams, tmp_path):
    """Spark asks more than once where it starts, and the stream has grown in between."""
    stream = streams.stream()
    streams.fill(stream, numbered(0, 20))

    def fill(ended: threading.Event) -> None:
        with StreamPublisher(broker.stream_url, stream) as publisher:
            while not ended.wait(0.002):
                publisher.publish(b"1")

    copy = Copy(spark, broker, tmp_path, stream=stream, startingOffsets="latest")
    with in_background(fill), stopping(copy.start().start()) as query:
        progress(query, 100)
    assert {*copy.values()} == {1}
