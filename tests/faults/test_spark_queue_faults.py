"""Spark reads a queue while its driver is killed: no message is lost, and a kill repeats at most two micro-batches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pika
import pytest

from rabbit_chx.publishing import Publisher
from tests.faults.spark_programs import Program
from tests.faults.spark_read import until_committed
from tests.members import in_background
from tests.programs import stopping
from tests.proof import LONG, dice, never, record_result
from tests.queues import message_count

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.proof,
    pytest.mark.timeout(3_600 if LONG else 1_200),
]

KILLS = 5 if LONG else 2
MOST = 1_000
"""Rows of a micro-batch."""
RATE = 500
ENOUGH = 3 * MOST
"""Messages that may be ready: a slow machine must be able to read all of them at the end."""
QUEUE = "read-by-spark"


@contextmanager
def published(url: str, ready: Callable[[], int]) -> Iterator[list[int]]:
    """Publish numbers with confirms until the block ends, and pause while enough messages are ready."""
    numbers: list[int] = []

    def publish(ended: threading.Event) -> None:
        with Publisher(url) as publisher:
            while not ended.wait(0.2):
                if ready() > ENOUGH:
                    continue
                more = range(len(numbers), len(numbers) + RATE // 5)
                publisher.publish_many([b"%d" % number for number in more], QUEUE, exchange="")
                numbers.extend(more)

    with in_background(publish):
        yield numbers


@pytest.fixture
def queue(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0")) as connection:
        channel = connection.channel()
        limits = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
        channel.queue_declare(QUEUE, durable=True, arguments=limits)
        yield lambda: message_count(channel, QUEUE)
        channel.queue_delete(QUEUE)


def test_killed_drivers_lose_no_message(spark, broker, queue, tmp_path):
    moments = dice("kills of a driver that reads a queue")
    read = {"url": broker.url, "queue": QUEUE, "columns": "value", "maxRowsPerTrigger": str(MOST)}

    def begin(number: int) -> Program:
        program = Program("local[2]", tmp_path / f"driver-{number}")
        program.order(copy=str(tmp_path), options=read)
        return program

    with published(broker.url, ready=queue) as numbers:
        for number in range(KILLS):
            with stopping(begin(number)) as program:
                until_committed(program, tmp_path, moments.randint(1, 6))
                threading.Event().wait(
                    moments.random()
                )  # so that the kill comes at a random point of a micro-batch
    count = len(numbers)
    with stopping(begin(KILLS)) as program:
        program.until(lambda: not queue() and found(spark, tmp_path).keys() >= set(range(count)), "the rest")
    table = found(spark, tmp_path)
    lost = set(range(count)) - table.keys()
    again = table.total() - len(table)
    record_result(
        f"Spark reads a quorum queue: {count:,} messages, {KILLS} kills of the driver, {len(lost)} lost, {again:,} rows twice"
    )
    never(lost=lost)
    assert again <= KILLS * 2 * MOST


def found(spark, folder) -> Counter:
    rows = spark.read.parquet(str(folder / "rows")).collect()
    return Counter(int(bytes(row.value)) for row in rows)
