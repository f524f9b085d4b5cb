"""Compare ``queue_of`` with an Arrow UDF that does nothing, on a local Spark.

    python benchmarks/spark_queue_of.py [--rows N] [--rounds N] [--threads N] [--json]

Both read the same cached column of 21-byte keys and write to Spark's noop sink. The UDF that does nothing returns
a slice of one array of zeros for each batch, so it measures Spark itself: the cost of moving keys to Python and
small numbers back. The two alternate within each round, in reverse order in every other round; ratios are computed within
a round, and the result is their median. Before that, the counts by queue are compared with those of
``route_many`` on the driver: a difference ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from statistics import median
from time import perf_counter

import numpy as np
import pyarrow as pa
from pyspark.sql import (
    Column,
    DataFrame,
    functions as F,  # noqa: N812
)
from ways.local_spark import local_spark

from rabbit_chx import ConsistentHashExchange
from spark_connector.routing.queue_column import queue_of

NOTHING = "an Arrow UDF that does nothing"
FEW = "queue_of, 10 queues"
MANY = "queue_of, 300 queues"
BAR = 0.8
EXCHANGES = {
    FEW: ConsistentHashExchange([f"orders-{number}" for number in range(10)]),
    MANY: ConsistentHashExchange([f"orders-{number}" for number in range(300)]),
}
ZEROS = pa.array(np.zeros(1 << 20, np.int8))


def nothing(keys: pa.Array) -> pa.Array:
    return ZEROS[: len(keys)]


def check(df: DataFrame, exchange: ConsistentHashExchange) -> None:
    """Compare the counts by queue from Spark with those of the mirror on the driver."""
    some = df.where(F.col("key") < "customer-000000200000")
    keys = some.toArrow()
    counts = np.bincount(exchange.route_many(keys.column("key")), minlength=len(exchange.destinations))
    expected = dict(zip(exchange.destinations, counts.tolist(), strict=True))
    found = {row[0]: row[1] for row in some.groupBy(queue_of("key", exchange)).count().collect()}
    if found != {queue: count for queue, count in expected.items() if count}:
        sys.exit("queue_of and route_many differ")


def rate(df: DataFrame, column: Column, rows: int) -> float:
    start = perf_counter()
    df.select(column.alias("answer")).write.format("noop").mode("overwrite").save()
    return rows / (perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description="queue_of compared with an Arrow UDF that does nothing")
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    spark = local_spark(given.threads)
    number = F.lpad(F.col("id").cast("string"), 12, "0")
    df = spark.range(0, given.rows, 1, 2 * given.threads).select(
        F.concat(F.lit("customer-"), number).alias("key")
    )
    df.cache().count()
    ways = {name: queue_of("key", exchange) for name, exchange in EXCHANGES.items()}
    ways[NOTHING] = F.arrow_udf(nothing, "tinyint")("key")
    for exchange in EXCHANGES.values():
        check(df, exchange)
    for column in ways.values():  # not measured: the workers start and the JVM compiles
        rate(df, column, given.rows)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(given.rounds):
        for name in list(ways)[:: -1 if round_ % 2 else 1]:
            rates[name].append(rate(df, ways[name], given.rows))
    spark.stop()
    report(rates, given)


def report(rates: dict[str, list[float]], given: argparse.Namespace) -> None:
    rows = []
    for name, found in rates.items():
        ratios = [ours / other for ours, other in zip(found, rates[NOTHING], strict=True)]
        rows.append((name, median(found), median(ratios), min(ratios), max(ratios)))
    if given.json:
        keys = ("way", "rows_per_second", "ratio", "lowest_ratio", "highest_ratio")
        for row in rows:
            print(json.dumps(dict(zip(keys, row, strict=True))))
        return
    print(
        f"Python {platform.python_version()}, {given.rows:,} keys of 21 bytes, local[{given.threads}], {given.rounds} rounds, "
        f"load {os.getloadavg()[1]:.0f}"
    )
    for name, speed, ratio, low, high in rows:
        bar = "" if name == NOTHING else f"  {ratio:.2f} of nothing ({low:.2f} to {high:.2f}; bar {BAR})"
        print(f"{name:<32} {speed / 1e6:5.2f} M rows/s{bar}")


if __name__ == "__main__":
    main()
