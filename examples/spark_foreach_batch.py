"""Send counts by minute and sensor whenever they change: foreach_batch writes aggregations in update mode."""

import json
import os
import sys
import tempfile
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)

from rabbit_chx.broker import connect
from spark_connector import foreach_batch

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers also use this Python
url, name = os.environ["AMQP_URL"], os.environ.get("EXCHANGE", "example.spark-counts")

with connect(url) as connection:
    channel = connection.channel()
    channel.exchange_declare(name, "fanout", durable=True)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name)


def messages(batch: DataFrame) -> DataFrame:
    """Turn the counts of a micro-batch, which is an ordinary DataFrame here, into messages."""
    value = F.to_json(F.struct(F.col("window.start").cast("string").alias("minute"), "sensor", "count"))
    return batch.select(value.alias("value"), F.col("sensor").alias("routing_key"))


spark = SparkSession.builder.appName("counts").config("spark.sql.shuffle.partitions", 2).getOrCreate()
with tempfile.TemporaryDirectory() as work:
    folder, start = Path(work, "readings"), datetime.fromisoformat("2025-01-01T12:00:00")
    folder.mkdir()
    for file in range(3):  # 200 seconds each, so that a minute split between two files is counted twice
        seconds = range(file * 200, (file + 1) * 200)
        rows = (
            {"at": str(start + timedelta(seconds=second)), "sensor": f"sensor-{second % 2}"}
            for second in seconds
        )
        Path(folder, f"{file}.json").write_text("\n".join(map(json.dumps, rows)))
    readings = (
        spark.readStream.schema("at timestamp, sensor string")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder))
    )
    minutes = readings.withWatermark("at", "1 hour").groupBy(F.window("at", "1 minute"), "sensor").count()
    sink = minutes.writeStream.outputMode("update").foreachBatch(
        foreach_batch(messages, url=url, exchange=name)
    )
    sink.option("checkpointLocation", f"{work}/checkpoint").trigger(
        availableNow=True
    ).start().awaitTermination()

with connect(url) as connection:
    channel = connection.channel()
    count = channel.queue_declare(name, passive=True).method.message_count
    received = [json.loads(body) for _, _, body in islice(channel.consume(name, auto_ack=True), count)]
    channel.queue_delete(name)
    channel.exchange_delete(name)

newest = {
    (one["minute"], one["sensor"]): one["count"] for one in received
}  # the later message is the newer count
for minute in sorted({minute for minute, _ in newest}):
    print(minute, newest[minute, "sensor-0"], newest[minute, "sensor-1"])
print(f"{len(received)} messages, {sum(newest.values())} readings")
if sum(newest.values()) != 600:
    raise SystemExit("readings are missing")
