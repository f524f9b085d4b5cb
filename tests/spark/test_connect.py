"""Spark Connect: the same writes and reads from a session without a JVM, batch, stream and ``foreachBatch``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.inbox import Inbox
from tests.patience import PATIENCE
from tests.programs import ran
from tests.spark.streams import Streams

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.proof]

# A process of its own: one process holds no classic session and a Connect session at a time.
PROGRAM = """
import sys, tempfile
from pyspark.sql import SparkSession
from spark_connector import foreach_batch, register
from rabbit_chx.cli.spark import ask_executors
from tests.programs import stopping

url, exchange, stream_url, stream_name = sys.argv[1:]
options = {"url": url, "exchange": exchange}
session = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
for name in ("spark.driver.host", "spark.driver.bindAddress"):
    session = session.config(name, "127.0.0.1")
spark = session.getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
spark.conf.set("spark.datasource.rabbitmq.password", "ignored here, and refused in a classic session")
register(spark)

frame = spark.range(100).selectExpr("concat('batch-', id) as value", "'k' as key")
frame.write.format("rabbitmq").options(**options).mode("append").save()
try:
    frame.write.format("rabbitmq").options(**options, maxInFlite="1").mode("append").save()
except Exception as error:
    assert "Did you mean maxInFlight?" in str(error), error
else:
    raise AssertionError("an unknown option was taken")

def stream():
    rate = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    return rate.selectExpr("concat('{}-', value) as value".format(kind), "'k' as key").writeStream.option(
        "checkpointLocation", tempfile.mkdtemp()
    )

def run(query):
    with stopping(query):
        while not any(one["batchId"] >= 2 for one in query.recentProgress):
            assert not query.awaitTermination(0.5), query.exception()

kind = "stream"
run(stream().format("rabbitmq").options(**options).start())
kind = "foreach"
writer = stream().foreachBatch(foreach_batch(**options))
for attempt in range(3):
    try:
        query = writer.start()
    except Exception as error:  # Spark gives a new Python ten seconds, which a busy machine may exceed
        if attempt == 2 or "connect back" not in str(error):
            raise
    else:
        break
run(query)

reading = {"url": stream_url, "stream": stream_name, "columns": "value,offset", "startingOffsets": "earliest"}
rows = spark.read.format("rabbitmq").options(**reading).load()
assert sorted(int(row.value) for row in rows.collect()) == list(range(5))
copied = spark.readStream.format("rabbitmq").options(**reading).load().writeStream.format("parquet")
folder = tempfile.mkdtemp()
copied = copied.option("path", folder + "/rows").option("checkpointLocation", folder + "/checkpoint")
assert copied.trigger(availableNow=True).start().awaitTermination(300)
assert spark.read.parquet(folder + "/rows").count() == 5

answers, expected = ask_executors(spark, {"url": url})
assert expected is None and [one["refused"] for one in answers] == [""], answers
spark.stop()
"""

ENVIRONMENT = {
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": str(Path.cwd()),
    "SPARK_TESTING": "1",  # has the server take a free port, and not 15002
}


def test_batch_and_stream_writes_and_reads_work_over_connect(rabbitmq_broker, tmp_path):
    pytest.importorskip("grpc")
    with Inbox(rabbitmq_broker.url) as inbox, Streams(rabbitmq_broker.url) as streams:
        stream = streams.stream()
        streams.fill(stream, [b"%d" % number for number in range(5)])
        arguments = [rabbitmq_broker.url, inbox.exchange, rabbitmq_broker.stream_url, stream]
        done = ran(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments],
            env=os.environ | ENVIRONMENT,
            cwd=tmp_path,
            timeout=4 * PATIENCE,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        kinds = {body.partition(b"-")[0] for body in inbox.bodies()}
        assert kinds == {b"batch", b"stream", b"foreach"}
