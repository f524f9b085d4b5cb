"""order_for: rows of a key in one partition and in order, on one machine and on two executors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812

from rabbit_chx import ConsistentHashExchange, InvalidValue
from spark_connector.cluster import queue_of
from spark_connector.order import order_for

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]
KEYS = 100


@pytest.fixture(scope="module")
def rows(spark):
    """2,000 rows of 100 keys, in 4 partitions, backwards."""
    key = F.concat(F.lit("k"), (F.col("id") % KEYS).cast("string"))
    return spark.range(0, 2_000, 1, 4).select(key.alias("key"), (-F.col("id")).alias("seq"), "id")


def partitions(df) -> list[list]:
    """The rows of each partition that has any, in their order."""
    found: dict[int, list] = {}
    for row in df.select("*", F.spark_partition_id().alias("partition")).collect():
        found.setdefault(row["partition"], []).append(row)
    return list(found.values())


def assert_ordered(parts, of) -> None:
    homes = [{of(row) for row in part} for part in parts]
    assert sum(map(len, homes)) == len(set().union(*homes)), "rows of one are in several partitions"
    for part in parts:
        for one in {of(row) for row in part}:
            sequence = [row["seq"] for row in part if of(row) == one]
            assert sequence == sorted(sequence)


def test_each_key_is_in_one_partition_and_in_order(rows):
    ordered = order_for(rows, key="key", seq="seq", partitions=3)
    parts = partitions(ordered)
    assert len(parts) == 3
    assert sorted(row["id"] for part in parts for row in part) == list(range(2_000))
    assert ordered.columns == rows.columns
    assert_ordered(parts, lambda row: row["key"])


def test_keys_and_sequences_can_be_expressions(rows):
    ordered = order_for(rows, key=F.substring("key", 2, 1), seq=F.col("id") + 0, partitions=2)
    parts = partitions(ordered.withColumn("seq", F.col("id")))
    assert_ordered(parts, lambda row: row["key"][1:2])


def test_by_queue_each_queue_has_a_partition_of_its_own(rows):
    exchange = ConsistentHashExchange([f"q{number}" for number in range(7)])
    ordered = order_for(rows, key=queue_of("key", exchange), seq="seq", partitions=7)
    parts = partitions(ordered)
    assert [len({exchange.route(row["key"]) for row in part}) for part in parts] == [1] * 7
    assert ordered.columns == rows.columns
    assert_ordered(parts, lambda row: exchange.route(row["key"]))


def test_a_stream_is_refused_with_the_way_out(spark):
    stream = spark.readStream.format("rate").load()
    with pytest.raises(InvalidValue, match=r"Spark sorts no stream.*foreach_batch"):
        order_for(stream, key="value", seq="timestamp", partitions=2)


@pytest.mark.parametrize("partitions", [None, 0, -1, "4", 2.0, True])
def test_the_number_of_partitions_is_wanted_and_the_error_says_why(rows, partitions):
    with pytest.raises(InvalidValue, match="merge small data into a single partition"):
        order_for(rows, key="key", seq="seq", partitions=partitions)


def test_on_two_executors_only_the_sort_keeps_the_order():
    program = subprocess.run(
        [sys.executable, "-m", "tests.spark.two_executors"],
        cwd=REPOSITORY,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert program.returncode == 0, program.stderr[-2_000:]
    found = json.loads(program.stdout.splitlines()[-1])
    assert found["order_for"] == {"rows": 400_000, "violations": 0, "keys": 1_000, "torn": 0}
    assert found["order_for by queue"] == {"rows": 400_000, "violations": 0, "keys": 4, "torn": 0}
    # Without it the rows are as many and together, and out of order: the test above could fail.
    assert found["repartition"]["violations"] > 0
    assert found["repartition"] | {"violations": 0} == found["order_for"]
    assert found["repartition by queue"]["violations"] > 0
