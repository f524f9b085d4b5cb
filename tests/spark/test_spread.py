"""``spread`` compared with counts in plain Python."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import functions as F  # noqa: N812

from rabbit_chx import ConsistentHashExchange, InvalidValue, shares
from spark_connector.routing.spread_rows import spread

pytestmark = [pytest.mark.spark, pytest.mark.pyspark("4.1", "spread asks the mirror by an Arrow function")]

QUEUES = {"q0": 1, "q1": 1, "q2": 2}
COUNTS = {f"customer-{number}": 1 + number % 2 for number in range(500)} | {"hot": 900, "warm": 300}


@pytest.fixture(scope="module")
def df(spark):
    counted = spark.createDataFrame(list(COUNTS.items()), "routing_key string, n int")
    return counted.select("routing_key", F.explode(F.sequence(F.lit(1), "n"))).cache()


def test_rows_are_counted_exactly_and_keys_are_estimated(df):
    exchange = ConsistentHashExchange(QUEUES)
    found = spread(df, "routing_key", exchange, hot=2)
    rows, keys = Counter(), Counter()
    for key, count in COUNTS.items():
        rows[exchange.route(key)] += count
        keys[exchange.route(key)] += 1
    assert found.rows == sum(COUNTS.values())
    assert {one.queue: one.rows for one in found.queues} == rows
    assert {one.queue: one.exact for one in found.queues} == shares(exchange.ring)
    for one in found.queues:
        assert one.keys == pytest.approx(keys[one.queue], rel=0.2)
    assert [(one.key, one.rows, one.queue) for one in found.hot] == [
        ("hot", 900, exchange.route("hot")),
        ("warm", 300, exchange.route("warm")),
    ]


def test_hot_keys_are_counted_exactly_among_more_keys_than_a_sketch_remembers(spark):
    key = F.when(F.col("id") % 200 == 0, F.lit("hot")).otherwise(F.col("id").cast("string"))
    df = spark.range(100_000).select(key.alias("routing_key"))
    found = spread(df, "routing_key", ConsistentHashExchange(["q0", "q1"]), hot=3)
    assert (found.hot[0].key, found.hot[0].rows) == ("hot", 500)
    assert {one.rows for one in found.hot[1:]} <= {1}


def test_headers_of_any_form_and_missing_ones(df):
    exchange = ConsistentHashExchange(QUEUES, hash_header="h")
    value = F.when(F.col("routing_key") != "warm", F.col("routing_key")).cast("binary")
    entry = F.struct(F.lit("h").alias("key"), value.alias("value"))
    forms = [F.create_map(F.lit("h"), value), F.array(entry), F.struct(value.alias("h"))]
    (first, *others) = [spread(df, exchange=exchange, headers=form, hot=2) for form in forms]
    assert others == [first, first]
    missing, hot = exchange.route(headers={}), exchange.route(headers={"h": "hot"})
    assert [(one.key, one.rows, one.queue) for one in first.hot] == [
        (b"hot".hex().upper(), 900, hot),
        ("(missing)", 300, missing),
    ]


def test_no_rows(df):
    found = spread(df.limit(0), "routing_key", ConsistentHashExchange(QUEUES))
    assert (found.rows, found.hot, [one.rows for one in found.queues]) == (0, (), [0, 0, 0])


def test_a_stream_is_rejected_with_a_hint(spark):
    stream = spark.readStream.format("rate").load()
    with pytest.raises(InvalidValue, match="foreach_batch"):
        spread(stream, "value", ConsistentHashExchange(QUEUES))


@pytest.mark.parametrize("hot", [-1, 1.5, True, 1_001])
def test_the_number_of_hot_keys_is_limited(df, hot):
    with pytest.raises(InvalidValue, match="invalid hot"):
        spread(df, "routing_key", ConsistentHashExchange(QUEUES), hot=hot)
