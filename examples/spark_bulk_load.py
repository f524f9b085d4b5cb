"""Load many files into a queue, one per micro-batch: after an interruption at 90%, only one of ten is written again."""

import json
import os
import sys
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

from pyspark.sql import SparkSession

from rabbit_chx.broker import connect

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers also use this Python
url, name = os.environ["AMQP_URL"], os.environ.get("EXCHANGE", "example.spark-bulk-load")
FILES, ROWS = 10, 1_000


def load(folder: str, checkpoint: str, *, interrupted: bool) -> int:
    """Write the files that the checkpoint does not record as done; return how many micro-batches finished."""
    orders = spark.readStream.schema("id long, customer string").option("maxFilesPerTrigger", 1).json(folder)
    messages = orders.selectExpr("to_json(struct(*)) as value", "customer as routing_key")
    sink = messages.writeStream.format("rabbitmq").option("url", url).option("exchange", name)
    if interrupted:
        sink = sink.option("maxRatePerTask", 2_000)  # slow enough to be interrupted in the middle of a file
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    while not query.awaitTermination(0.1):
        if interrupted and len(query.recentProgress) >= 0.9 * FILES:
            query.stop()
    return sum(batch["numInputRows"] > 0 for batch in query.recentProgress)


with connect(url) as connection:
    channel = connection.channel()
    channel.exchange_declare(name, "fanout", durable=True)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name)

spark = SparkSession.builder.appName("bulk load").getOrCreate()
with tempfile.TemporaryDirectory() as work:
    folder, checkpoint = Path(work, "orders"), f"{work}/checkpoint"
    folder.mkdir()
    for file in range(FILES):
        rows = (
            {"id": number, "customer": f"customer-{number % 100}"}
            for number in range(file * ROWS, (file + 1) * ROWS)
        )
        Path(folder, f"{file:02}.json").write_text("\n".join(map(json.dumps, rows)))
    print(f"{load(str(folder), checkpoint, interrupted=True)} micro-batches finished, then an interruption")
    print(f"{load(str(folder), checkpoint, interrupted=False)} finished by a second run")
    print(
        f"{load(str(folder), checkpoint, interrupted=False)} finished by a third one, which finds nothing to do"
    )

with connect(url) as connection:
    channel = connection.channel()
    count = channel.queue_declare(name, passive=True).method.message_count
    arrived = Counter(
        json.loads(body)["id"] for _, _, body in islice(channel.consume(name, auto_ack=True), count)
    )
    channel.queue_delete(name)
    channel.exchange_delete(name)

twice = arrived.total() - len(arrived)
print(f"{len(arrived):,} of {FILES * ROWS:,} rows arrived, {twice:,} of them twice")
if len(arrived) != FILES * ROWS or twice > ROWS:
    raise SystemExit("rows are missing, or more than one micro-batch was written again")
