"""The value that spread() returns; no Spark is started."""

from __future__ import annotations

import pytest

from rabbit_chx import ConsistentHashExchange, ModulusHashExchange, ToExchange
from rabbit_chx.skew import HotKey, QueueShare, Spread
from spark_connector.queue_column import Prediction
from spark_connector.spread_rows import _likely, _summary

EVEN = Spread(
    400,
    (QueueShare("orders", 300, 12, 0.75, 0.5), QueueShare("q1", 100, 9, 0.25, 0.5)),
    (HotKey("acme", "orders", 250, 0.625),),
)


def test_skew_is_the_fullest_queue_beside_the_mean():
    assert EVEN.skew == 300 / 200


def test_chi_squared_is_taken_against_the_exact_shares():
    assert EVEN.chi_squared == (300 - 200) ** 2 / 200 + (100 - 200) ** 2 / 200
    assert EVEN.degrees_of_freedom == 1


def test_no_rows_at_all():
    empty = Spread(0, (QueueShare("q0", 0, 0, 0.0, 1.0),), ())
    assert (empty.skew, empty.chi_squared) == (1.0, 0.0)
    assert "hottest" not in str(empty)


def test_as_text_it_is_a_table():
    assert str(EVEN).splitlines() == [
        "400 rows on 2 queues; max/mean 1.50; chi-squared 100.0 (1 degrees of freedom)",
        "",
        "queue   rows   share   exact  keys (about)",
        "orders   300  75.00%  50.00%            12",
        "q1       100  25.00%  50.00%             9",
        "",
        "hottest keys  rows   share  queue",
        "'acme'         250  62.50%  orders",
    ]


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


def test_keys_that_may_be_hot_are_those_of_the_highest_estimates():
    found = [
        {"number": 0, "hot": [{"item": "x", "count": 20}, {"item": "y", "count": 10}]},
        {"number": 2, "hot": [{"item": "z", "count": 50}]},
    ]
    assert _likely(found, 2) == {"z": 2, "x": 0}
    assert _likely(found, 0) == {}


def test_exact_shares_are_those_of_the_ring():
    exchange = ConsistentHashExchange({"q0": 1, "q1": 3})
    assert Prediction.of("k", exchange).exact_shares == pytest.approx((0.25, 0.75), abs=1e-3)
