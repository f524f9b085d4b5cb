"""The ring of an exchange over streams, found by asking where a broker routes keys."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from rabbit_chx import ConsistentHashExchange, InvalidValue
from rabbit_chx.streams.partitions import of_exchange


class Broker:
    """Answers as a connection to a broker with one exchange."""

    release = "4.3.6"

    def __init__(self, weights: dict[str, int]) -> None:
        self.exchange = ConsistentHashExchange(weights)

    @property
    def ring(self) -> list[str]:
        return [str(each) for each in self.exchange.ring.bucket_map]

    def partitions(self, _: str, access: object) -> list[str]:
        return sorted({*self.ring})

    def route(self, _: str, key: str, access: object) -> list[str]:
        return [str(self.exchange.route(key))]


def found_on(broker: Any) -> Any:
    return of_exchange(broker, "orders", named=False)


def equal(streams: int, weight: int) -> dict[str, int]:
    return {f"orders.{number:03}": weight for number in range(streams)}


UNEQUAL = [{"a": first, "b": last} for first, last in product((1, 2, 3, 5, 8, 10, 20), repeat=2)]


@pytest.mark.parametrize("weights", [*UNEQUAL, {"a": 5, "b": 1, "c": 10}, {"a": 1, "b": 1, "c": 30}], ids=str)
def test_the_ring_is_that_of_the_broker_whatever_its_weights(weights) -> None:
    broker = Broker(weights)
    found = found_on(broker)
    assert [str(each) for each in found.mirror.ring.bucket_map] == broker.ring
    assert found.holds(broker, "orders")


@pytest.mark.parametrize(("streams", "weight"), [(6, 40), (17, 9), (65, 3), (300, 1)])
def test_many_buckets_are_found_for_any_number_of_streams(streams, weight) -> None:
    broker = Broker(equal(streams, weight))
    assert len(found_on(broker).mirror.ring) == len(broker.ring)


def test_a_ring_that_is_too_large_is_refused_with_its_limit() -> None:
    with pytest.raises(InvalidValue, match="no ring of at most 512 buckets explains"):
        found_on(Broker({"a": 300, "b": 300}))


def swapped(weights: dict[str, int]) -> dict[str, int]:
    names = [*weights]
    names[4], names[9] = names[9], names[4]
    return {name: weights[name] for name in names}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 2, "b": 2}, {"a": 2, "b": 3}),
        ({"a": 2, "b": 3}, {"a": 2, "b": 2}),
        ({"a": 2, "b": 3}, {"a": 3, "b": 3}),
        ({"a": 1, "b": 10}, {"a": 1, "b": 11}),
        ({"a": 1, "b": 10}, {"a": 1, "b": 2}),
        (equal(4, 1), equal(4, 1) | {"orders.003": 2}),
        (equal(16, 1), swapped(equal(16, 1))),
        (equal(24, 1), swapped(equal(24, 1))),
        (equal(100, 2), dict(reversed(equal(100, 2).items()))),
    ],
    ids=str,
)
def test_a_change_of_the_ring_is_noticed(before, after) -> None:
    assert not found_on(Broker(before)).holds(Broker(after), "orders")


def test_changes_at_random_are_noticed() -> None:
    dice = random.Random(1)
    for _ in range(40):
        before = {f"s{number}": dice.randint(1, 6) for number in range(dice.randint(2, 8))}
        after = before | {dice.choice([*before]): dice.randint(1, 6)}
        if dice.random() < 0.3:
            after = dict(dice.sample([*after.items()], len(after)))
        same = Broker(before).ring == Broker(after).ring
        assert found_on(Broker(before)).holds(Broker(after), "orders") is same, (before, after)
