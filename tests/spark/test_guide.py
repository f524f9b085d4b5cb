"""Runs the code blocks of the pages about Spark with the address of the test broker."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest

from rabbit_chx.streams import StreamReader, connect
from rabbit_chx.topology.file.load import loads
from spark_connector import LagListener
from tests.patience import PATIENCE, wait_until
from tests.programs import stopping
from tests.queues import bind_ring, confirming_channel, delete_exchange
from tests.spark.conftest import PASSWORD
from tests.spark.streams import Streams
from tests.unit.test_docs import marked
from tests.users import a_user

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

WEIGHTS = {"q0": "1", "q1": "1", "q2": "2"}
ROWS = [("ada", 1), ("grace", 2), ("ada", 3)]


@pytest.fixture
def orders(rabbitmq_broker):
    """An exchange orders, and a function that consumes and returns the bodies of all messages."""
    with confirming_channel(rabbitmq_broker) as channel:
        bind_ring(channel, "orders", WEIGHTS)

        def take() -> list[dict[str, object]]:
            found = (channel.basic_get(name, auto_ack=True) for name in WEIGHTS for _ in range(100))
            return sorted((json.loads(body) for *_, body in found if body), key=lambda row: row["seq"])

        yield take
        delete_exchange(channel, "orders", WEIGHTS)


@pytest.fixture
def df(spark):
    frame = spark.createDataFrame(ROWS, "customer string, seq int")
    frame.createOrReplaceTempView("purchases")
    yield frame
    spark.catalog.dropTempView("purchases")


@pytest.fixture
def at(rabbitmq_broker):
    """Puts the broker into a block; the password of its user is in the workers' environment."""
    parts = urlsplit(rabbitmq_broker.url)

    def put(block: str) -> str:
        assert "user@host" in block
        return block.replace("user@host", f"user@{parts.hostname}:{parts.port}")

    with a_user(rabbitmq_broker, "", "^orders$", "^orders$", name="user", password=PASSWORD):
        yield put


def rows(frame) -> list[dict[str, object]]:
    return [row.asDict() for row in frame.orderBy("seq").collect()]


def test_the_first_lines_write_a_frame(at, orders, df):
    exec(at(marked("spark.md", "test_the_first_lines_write_a_frame")), {"df": df})
    assert orders() == rows(df)


@pytest.mark.pyspark("4.1", "queue_of needs Arrow UDFs")
def test_the_mirror_in_a_frame(df, capsys):
    exec(marked("spark.md", "test_the_mirror_in_a_frame"), {"df": df})
    assert "3 rows on 3 queues" in capsys.readouterr().out


def test_the_helper_writes_each_batch(rabbitmq_broker, orders, spark, tmp_path):
    lines = [json.dumps({"value": json.dumps({"seq": n}), "routing_key": "ada", "seq": n}) for n in range(5)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.json").write_text("\n".join(lines))
    stream = spark.readStream.schema("value string, routing_key string, seq int").json(str(tmp_path / "in"))
    given = {"stream": stream, "url": rabbitmq_broker.url, "path": str(tmp_path / "checkpoint")}
    exec(marked("spark.md", "test_the_helper_writes_each_batch"), given)
    (query,) = spark.streams.active
    with stopping(query):
        query.processAllAvailable()
    assert orders() == [{"seq": number} for number in range(5)]


def test_the_statements_write_a_table(at, orders, df, spark):
    block = at(marked("spark-options.md", "test_the_statements_write_a_table"))
    for statement in filter(str.strip, block.split(";")):
        spark.sql(statement)
    spark.catalog.dropTempView("outbox")
    spark.sql("DROP TABLE mail")
    assert orders() == sorted([*rows(df), *rows(df)], key=lambda row: row["seq"])


@pytest.fixture
def events(rabbitmq_broker):
    """A stream events with five messages."""
    with Streams(rabbitmq_broker.url) as streams:
        streams.declare("events")
        streams.fill("events", [b"%d" % number for number in range(5)])
        yield
        streams.channel.queue_delete("events")


def bodies(frame):
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def test_the_first_lines_read_a_stream(rabbitmq_broker, events, spark):
    parts, given = urlsplit(rabbitmq_broker.stream_url), {"spark": spark}
    block = marked("spark-read.md", "test_the_first_lines_read_a_stream")
    block = block.replace("amqp://user@host", f"rabbitmq-stream://user@{parts.hostname}:{parts.port}")
    with a_user(rabbitmq_broker, "", "", "^events$", name="user", password=PASSWORD):
        exec(block, given)
        assert bodies(given["rows"]) == [b"0", b"1", b"2", b"3", b"4"]


def test_the_statements_read_a_stream(rabbitmq_broker, events, spark):
    parts = urlsplit(rabbitmq_broker.stream_url)
    block = marked("spark-options.md", "test_the_statements_read_a_stream")
    block = block.replace("amqp://user@host", f"rabbitmq-stream://user@{parts.hostname}:{parts.port}")
    with a_user(rabbitmq_broker, "", "", "^events$", name="user", password=PASSWORD):
        found = [spark.sql(one).collect() for one in filter(str.strip, block.split(";"))]
    with pytest.raises(Exception, match=r"SELECT \.\.\. FROM t WITH \(url"):
        spark.table("history").collect()
    spark.catalog.dropTempView("events")
    spark.sql("DROP TABLE history")
    assert [sorted(map(tuple, rows)) for rows in found if rows] == [[("2", 2), ("3", 3), ("4", 4)]] * 2


def test_a_frame_is_written_to_a_stream(rabbitmq_broker, events, spark):
    rows = spark.sql("select 'one more' as value")
    exec(
        marked("spark.md", "test_a_frame_is_written_to_a_stream"),
        {"rows": rows, "url": rabbitmq_broker.stream_url},
    )
    with StreamReader(rabbitmq_broker.stream_url, "events") as reader:
        assert [message.body for message in reader.messages(5, 6)] == [b"one more"]


@pytest.mark.pyspark("4.2", "it does not report where streams end")
def test_the_lag_of_a_query_is_a_gauge(rabbitmq_broker, events, spark, tmp_path):
    from prometheus_client import REGISTRY

    seen = []

    class Seen(LagListener):
        def onQueryProgress(self, event):  # noqa: N802 - Spark's name
            super().onQueryProgress(event)
            seen.extend(self.now.values())

    given = {"spark": spark}
    exec(marked("spark-read.md", "test_the_lag_of_a_query_is_a_gauge"), given)
    other = Seen()
    spark.streams.addListener(other)
    try:
        options = {"url": rabbitmq_broker.stream_url, "stream": "events", "startingOffsets": "earliest"}
        frame = spark.readStream.format("rabbitmq").options(**options, maxRowsPerTrigger=2).load()
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: batch.collect())
            .queryName("lag")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(2 * PATIENCE)
        labels = {"query": "lag", "stream": "events"}
        wait_until(
            lambda: REGISTRY.get_sample_value("rabbitmq_spark_offsets_behind", labels) == 0, "the gauge"
        )
        wait_until(lambda: {"events": 0} in seen, "the last count")
    finally:
        for listener in (given["listener"], other):
            spark.streams.removeListener(listener)
    assert seen[0] == {"events": 3}


def test_a_stream_is_copied_to_files(rabbitmq_broker, events, spark, tmp_path):
    folder, checkpoint = str(tmp_path / "rows"), str(tmp_path / "checkpoint")
    given = {"spark": spark, "url": rabbitmq_broker.stream_url, "folder": folder, "checkpoint": checkpoint}
    exec(marked("spark-read.md", "test_a_stream_is_copied_to_files"), given)
    assert given["query"].awaitTermination(2 * PATIENCE)
    assert bodies(spark.read.parquet(folder)) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.pyspark(
    "4.2", "Trigger.AvailableNow ends after a micro-batch of a Python source, which nothing acknowledges"
)
def test_a_queue_is_copied_to_files(rabbitmq_broker, spark, tmp_path):
    folder, checkpoint = str(tmp_path / "rows"), str(tmp_path / "checkpoint")
    given = {"spark": spark, "url": rabbitmq_broker.url, "folder": folder, "checkpoint": checkpoint}
    with confirming_channel(rabbitmq_broker) as channel:
        channel.queue_declare("orders.0", durable=True)
        try:
            for number in range(5):
                channel.basic_publish("", "orders.0", b"%d" % number)
            exec(marked("spark-queue.md", "test_a_queue_is_copied_to_files"), given)
            assert given["query"].awaitTermination(2 * PATIENCE)
        finally:
            left = channel.queue_delete("orders.0").method.message_count
    assert left == 0
    assert bodies(spark.read.parquet(folder)) == [b"0", b"1", b"2", b"3", b"4"]


def test_the_topology_has_quorum_queues_and_a_stream():
    topology = loads(
        marked("spark-queue.md", "test_the_topology_has_quorum_queues_and_a_stream"), format="yaml"
    )
    assert {queue.type for queue in topology.queues} == {"quorum", "stream"}


@pytest.fixture
def orders_stream(rabbitmq_broker):
    """The super stream of the guide, and a function that puts the broker into a block."""
    url = rabbitmq_broker.stream_url

    def at(block: str) -> str:
        return block.replace("rabbitmq-stream://user:password@host", url)

    yield at
    with connect(url) as connection:
        connection.delete_super_stream("orders")


def test_the_created_super_stream_is_there(rabbitmq_broker, orders_stream):
    exec(orders_stream(marked("spark-bulk.md", "test_the_created_super_stream_is_there")), {})
    with connect(rabbitmq_broker.stream_url) as connection:
        assert connection.partitions("orders") == [f"orders-{number}" for number in range(6)]


def test_rows_are_written_once_and_read_back(rabbitmq_broker, orders_stream, df, spark):
    with connect(rabbitmq_broker.stream_url) as connection:
        connection.create_super_stream("orders", {"orders-0": "0", "orders-1": "1"})
    names = {"df": df, "spark": spark}
    for _ in range(2):  # the second time as after an interruption
        exec(orders_stream(marked("spark-bulk.md", "test_rows_are_written_once_and_read_back")), names)


def test_the_topology_has_a_hash_exchange_over_streams():
    topology = loads(
        marked("spark-bulk.md", "test_the_topology_has_a_hash_exchange_over_streams"), format="yaml"
    )
    assert [(queue.name, queue.type) for queue in topology.queues] == [
        (f"orders-{number}", "stream") for number in range(6)
    ]
    assert len(topology.bindings) == 6
