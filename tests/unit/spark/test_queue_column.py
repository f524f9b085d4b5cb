"""Arguments of queue_of, and the counts of spread as a value; no Spark is started."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from pyspark.sql import functions as F  # noqa: N812

from rabbit_chx import ConsistentHashExchange, InvalidValue, ModulusHashExchange, Ring, ToExchange, Unroutable
from rabbit_chx.errors import MissingDependency
from rabbit_chx.mirror.skew import HotKey, QueueShare
from spark_connector.routing.queue_column import Prediction, queue_of, register_queue_of
from spark_connector.routing.spread_rows import _summary, spread

BY_KEY = ConsistentHashExchange(["q0", "q1"])
BY_HEADER = ConsistentHashExchange(["q0", "q1"], hash_header="tenant")
MODULUS = ModulusHashExchange(["q0", "q1"])


@pytest.mark.parametrize(
    ("exchange", "given", "shown"),
    [
        (BY_KEY, {}, "got 'none', expected one column: the first argument, or routing_key="),
        (BY_KEY, {"headers": "h"}, "got 'headers'"),
        (BY_KEY, {"routing_key": "k", "message_id": "m"}, "got 'routing_key, message_id'"),
        (BY_HEADER, {"routing_key": "k"}, "or headers=, which the exchange hashes"),
        (MODULUS, {"message_id": "m"}, "or routing_key=, which the exchange hashes"),
    ],
)
def test_the_one_column_that_the_exchange_hashes_is_wanted(exchange, given, shown):
    with pytest.raises(InvalidValue, match="invalid columns for queue_of") as error:
        queue_of(exchange=exchange, **given)
    assert shown in str(error.value)


def test_the_column_cannot_be_said_twice():
    with pytest.raises(InvalidValue, match="got 'column, routing_key'"):
        queue_of("k", BY_KEY, routing_key="k")


@pytest.mark.parametrize("exchange", [None, "orders", ["q0", "q1"]])
def test_an_exchange_is_wanted(exchange):
    with pytest.raises(InvalidValue, match="expected a ConsistentHashExchange or a ModulusHashExchange"):
        queue_of("k", exchange)


def test_an_exchange_without_buckets_leads_nowhere():
    with pytest.raises(Unroutable):
        queue_of("k", ConsistentHashExchange(Ring()))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: queue_of("k", BY_KEY),
        lambda: queue_of("k", MODULUS),
        lambda: register_queue_of(Mock(), BY_KEY),
        lambda: spread(Mock(isStreaming=False), "k", BY_KEY),
    ],
    ids=["queue_of", "queue_of a modulus exchange", "register_queue_of", "spread"],
)
def test_pyspark_4_0_is_told_what_is_missing(monkeypatch, ask):
    monkeypatch.delattr(F, "arrow_udf", raising=False)  # 4.0 itself has none
    with pytest.raises(MissingDependency, match=r"PySpark 4\.1 or newer.*pip install 'pyspark>=4\.1'"):
        ask()


@pytest.mark.parametrize("name", ["queue of", "x; DROP TABLE y", "", "größe", None])
def test_a_sql_function_has_a_plain_name(name):
    with pytest.raises(InvalidValue, match="name of the SQL function"):
        register_queue_of(None, BY_KEY, name=name)


def test_slots_stand_for_the_queues_behind_them():
    exchange = ModulusHashExchange([ToExchange("a"), ToExchange("b"), "c"])
    assert Prediction.of("k", exchange, slots={"a": "q0"}).names == ("q0", "exchange b", "c")


# ---- spread: the counts of Spark as a value


def test_slots_of_one_queue_are_added_up_and_a_queue_without_rows_is_shown():
    exchange = ModulusHashExchange([ToExchange(f"s{number}") for number in range(4)])
    slots = {"s0": "a", "s1": "b", "s2": "a", "s3": "c"}
    counted = [
        {"number": 0, "rows": 30, "keys": 2},
        {"number": 2, "rows": 50, "keys": 1},
        {"number": 3, "rows": 20, "keys": 1},
    ]
    found = _summary(Prediction.of("k", exchange, slots=slots), counted, [("z", 2, 50), ("w", 3, 20)])
    assert found.queues == (
        QueueShare("a", 80, 3, 0.8, 0.5),
        QueueShare("b", 0, 0, 0.0, 0.25),
        QueueShare("c", 20, 1, 0.2, 0.25),
    )
    assert found.hot == (HotKey("z", "a", 50, 0.5), HotKey("w", "c", 20, 0.2))
