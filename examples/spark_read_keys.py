"""Streams bound to a hash exchange: count by key, check each row's stream, and read one key from its stream."""

import os
import sys
from collections.abc import Iterable

from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.broker import connect, server_version
from spark_connector import queue_of

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers also use this Python
url, port = os.environ["AMQP_URL"], os.environ.get("STREAM_PORT", "5552")
name = os.environ.get("EXCHANGE", "example.spark-keys")
weights = {f"{name}.{number}": 1 for number in range(4)}
copies = f"{name}.copies"

with connect(url) as connection:
    release = server_version(connection)
    channel = connection.channel()
    channel.exchange_declare(name, "x-consistent-hash", durable=True)
    for stream, weight in weights.items():  # the order of the binds decides where keys go
        channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind(stream, name, str(weight))
    channel.queue_declare(copies, durable=True)

spark = SparkSession.builder.appName("keys").getOrCreate()
orders = spark.range(10_000).selectExpr(
    "cast(id as string) as value", "concat('customer-', id % 100) as routing_key"
)
orders.write.format("rabbitmq").option("url", url).option("exchange", name).mode("append").save()


def rows_of(streams: Iterable[str]) -> DataFrame:
    """All rows of these streams."""
    source = spark.read.format("rabbitmq").option("url", url).option("streamPort", port)
    return source.option("stream", ",".join(streams)).option("columns", "value,routing_key,stream").load()


exchange = ConsistentHashExchange(weights, release=release)
rows = rows_of(weights).cache()
keys = rows.groupBy("routing_key").count().where("count = 100").count()
elsewhere = rows.where(queue_of(F.col("routing_key"), exchange) != F.col("stream")).count()
print(f"{rows.count():,} rows, {keys} customers with 100 rows each, {elsewhere} not on the predicted stream")

history = rows_of([exchange.route("customer-42")]).where("routing_key = 'customer-42'")
found, expected = history.count(), rows.where("routing_key = 'customer-42'").count()
print(f"{found} rows of customer-42 on one stream of {len(weights)}, {expected} on all of them")

# The default exchange routes to the queue that the routing key names.
copied = history.drop("stream").withColumn("routing_key", F.lit(copies))
copied.write.format("rabbitmq").option("url", url).option("exchange", "").mode("append").save()

with connect(url) as connection:
    channel = connection.channel()
    arrived = channel.queue_delete(copies).method.message_count
    for stream in weights:
        channel.queue_delete(stream)
    channel.exchange_delete(name)

print(f"{arrived} rows copied to a queue")
if (elsewhere, keys, found, arrived) != (0, 100, expected, 100):
    raise SystemExit("the broker and its mirror disagree")
