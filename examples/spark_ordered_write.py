"""Publish changes from an unsorted table so that each customer's changes arrive in order."""

import os
import sys
from collections import defaultdict
from itertools import islice

from pyspark.sql import (
    SparkSession,
    functions as F,  # noqa: N812
)

from rabbit_chx.broker import connect
from spark_connector import order_for

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers also use this Python
url, name = os.environ["AMQP_URL"], os.environ.get("EXCHANGE", "example.spark-ordered")
queues = [f"{name}.{number}" for number in range(3)]

with connect(url) as connection:
    channel = connection.channel()
    channel.exchange_declare(name, "x-consistent-hash", durable=True)
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, name, "1")

spark = SparkSession.builder.appName("ordered write").getOrCreate()
customer = F.concat(F.lit("customer-"), F.col("id") % 100)
changes = (
    spark.range(20_000).select(customer.alias("customer"), F.col("id").alias("change")).orderBy(F.rand())
)

ordered = order_for(changes, key="customer", seq="change", partitions=4)
messages = ordered.select(
    F.col("change").cast("string").alias("value"), F.col("customer").alias("routing_key")
)
messages.write.format("rabbitmq").option("url", url).option("exchange", name).mode("append").save()

seen: dict[str, list[int]] = defaultdict(list)
with connect(url) as connection:
    channel = connection.channel()
    for queue in queues:
        count = channel.queue_declare(queue, passive=True).method.message_count
        for method, _, body in islice(channel.consume(queue, auto_ack=True), count):
            seen[method.routing_key].append(int(body))
        channel.cancel()
        channel.queue_delete(queue)
    channel.exchange_delete(name)

broken = [key for key, numbers in seen.items() if numbers != sorted(numbers)]
print(
    f"{sum(map(len, seen.values())):,} changes of {len(seen)} customers, {len(broken)} customers out of order"
)
if broken:
    raise SystemExit("the order broke")
