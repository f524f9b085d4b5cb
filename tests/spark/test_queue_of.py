"""The queue of each row as Spark's workers compute it, compared with the scalar mirror on the driver."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import zip_longest

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812

from rabbit_chx import ConsistentHashExchange, Field, ModulusHashExchange, ToExchange
from spark_connector.columns import AMQP_TAGS
from spark_connector.routing.queue_column import queue_of, register_queue_of
from tests.unit.spark.test_mirror import HEADERS

pytestmark = [pytest.mark.spark, pytest.mark.pyspark("4.1", "queue_of needs its Arrow functions")]

QUEUES = {"q0": 1, 'it\'s \\ a "queue"': 2, "q2": 1, "größe": 3}
KEYS = [letter * count for letter in "xé" for count in range(256 // len(letter.encode()))]
MOMENT = datetime(2024, 2, 29, 23, 59, 59, 999_999, UTC)


def values(df, column) -> list[object]:
    return [row[0] for row in df.coalesce(1).select(column).collect()]


@pytest.fixture(scope="module")
def keys(spark):
    return spark.createDataFrame([(key,) for key in KEYS], "routing_key string").cache()


def forms(exchange, column: str) -> dict[str, object]:
    """A column of the header's values, and the three forms in which one column holds all headers."""
    header = F.col(column)
    entry = F.struct(F.lit("h").alias("key"), header.alias("value"))
    return {
        "value": queue_of(column, exchange),
        "map": queue_of(exchange=exchange, headers=F.create_map(F.lit("h"), header)),
        "struct": queue_of(exchange=exchange, headers=F.struct(F.lit(1).alias("x"), header.alias("h"))),
        "array": queue_of(exchange=exchange, headers=F.array(entry)),
    }


def test_headers_of_every_type(spark):
    exchange = ConsistentHashExchange(QUEUES, hash_header="h")
    types = [type_ for type_ in HEADERS if type_ in AMQP_TAGS]
    rows = [*zip_longest(*(HEADERS[type_][2] for type_ in types)), [None] * len(types)]
    df = spark.createDataFrame(rows, ", ".join(f"`{type_}` {type_}" for type_ in types)).coalesce(1)
    columns = {(type_, form): made for type_ in types for form, made in forms(exchange, type_).items()}
    found = df.select(*(made.alias(" as ".join(name)) for name, made in columns.items())).collect()
    for (type_, form), answers in zip(columns, zip(*found, strict=True), strict=True):
        _, tag, _, carried = HEADERS[type_]
        messages = [{"h": Field(tag, value)} for value in carried]
        messages += [{}] * (len(rows) - len(messages))
        assert list(answers) == [exchange.route(headers=headers) for headers in messages], (type_, form)


def test_properties(spark):
    df = spark.createDataFrame([("m-1", MOMENT), (None, MOMENT)], "id string, at timestamp")
    by_id = ConsistentHashExchange(QUEUES, hash_property="message_id")
    assert values(df, queue_of("id", by_id)) == [by_id.route(message_id=one) for one in ("m-1", None)]
    by_time = ConsistentHashExchange(QUEUES, hash_property="timestamp")
    found = values(df, queue_of(exchange=by_time, timestamp=F.col("at")))
    assert found == [by_time.route(timestamp=MOMENT)] * 2


def test_modulus_exchange_and_slots_behind_it(keys):
    slots = {f"slot-{number}": f"q{number % 3}" for number in range(64)}
    exchange = ModulusHashExchange([ToExchange(name) for name in slots])
    expected = [slots[exchange.route(key).name] for key in KEYS]
    assert values(keys, queue_of("routing_key", exchange, slots=slots)) == expected


def test_as_a_filter_and_as_a_group(keys):
    exchange = ConsistentHashExchange(QUEUES)
    queue = queue_of("routing_key", exchange)
    expected = [key for key in KEYS if exchange.route(key) == "q2"]
    assert values(keys.where(queue == "q2"), "routing_key") == expected
    counts = {row["queue"]: row["count"] for row in keys.groupBy(queue).count().collect()}
    assert counts["q2"] == len(expected)
    assert sum(counts.values()) == len(KEYS)


def test_queue_of_in_sql(spark, keys):
    exchange = ConsistentHashExchange(QUEUES)
    keys.createOrReplaceTempView("messages")
    register_queue_of(spark, exchange)
    answers = spark.sql("SELECT routing_key, queue_of(routing_key) AS queue FROM messages").collect()
    assert {row["routing_key"]: row["queue"] for row in answers} == {key: exchange.route(key) for key in KEYS}


def test_queue_of_in_sql_with_a_column_of_all_headers(spark):
    exchange = ConsistentHashExchange(QUEUES, hash_header="h")
    register_queue_of(spark, exchange, name="queue_by_tenant", headers="MAP<STRING, STRING>")
    (row,) = spark.sql("SELECT queue_by_tenant(map('a', 'x', 'h', 'acme')) AS queue").collect()
    assert row["queue"] == exchange.route(headers={"h": "acme"})


def test_a_key_that_cannot_be_sent_fails_the_job_with_a_clear_error(spark):
    df = spark.range(1).select(F.lit(None).cast("string").alias("routing_key"))
    with pytest.raises(PythonException, match=r"invalid routing key: .*got None"):
        df.select(queue_of("routing_key", ConsistentHashExchange(QUEUES))).collect()
