"""``writeStream.format("rabbitmq")`` in a real Spark: restarts, and the connections of many tasks."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from tests.deliveries import deliveries
from tests.patience import PATIENCE, wait_until
from tests.programs import stopping

pytestmark = [pytest.mark.spark, pytest.mark.broker]

DEADLINE = 4 * PATIENCE


def stream(frame, broker, checkpoint, **options):
    chosen = {"url": broker.url, "retryTimeoutMs": "300", "checkpointLocation": str(checkpoint), **options}
    return frame.writeStream.format("rabbitmq").options(**chosen)


def put(folder: Path, name: str, *texts: str) -> None:
    """Create a file atomically: Spark would read one that is still being written."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("".join(f"{text}\n" for text in texts))
    hidden.rename(folder / name)


def test_each_file_is_written_once_over_restarts(spark, broker, inbox, tmp_path):
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    put(folder, "a", "a1", "a2")
    put(folder, "b", "b1")

    def run():
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))
        frame = lines.selectExpr("value", "value as key")
        writer = stream(frame, broker, checkpoint, exchange=inbox.exchange, taskHeaders="true")
        with stopping(writer.trigger(availableNow=True).start()) as query:
            assert query.awaitTermination(DEADLINE), "still running"

    run()
    put(folder, "c", "c1")
    run()
    run()
    found = inbox.take(4)
    assert sorted(one.body for one in found) == [b"a1", b"a2", b"b1", b"c1"]
    assert {one.properties.headers["x-spark-batch-id"] for one in found} == {"0", "1", "2"}
    assert len({one.properties.headers["x-spark-query-id"] for one in found}) == 1


def numbered(folder: Path) -> list[str]:
    """The numbered files in a log of a checkpoint: one for each micro-batch or epoch."""
    return [one.name for one in folder.glob("*") if one.name.isdigit()]


@pytest.fixture
def many_shuffle_tasks(spark):
    name, tasks = "spark.sql.shuffle.partitions", 200
    before = spark.conf.get(name)
    spark.conf.set(name, tasks)
    yield tasks
    spark.conf.set(name, before)


@pytest.mark.long
@pytest.mark.proof
@pytest.mark.timeout(1_200)
def test_a_stateful_stream_of_200_tasks_opens_one_connection_for_each_worker(
    spark, broker, inbox, tmp_path, many_shuffle_tasks
):
    created = "element(2, hd(ets:lookup(connection_churn_metrics, node())))."
    # It shuffles, and remembers what it has seen.
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5_000).load()
    frame = source.dropDuplicates(["value"])
    frame = frame.selectExpr("cast(value as string) as value", "'k' as key")
    before = int(broker.eval(created))
    query = stream(frame, broker, tmp_path, exchange=inbox.exchange, taskHeaders="true").start()
    wait_until(
        lambda: query.exception() or len(numbered(tmp_path / "commits")) >= 3, "three commits", DEADLINE
    )
    opened = int(broker.eval(created)) - before
    query.stop()
    assert query.exception() is None
    # 600 tasks run in two workers (three if Spark replaced a worker), which may connect three times if slow micro-batches leave connections idle.
    assert opened <= 3 * (2 + 1)
    tasks: dict[str, set[int]] = {}
    for properties in {one.properties for one in deliveries(broker.url, inbox.queue, len(inbox))}:
        headers = pika.BasicProperties().decode(properties).headers
        tasks.setdefault(headers["x-spark-batch-id"], set()).add(headers["x-spark-partition"])
    # 25 rows for each task, however long a micro-batch takes.
    assert [len(tasks[batch]) for batch in ("0", "1", "2")] == [many_shuffle_tasks] * 3
