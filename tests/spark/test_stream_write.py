"""``writeStream.format("rabbitmq")`` in a real Spark: restarts, rejected modes, and ``foreach_batch``."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from spark_connector import foreach_batch
from tests.deliveries import deliveries
from tests.patience import PATIENCE, wait_until
from tests.programs import stopping

pytestmark = [pytest.mark.spark, pytest.mark.broker]

DEADLINE = 4 * PATIENCE


def stream(frame, broker, checkpoint, **options):
    chosen = {"url": broker.url, "retryTimeoutMs": "300", "checkpointLocation": str(checkpoint), **options}
    return frame.writeStream.format("rabbitmq").options(**chosen)


def rates(spark):
    return spark.readStream.format("rate").option("rowsPerSecond", 200).load()


def lines(spark, folder):
    """A stream of the lines of a folder's files, one file a micro-batch."""
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))


def put(folder: Path, name: str, *texts: str) -> None:
    """Create a file atomically: Spark would read one that is still being written."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("".join(f"{text}\n" for text in texts))
    hidden.rename(folder / name)


def run_out(query):
    """Wait for a query that ends by itself, and raise its error."""
    with stopping(query):
        assert query.awaitTermination(DEADLINE), "still running"


def test_each_file_is_written_once_over_restarts(spark, broker, inbox, tmp_path):
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    put(folder, "a", "a1", "a2")
    put(folder, "b", "b1")

    def run():
        frame = lines(spark, folder).selectExpr("value", "value as key")
        query = stream(frame, broker, checkpoint, exchange=inbox.exchange, taskHeaders="true")
        run_out(query.trigger(availableNow=True).start())

    run()
    put(folder, "c", "c1")
    run()
    run()
    found = inbox.take(4)
    assert sorted(one.body for one in found) == [b"a1", b"a2", b"b1", b"c1"]
    assert {one.properties.headers["x-spark-batch-id"] for one in found} == {"0", "1", "2"}
    assert len({one.properties.headers["x-spark-query-id"] for one in found}) == 1


def test_an_invalid_row_ends_the_query_once_or_is_dropped(spark, broker, inbox, tmp_path):
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    put(folder, "a", "good", "poison", "fine")
    frame = lines(spark, folder).selectExpr("nullif(value, 'poison') as value", "value as key")

    def query(**options):
        return stream(frame, broker, checkpoint, exchange=inbox.exchange, **options).trigger(
            availableNow=True
        )

    with pytest.raises(Exception, match="row 1 of partition 0: value is null"):
        run_out(query().start())
    assert len(inbox) == 0
    run_out(query(invalidRows="drop").start())
    assert sorted(one.body for one in inbox.take(2)) == [b"fine", b"good"]


def numbered(folder: Path) -> list[str]:
    """The numbered files in a log of a checkpoint: one for each micro-batch or epoch."""
    return [one.name for one in folder.glob("*") if one.name.isdigit()]


def commits_of_a_continuous_query(writer, checkpoint, least=0) -> list[str]:
    """The commits after four epochs, and after at least ``least`` commits.

    Spark records an epoch's offsets, and then asks the sink to commit.
    """

    def enough() -> bool:
        return len(numbered(checkpoint / "offsets")) >= 4 and len(numbered(checkpoint / "commits")) >= least

    query = (
        writer.option("checkpointLocation", str(checkpoint)).trigger(continuous="500 milliseconds").start()
    )
    with stopping(query):
        wait_until(lambda: query.exception() or enough(), "four epochs", DEADLINE)
        assert query.exception() is None
        return numbered(checkpoint / "commits")


@pytest.mark.long
def test_a_continuous_trigger_writes_and_commits_nothing(spark, broker, inbox, tmp_path):
    frame = rates(spark).selectExpr("cast(value as string) as value", "'k' as key")
    ours = stream(frame, broker, tmp_path / "ours", exchange=inbox.exchange)
    assert commits_of_a_continuous_query(ours, tmp_path / "ours") == []
    assert len(inbox) == 0
    assert commits_of_a_continuous_query(frame.writeStream.format("noop"), tmp_path / "noop", least=1)


def test_unsupported_modes_are_rejected_before_a_row_is_sent(spark, broker, inbox, tmp_path):
    folder = tmp_path / "in"
    put(folder, "a", "x")
    counts = lines(spark, folder).groupBy("value").count().selectExpr("value", "value as key")
    for mode, words in [("complete", "foreach_batch"), ("update", "Update mode")]:
        query = stream(counts, broker, tmp_path / mode, exchange=inbox.exchange).outputMode(mode)
        with pytest.raises(Exception, match=words):
            run_out(query.trigger(availableNow=True).start())
    ordered = lines(spark, folder).selectExpr("value", "value as key").sortWithinPartitions("key")
    with pytest.raises(Exception, match="Sorting is not supported on streaming"):
        stream(ordered, broker, tmp_path / "sorted", exchange=inbox.exchange).start()
    assert len(inbox) == 0


def test_foreach_batch_writes_counts_in_update_mode(spark, broker, inbox, tmp_path):
    folder = tmp_path / "in"
    put(folder, "a", "x", "x", "y")
    put(folder, "b", "x")
    counts = lines(spark, folder).groupBy("value").count()
    write = foreach_batch(
        lambda batch: batch.selectExpr("concat(value, '=', count) as body", "value as key").orderBy("key"),
        url=broker.url,
        exchange=inbox.exchange,
    )
    query = counts.writeStream.outputMode("update").foreachBatch(write)
    run_out(query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start())
    found = sorted(one.body for one in inbox.take_all())
    assert found in ([b"x=2", b"x=3", b"y=1"], [b"x=1", b"x=3", b"y=1"])  # files come in either order


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
