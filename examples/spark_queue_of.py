"""Check shares, skew and hot keys before a write; then write, and compare the result with the broker's counts."""

import os
import sys

from pyspark.sql import (
    SparkSession,
    functions as F,  # noqa: N812
)

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.broker import connect, server_version
from spark_connector import spread

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers also use this Python
url, name = os.environ["AMQP_URL"], os.environ.get("EXCHANGE", "example.spark-queue-of")
weights = {f"{name}.{number}": 1 for number in range(4)}

with connect(url) as connection:
    release = server_version(connection)
    channel = connection.channel()
    channel.exchange_declare(name, "x-consistent-hash", durable=True)
    for queue, weight in weights.items():  # the order of the binds decides where keys go
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, name, str(weight))

spark = SparkSession.builder.appName("queue_of").getOrCreate()
number = F.col("id")
customer = F.when(number % 10 == 0, F.lit("customer-big")).otherwise(
    F.concat(F.lit("customer-"), number % 5_000)
)
messages = spark.range(40_000).select(number.cast("string").alias("value"), customer.alias("routing_key"))

exchange = ConsistentHashExchange(weights, release=release)
predicted = spread(messages, "routing_key", exchange, hot=3)
print(predicted)
if predicted.skew > 2:
    raise SystemExit("one queue would get more than twice its part: nothing was sent")
messages.write.format("rabbitmq").option("url", url).option("exchange", name).mode("append").save()

with connect(url) as connection:
    channel = connection.channel()
    arrived = {queue: channel.queue_delete(queue).method.message_count for queue in weights}
    channel.exchange_delete(name)

differences = sum(arrived[one.queue] != one.rows for one in predicted.queues)
print(f"{sum(arrived.values()):,} rows arrived, {differences} queues differ from the prediction")
if differences:
    raise SystemExit("the broker and its mirror disagree")
