"""Rows of 1,000 keys, written by two executors to three exchanges: in order by key, in order by queue, and in none.

A program of its own, since a process holds one Spark and this one is a cluster. Who calls it declares the exchanges.
"""

from __future__ import annotations

import sys

from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)

from rabbit_chx import ConsistentHashExchange
from spark_connector import order_for, queue_of
from tests.proof import LONG
from tests.spark.conftest import SETTINGS

ROWS, KEYS, QUEUES = 400_000 if LONG else 40_000, 1_000, 4
ROWS_BY_QUEUE = ROWS // 4
HAS_QUEUE_OF = hasattr(F, "arrow_udf")  # from PySpark 4.1 on
WAYS = ("by key", *(["by queue"] if HAS_QUEUE_OF else []), "unsorted")


def queues(exchange: str) -> list[str]:
    """The queues of an exchange, in the order of their binds."""
    return [f"{exchange}.{number}" for number in range(QUEUES)]


def prepared(way: str, df: DataFrame, ring: ConsistentHashExchange) -> DataFrame:
    """The rows as they are written in one of the ways."""
    if way == "by key":
        return order_for(df, key="key", seq="seq", partitions=QUEUES)
    if way == "by queue":
        some = df.where(F.col("seq") < ROWS_BY_QUEUE)
        return order_for(some, key=queue_of("key", ring), seq="seq", partitions=QUEUES)
    return df.repartition(QUEUES, "key")  # each key in one partition, as with order_for


def main(url: str, release: str, prefix: str) -> None:
    builder = SparkSession.builder.master("local-cluster[2,1,700]").appName("two executors")
    settings = {
        **SETTINGS,
        "spark.executorEnv.PYTHONPATH": ":".join(sys.path),
        "spark.executor.memory": "700m",
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1",  # of these cores: not a row before both are there
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    }
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    key = F.concat(F.lit("customer-"), F.col("id") % KEYS)
    df = spark.range(0, ROWS, 1, 8).select(key.alias("key"), F.col("id").alias("seq"))
    for way in WAYS:
        exchange = f"{prefix} {way}"
        ring = ConsistentHashExchange(queues(exchange), release=release)
        messages = prepared(way, df, ring).selectExpr("cast(seq as string) as value", "key as routing_key")
        messages.write.format("rabbitmq").option("url", url).option("exchange", exchange).mode(
            "append"
        ).save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
