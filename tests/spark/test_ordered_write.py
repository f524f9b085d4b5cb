"""The order of keys through the real writer and a real hash exchange: what ``order_for`` keeps, and what is lost without it."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice, pairwise
from typing import NamedTuple
from uuid import uuid4

import pika
import pytest

from rabbit_chx import ConsistentHashExchange

pytestmark = [pytest.mark.spark, pytest.mark.broker]

ROWS, KEYS, QUEUES = 40_000, 100, 4


class Site(NamedTuple):
    """A hash exchange, its queues in the order of their binds, and the channel that made them."""

    url: str
    release: str
    exchange: str
    queues: list[str]
    channel: object

    def write(self, rows) -> None:
        messages = rows.selectExpr("cast(seq as string) as value", "key as routing_key")
        options = {"url": self.url, "exchange": self.exchange, "checkExchange": "false"}
        messages.write.format("rabbitmq").options(**options).mode("append").save()

    def received(self) -> dict[str, list[tuple[str, int]]]:
        """For each queue its messages as its one consumer meets them: key and number."""
        found: dict[str, list[tuple[str, int]]] = {}
        for queue in self.queues:
            count = self.channel.queue_declare(queue, passive=True).method.message_count
            messages = islice(self.channel.consume(queue, auto_ack=True), count)
            found[queue] = [(method.routing_key, int(body)) for method, _, body in messages]
            self.channel.cancel()
        return found


@pytest.fixture
def site(rabbitmq_broker):
    exchange = f"ordered-{uuid4().hex[:8]}"
    queues = [f"{exchange}.{number}" for number in range(QUEUES)]
    url = rabbitmq_broker.url
    with pika.BlockingConnection(
        pika.URLParameters(f"{url}?heartbeat=0")
    ) as connection:  # idle while Spark writes
        channel = connection.channel()
        channel.exchange_declare(exchange, "x-consistent-hash", durable=True)
        for queue in queues:
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, exchange, "1")
        yield Site(url, rabbitmq_broker.version, exchange, queues, channel)
        for queue in queues:
            channel.queue_delete(queue)
        channel.exchange_delete(exchange)


@pytest.fixture
def rows(spark):
    """The numbers from 0 on, each with one of 100 keys, in an order that is nobody's, in 8 partitions."""
    from pyspark.sql import functions as F  # noqa: N812

    key = F.concat(F.lit("customer-"), F.col("id") % KEYS)
    return spark.range(ROWS).select(key.alias("key"), F.col("id").alias("seq")).repartition(8, F.rand(seed=1))


def violations(numbers) -> int:
    return sum(later < earlier for earlier, later in pairwise(numbers))


def by_key(received) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for messages in received.values():
        for key, number in messages:
            found[key].append(number)
    return found


def assert_complete(received) -> None:
    """Every row is there once, and each key in a single queue."""
    assert sorted(number for messages in received.values() for _, number in messages) == list(range(ROWS))
    homes = [{key for key, _ in messages} for messages in received.values()]
    assert sum(map(len, homes)) == len(set().union(*homes)) == KEYS


def test_each_key_arrives_in_order_and_without_order_for_none_does(site, rows):
    from spark_connector import order_for

    site.write(order_for(rows, key="key", seq="seq", partitions=4))
    received = site.received()
    assert_complete(received)
    assert sum(map(violations, by_key(received).values())) == 0

    site.write(rows)
    received = site.received()
    assert_complete(received)
    assert all(violations(numbers) for numbers in by_key(received).values())


def test_by_queue_a_whole_queue_arrives_in_order(site, rows):
    from spark_connector import order_for, queue_of

    exchange = ConsistentHashExchange(site.queues, release=site.release)
    site.write(order_for(rows, key=queue_of("key", exchange), seq="seq", partitions=QUEUES))
    received = site.received()
    assert_complete(received)
    assert all(received.values())
    assert sum(violations([number for _, number in messages]) for messages in received.values()) == 0
