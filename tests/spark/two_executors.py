"""How often rows of a key are out of order on two executors, with and without ``order_for``; prints JSON.

A program of its own, since a process holds one Spark and this one is a cluster. What counts is the order in which
each partition hands out its rows, as that is the order in which the writer publishes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rabbit_chx import ConsistentHashExchange
from spark_connector.cluster import queue_of
from spark_connector.order import order_for
from tests.spark.conftest import SETTINGS

ROWS, KEYS, PARTITIONS = 400_000, 1_000, 4
EXCHANGE = ConsistentHashExchange([f"q{number}" for number in range(PARTITIONS)])


def disorder(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
    """Of one partition: for each row, whether a later one of its key came before it."""
    last: dict[str, int] = {}
    for keys, sequence in batches:
        wrong = []
        for key, seq in zip(keys.to_pylist(), sequence.to_pylist(), strict=True):
            wrong.append(int(seq < last.get(key, -1)))
            last[key] = seq
        yield pa.array(wrong, pa.int32())


def count(df: DataFrame) -> dict[str, int]:
    """The rows, those out of order, the keys, and how many of these are in more than one partition."""
    wrong = F.arrow_udf(disorder, "int")("key", "seq")
    seen = df.select("key", wrong.alias("wrong"), F.spark_partition_id().alias("partition"))
    homes = F.count_distinct("partition").alias("homes")
    by_key = (
        seen.groupBy("key").agg(F.count("*").alias("rows"), F.sum("wrong").alias("wrong"), homes).collect()
    )
    return {
        "rows": sum(row["rows"] for row in by_key),
        "violations": sum(row["wrong"] for row in by_key),
        "keys": len(by_key),
        "torn": sum(row["homes"] > 1 for row in by_key),
    }


def main() -> None:
    builder = SparkSession.builder.master("local-cluster[2,1,700]").appName("two executors")
    settings = {
        **SETTINGS,
        "spark.executorEnv.PYTHONPATH": ":".join(sys.path),
        "spark.executor.memory": "700m",
    }
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    key = F.concat(F.lit("customer-"), F.col("id") % KEYS)
    df = spark.range(0, ROWS, 1, 8).select(key.alias("key"), F.col("id").alias("seq"))
    by_queue = df.withColumn("key", queue_of("key", EXCHANGE))
    found = {
        "repartition": count(df.repartition(PARTITIONS, "key")),
        "order_for": count(order_for(df, key="key", seq="seq", partitions=PARTITIONS)),
        "repartition by queue": count(by_queue.repartition(PARTITIONS, "key")),
        "order_for by queue": count(
            order_for(df, key=queue_of("key", EXCHANGE), seq="seq", partitions=PARTITIONS).withColumn(
                "key", queue_of("key", EXCHANGE)
            )
        ),
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
