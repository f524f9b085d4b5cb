"""Write from Spark Connect. SPARK_REMOTE names the server; without it, a local one is started."""

import os
import sys

from pyspark.sql import (
    SparkSession,
    functions as F,  # noqa: N812
)

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.broker import connect, server_version
from spark_connector import queue_of, register

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers also use this Python
url, name = os.environ["AMQP_URL"], os.environ.get("EXCHANGE", "example.spark-connect")
queues = [f"{name}.{number}" for number in range(3)]

with connect(url) as connection:
    release = server_version(connection)
    channel = connection.channel()
    channel.exchange_declare(name, "x-consistent-hash", durable=True)
    for queue in queues:  # the order of the binds decides where keys go
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, name, "1")

spark = SparkSession.builder.remote(os.environ.get("SPARK_REMOTE", "local[2]")).getOrCreate()
register(spark)
messages = spark.range(20_000).select(
    F.col("id").cast("string").alias("value"),
    F.concat(F.lit("customer-"), F.col("id") % 1_000).alias("routing_key"),
)
exchange = ConsistentHashExchange(queues, release=release)
counts = messages.groupBy(queue_of("routing_key", exchange)).count().collect()
predicted = {row["queue"]: row["count"] for row in counts}
messages.write.format("rabbitmq").option("url", url).option("exchange", name).mode("append").save()

with connect(url) as connection:
    channel = connection.channel()
    arrived = {queue: channel.queue_delete(queue).method.message_count for queue in queues}
    channel.exchange_delete(name)
for queue in queues:
    print(f"{queue:<30} {predicted[queue]:>7,} predicted {arrived[queue]:>7,} arrived")
if arrived != predicted:
    raise SystemExit("the broker and its mirror disagree")
