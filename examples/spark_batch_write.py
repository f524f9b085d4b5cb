"""Write a DataFrame to a hash exchange: when save() returns, every row is confirmed and in a queue."""

import os
import sys

from pyspark.sql import (
    SparkSession,
    functions as F,  # noqa: N812
)

from rabbit_chx.broker import connect

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers also use this Python
url, name = os.environ["AMQP_URL"], os.environ.get("EXCHANGE", "example.spark-batch")
queues = [f"{name}.{number}" for number in range(3)]

with connect(url) as connection:
    channel = connection.channel()
    channel.exchange_declare(name, "x-consistent-hash", durable=True)
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, name, "1")

spark = SparkSession.builder.appName("batch write").getOrCreate()
orders = spark.range(50_000).select(
    F.col("id").alias("order"),
    F.concat(F.lit("customer-"), F.col("id") % 1_000).alias("customer"),
    F.round(F.rand() * 100, 2).alias("amount"),
)
messages = orders.select(
    F.to_json(F.struct("*")).alias("value"),
    F.col("customer").alias("routing_key"),
    F.concat(F.lit("order-"), "order").alias("message_id"),  # lets consumers detect duplicates
)
messages.write.format("rabbitmq").option("url", url).option("exchange", name).mode("append").save()

with connect(url) as connection:
    channel = connection.channel()
    for queue in queues:
        print(f"{queue:<30} {channel.queue_delete(queue).method.message_count:>7,}")
    channel.exchange_delete(name)
