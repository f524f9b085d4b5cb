"""order_for puts the rows of a key into one partition in order, and consumers get their messages in order."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pika
import pytest
from pyspark.sql import functions as F  # noqa: N812

from rabbit_chx import ConsistentHashExchange, InvalidValue
from spark_connector.routing.queue_column import order_for, queue_of
from tests.deliveries import deliveries
from tests.patience import PATIENCE
from tests.programs import ran
from tests.queues import bind_ring, delete_exchange, message_count
from tests.spark import two_executors

pytestmark = [
    pytest.mark.spark,
    pytest.mark.proves(
        "Spark",
        "order of 1,000 keys through two executors",
        "without order_for the same rows are out of order",
    ),
]

REPOSITORY = Path(__file__).parents[2]
KEYS = 100

by_queue = pytest.mark.pyspark("4.1", "queue_of needs its Arrow functions")


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
    assert sum(map(len, homes)) == len(set().union(*homes)), "rows of one key are in several partitions"
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


@by_queue
def test_by_queue_each_queue_gets_its_own_partition(rows):
    exchange = ConsistentHashExchange([f"q{number}" for number in range(7)])
    ordered = order_for(rows, key=queue_of("key", exchange), seq="seq", partitions=7)
    parts = partitions(ordered)
    assert [len({exchange.route(row["key"]) for row in part}) for part in parts] == [1] * 7
    assert ordered.columns == rows.columns
    assert_ordered(parts, lambda row: exchange.route(row["key"]))


def test_a_stream_is_rejected_with_a_hint(spark):
    stream = spark.readStream.format("rate").load()
    with pytest.raises(InvalidValue, match=r"got 'a stream'.*foreach_batch"):
        order_for(stream, key="value", seq="timestamp", partitions=2)


@pytest.mark.parametrize("partitions", [None, 0, -1, "4", 2.0, True])
def test_the_number_of_partitions_is_required_and_the_error_says_why(rows, partitions):
    with pytest.raises(InvalidValue, match="connections that publish at once"):
        order_for(rows, key="key", seq="seq", partitions=partitions)


# ---- through the writer, as consumers see it


class Site(NamedTuple):
    """What two executors have written to a real broker."""

    url: str
    prefix: str
    channel: object

    def received(self, way: str) -> Iterator[list[tuple[bytes, int]]]:
        """For each queue its messages in order of delivery: key and number."""
        for queue in two_executors.queues(f"{self.prefix} {way}"):
            count = message_count(self.channel, queue)
            yield [(one.key, int(one.body)) for one in deliveries(self.url, queue, count)]


@pytest.fixture(scope="module")
def site(rabbitmq_broker):
    prefix = f"ordered {uuid4().hex[:8]}"
    exchanges = [f"{prefix} {way}" for way in two_executors.WAYS]
    with pika.BlockingConnection(pika.URLParameters(f"{rabbitmq_broker.url}?heartbeat=0")) as connection:
        channel = connection.channel()
        for exchange in exchanges:
            bind_ring(channel, exchange, two_executors.queues(exchange))
        program = ran(
            [
                sys.executable,
                "-m",
                two_executors.__name__,
                rabbitmq_broker.url,
                rabbitmq_broker.version,
                prefix,
            ],
            cwd=REPOSITORY,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            timeout=4 * PATIENCE,
        )
        assert program.returncode == 0, program.stderr[-2_000:]
        yield Site(rabbitmq_broker.url, prefix, channel)
        for exchange in exchanges:
            delete_exchange(channel, exchange, two_executors.queues(exchange))


class Watcher:
    """Counts rows that arrive for the first time after a later row of the same key."""

    def __init__(self, rows: int) -> None:
        self.seen = bytearray(rows)
        self.violations: Counter[bytes] = Counter()
        self._last: dict[bytes, int] = {}

    def add(self, kind: bytes, number: int) -> None:
        if not self.seen[number]:
            self.seen[number] = 1
            self.violations[kind] += number < self._last.get(kind, -1)
            self._last[kind] = number

    @property
    def missing(self) -> int:
        return self.seen.count(0)


def watched(site, way: str) -> Watcher:
    """All rows of a way; no key may be in two queues."""
    watcher = Watcher(two_executors.ROWS)
    homes: list[set[bytes]] = []
    for messages in site.received(way):
        homes.append({key for key, _ in messages})
        for key, number in messages:
            watcher.add(key, number)
    assert sum(map(len, homes)) == len(set().union(*homes)) == two_executors.KEYS
    return watcher


@pytest.mark.broker
@pytest.mark.long
def test_two_executors_write_rows_in_the_order_of_1_000_keys(site):
    watcher = watched(site, "by key")
    assert watcher.missing == 0
    assert watcher.violations.total() == 0


@pytest.mark.broker
@pytest.mark.long
def test_without_order_for_the_same_rows_are_out_of_order(site):
    """Control: the test above could fail."""
    watcher = watched(site, "unsorted")
    assert watcher.missing == 0
    assert watcher.violations.total() > 0


@by_queue
@pytest.mark.broker
@pytest.mark.long
def test_two_executors_write_whole_queues_in_order(site):
    watcher = Watcher(two_executors.ROWS_BY_QUEUE)
    queues = list(site.received("by queue"))
    for queue, messages in enumerate(queues):
        for _, number in messages:
            watcher.add(b"%d" % queue, number)
    assert all(queues)
    assert watcher.missing == 0
    assert watcher.violations.total() == 0
