"""Stop and restart a stream: it continues from its checkpoint, and no row is missing."""

import os
import sys
import tempfile
from collections import Counter
from itertools import islice

from pyspark.sql import SparkSession

from rabbit_chx.broker import connect

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers also use this Python
url, name = os.environ["AMQP_URL"], os.environ.get("EXCHANGE", "example.spark-stream")

with connect(url) as connection:
    channel = connection.channel()
    channel.exchange_declare(name, "fanout", durable=True)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name)

spark = SparkSession.builder.appName("stream").getOrCreate()
readings = spark.readStream.format("rate").option("rowsPerSecond", 500).load()
messages = readings.selectExpr(
    "cast(value as string) as value", "concat('sensor-', value % 10) as routing_key"
)


def run(checkpoint: str, least: int) -> int:
    """Let the query write at least this many rows, stop it, and return the number of rows in finished micro-batches."""
    sink = messages.writeStream.format("rabbitmq").option("url", url).option("exchange", name)
    query = sink.option("checkpointLocation", checkpoint).start()
    finished = 0
    while finished < least and not query.awaitTermination(0.2):
        finished = sum(batch["numInputRows"] for batch in query.recentProgress)
    query.stop()
    return finished


with tempfile.TemporaryDirectory() as checkpoint:
    finished = run(checkpoint, 500) + run(checkpoint, 500)

with connect(url) as connection:
    channel = connection.channel()
    count = channel.queue_declare(name, passive=True).method.message_count
    arrived = Counter(int(body) for _, _, body in islice(channel.consume(name, auto_ack=True), count))
    channel.queue_delete(name)
    channel.exchange_delete(name)

missing = set(range(finished)) - arrived.keys()
print(
    f"{finished:,} rows finished over a restart, {len(missing)} missing, {arrived.total() - len(arrived)} twice"
)
if missing:
    raise SystemExit("rows are missing")
