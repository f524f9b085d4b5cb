"""What users of the Spark connector write: mypy and pyright read this file, and nothing runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_type

from pyspark.sql import Column, DataFrame, SparkSession

import rabbit_chx
from rabbit_chx import ConsistentHashExchange, ModulusHashExchange
from spark_connector import foreach_batch, order_for, queue_of, register, split_valid, spread

exchange = ConsistentHashExchange(["q0", "q1"])


def write(spark: SparkSession, df: DataFrame) -> None:
    """Predict, look at the skew, and write."""
    register(spark)
    assert_type(queue_of("customer", exchange), Column)
    df.groupBy(queue_of(df.customer, ModulusHashExchange(["q0"])).alias("queue")).count()
    assert_type(spread(df, "customer", exchange, hot=3), rabbit_chx.Spread)
    assert_type(order_for(df, key="customer", seq=df.id, partitions=4), DataFrame)
    assert_type(split_valid(df, routing_key="customer"), tuple[DataFrame, DataFrame])
    save: Callable[[DataFrame, int], None] = foreach_batch(lambda batch: batch, exchange="orders")
    df.writeStream.foreachBatch(save)
    df.write.format("rabbitmq").option("exchange", "orders").mode("append").save()
