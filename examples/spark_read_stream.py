"""Read a stream into files in two runs: the second one continues where the first one stopped."""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from rabbit_chx.broker import connect

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers also use this Python
url, port = os.environ["AMQP_URL"], os.environ.get("STREAM_PORT", "5552")
name = os.environ.get("EXCHANGE", "example.spark-read")
spark = SparkSession.builder.appName("read").getOrCreate()

with connect(url) as connection:
    channel = connection.channel()
    channel.exchange_declare(name, "fanout", durable=True)
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind(name, name)


def publish(first: int, last: int) -> None:
    """Write readings to the exchange, and so to the stream."""
    readings = spark.range(first, last).selectExpr(
        "cast(id as string) as value", "concat('sensor-', id % 10) as routing_key"
    )
    readings.write.format("rabbitmq").option("url", url).option("exchange", name).mode("append").save()


def copy(folder: Path) -> int:
    """Copy new rows of the stream to Parquet files, and return the number of rows in the files."""
    rows = (
        spark.readStream.format("rabbitmq")
        .option("url", url)
        .option("streamPort", port)
        .option("stream", name)
        .option("startingOffsets", "earliest")
        .option("columns", "value,routing_key,offset")
        .load()
    )
    files = rows.writeStream.format("parquet").option("path", str(folder / "rows"))
    files = files.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    files.start().awaitTermination()
    return spark.read.parquet(str(folder / "rows")).count()


with tempfile.TemporaryDirectory() as folder:
    publish(0, 6_000)
    first = copy(Path(folder))
    publish(6_000, 10_000)
    second = copy(Path(folder))
    values = spark.read.parquet(f"{folder}/rows").selectExpr("cast(cast(value as string) as int) as value")
    distinct = values.where("value between 0 and 9999").distinct().count()

with connect(url) as connection:
    channel = connection.channel()
    channel.queue_delete(name)
    channel.exchange_delete(name)

print(f"{first:,} rows after the first run, {second:,} after the second, {distinct:,} of them different")
if (second, distinct) != (10_000, 10_000):
    raise SystemExit("rows are missing or were copied twice")
