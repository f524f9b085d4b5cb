"""Exactly-once writes whose rows differ from those of an earlier attempt fail, and continue as docs/spark-guarantees.md says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.sql.functions import udf

from tests.broker.stream_scene import stored
from tests.patience import PATIENCE
from tests.spark.streams import numbered
from tests.spark.test_batch_write import failure
from tests.spark.test_read_streams import given
from tests.spark.test_write_to_streams import bodies, numbers, write
from tests.unit.test_docs import marked

pytestmark = [pytest.mark.spark, pytest.mark.broker]

HOW_TO_CONTINUE = 'see "A write fails because its rows differ" in docs/spark-guarantees.md'
ROWS = list(range(1_000))


def test_fewer_partitions_fail_and_the_missing_rows_are_added(spark, broker, streams):
    stream = streams.stream()
    options = {"stream": stream, "producerName": "import-7"}
    frame = numbers(spark, len(ROWS), 4)
    for _ in range(2):  # the second write adds nothing
        write(frame, broker, **options)
        assert sorted(bodies(broker, stream)) == ROWS
    number = (
        "the write has {} partitions, but an earlier attempt with the producer name 'import-7' had at least 4, "
        "so rows may be stored twice"
    )
    # The one that fails ends the other, if that has not ended before; then the failure is its own.
    its_own = "number 500, but the stream has 1000 (producer name 'import-7/0')"
    for partitions, expected in (1, [number.format(1)]), (2, [number.format(2), its_own]):
        complaint = failure(
            lambda partitions=partitions: write(frame.coalesce(partitions), broker, **options)
        )
        assert any(each in complaint for each in expected)
        assert HOW_TO_CONTINUE in complaint
        assert "adds only the missing rows" not in complaint
    more = numbers(spark, 1_500, 4)
    block = marked("spark-guarantees.md", "test_fewer_partitions_fail_and_the_missing_rows_are_added")
    exec(block, {"spark": spark, "df": more, "target": given(broker, stream=stream)})
    found = Counter(bodies(broker, stream))
    assert sorted(found) == list(range(1_500))
    assert {found[number] for number in range(1_000, 1_500)} == {1}


def copy(spark, broker, source, target, checkpoint, *, partitions, **options):
    """Copy what is new in a stream by a query that ends."""
    reads = given(broker, stream=source, startingOffsets="earliest", minPartitions=partitions)
    rows = spark.readStream.format("rabbitmq").options(**reads).load().select("value", "routing_key")
    writer = rows.writeStream.format("rabbitmq").options(**given(broker, stream=target, **options))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(2 * PATIENCE)


def forget_last_commit(checkpoint: Path) -> None:
    """Leave the checkpoint of a driver that was killed before its commit."""
    log = checkpoint / "commits"
    last = max(int(one.name) for one in log.iterdir() if one.name.isdigit())
    for one in log.iterdir():
        if one.name in {str(last), f".{last}.crc"}:
            one.unlink()


@pytest.mark.long
@pytest.mark.parametrize("partitions", [pytest.param(1, marks=[pytest.mark.long, pytest.mark.proof]), 2])
def test_a_restarted_query_with_fewer_partitions_fails_and_continues_under_another_name(
    spark, broker, streams, tmp_path, partitions
):
    source, target = streams.stream(), streams.stream()
    streams.fill(source, numbered(0, 400))
    copy(spark, broker, source, target, tmp_path, partitions=4)
    streams.fill(source, numbered(400, 800))
    copy(spark, broker, source, target, tmp_path, partitions=4)
    forget_last_commit(tmp_path)
    complaint = failure(lambda: copy(spark, broker, source, target, tmp_path, partitions=partitions))
    assert HOW_TO_CONTINUE in complaint
    assert "had at least 4" in complaint
    copy(spark, broker, source, target, tmp_path, partitions=partitions, producerName="again")
    streams.fill(source, numbered(800, 1_000))
    copy(spark, broker, source, target, tmp_path, partitions=partitions, producerName="again")
    found = Counter(bodies(broker, target))
    assert sorted(found) == ROWS
    assert {found[number] for number in (*range(400), *range(800, 1_000))} == {1}


@pytest.mark.parametrize("for_each_batch", [False, True], ids=["writeStream", "foreachBatch"])
def test_spark_tells_each_task_the_run_of_its_query(spark, broker, streams, tmp_path, for_each_batch):
    """So only the first micro-batch of a run asks for rows of earlier attempts."""
    source, target = streams.stream(), streams.stream()
    streams.fill(source, numbered(0, 10))
    run = udf(lambda _: TaskContext.get().getLocalProperty("spark.jobGroup.id"), "string")
    reads = given(broker, stream=source, startingOffsets="earliest")
    rows = spark.readStream.format("rabbitmq").options(**reads).load().select(run("value").alias("value"))
    if for_each_batch:
        writer = rows.writeStream.foreachBatch(lambda frame, _: write(frame, broker, stream=target))
    else:
        writer = rows.writeStream.format("rabbitmq").options(**given(broker, stream=target))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(2 * PATIENCE)
    assert {one.body.decode() for one in stored(broker.stream_url, target)} == {str(query.runId)}
