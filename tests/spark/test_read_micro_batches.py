"""``spark.readStream`` of real streams in a real Spark: restarts and limits."""

from __future__ import annotations

import pytest

from tests.programs import stopping
from tests.spark.streams import numbered
from tests.spark.test_read_streams import DEADLINE, admission, given

pytestmark = [pytest.mark.spark, pytest.mark.broker]


class Copy:
    """A query that copies a stream to files, and can be restarted."""

    def __init__(self, spark, broker, folder, **options):
        self._spark, self._broker, self._folder, self._options = spark, broker, folder, options

    def start(self, **changes):
        options = {"columns": "value,stream,offset", "startingOffsets": "earliest", **self._options}
        options = given(self._broker, **(options | changes))
        frame = self._spark.readStream.format("rabbitmq").options(**options).load()
        files = frame.writeStream.format("parquet").option("path", str(self._folder / "rows"))
        return files.option("checkpointLocation", str(self._folder / "checkpoint"))

    def run(self, **changes):
        """Read all available rows, and return the number of rows of each micro-batch."""
        with stopping(self.start(**changes).trigger(availableNow=True).start()) as query:
            assert query.awaitTermination(DEADLINE)
        return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

    def values(self):
        frame = self._spark.read.parquet(str(self._folder / "rows"))
        rows = sorted((row.stream, row.offset, int(bytes(row.value))) for row in frame.collect())
        return [value for *_, value in rows]


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
