"""``rabbit-chx demo``: compare predictions with a throw-away broker.

The part without a broker runs first and takes a second; the broker may take a minute to start; Spark runs last.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import contextmanager
from importlib.metadata import version
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Final

import click

from rabbit_chx.cli.completion import releases
from rabbit_chx.cli.verb import Exit, verb
from rabbit_chx.errors import BrokerUnavailable, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pika import BlockingConnection
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

    from rabbit_chx.broker.scratch import Scratch
    from rabbit_chx.exchange import ConsistentHashExchange
    from rabbit_chx.ring import Destination, Ring
    from spark_connector.java import Java

_QUEUES: Final = {"orders.0": 1, "orders.1": 1, "orders.2": 2, "orders.3": 3}
_FIFTH: Final = "orders.4"
_KEYS: Final = 10_000
_ROWS: Final = 200_000
_LOOPBACK: Final = "127.0.0.1"


@verb(
    examples=[
        "rabbit-chx demo",
        "rabbit-chx demo --release 4.0",
        "rabbit-chx demo --spark",
    ],
    exit_codes={
        Exit.FINE: "every message reached the predicted queue",
        Exit.FAILED: "a message reached another queue",
    },
)
@click.option(
    "-r",
    "--release",
    metavar="R",
    shell_complete=releases,
    help="The release of the throw-away broker; default: the newest available.",
)
@click.option("--offline", "part", flag_value="offline", help="Run only the part without a broker.")
@click.option("--online", "part", flag_value="online", help="Run only the part with a broker.")
@click.option("--spark", "part", flag_value="spark", help="Run only the part with a broker and Spark.")
def demo(*, release: str | None, part: str | None) -> int:
    """Predict the queues of 10,000 keys, publish the keys to a real broker, and compare.

    Then predict and perform the binding of a fifth queue, and write 200,000 rows from Spark, if PySpark and Java are
    installed.
    """
    from rabbit_chx.cli.tables import console

    out = console()
    keys = [f"customer-{number}" for number in range(_KEYS)]
    code = 0
    if part in {None, "offline"}:
        _offline_part(out, keys)
    if part in {None, "online"}:
        out.rule("with a real broker")
        code |= _unless_missing(out, lambda: _broker_part(out, keys, release))
    if part in {None, "spark"}:
        out.rule("from Spark")
        code |= _unless_missing(out, lambda: _spark_part(out, release))
    return code


def _unless_missing(out: Console, part: Callable[[], int]) -> int:
    """The exit code of a part of the demo; 0 if something that it needs is missing."""
    from rabbit_chx.testing.node import CannotSupply

    try:
        return part()
    except (CannotSupply, MissingDependency) as error:
        out.print(f"Skipped: {error}")
        return 0


def _offline_part(out: Console, keys: list[str]) -> None:
    from rabbit_chx.cli.tables import print_shares
    from rabbit_chx.movement import moved, shares
    from rabbit_chx.ring import Ring

    out.rule("without a broker")
    ring = Ring.of(_QUEUES)
    predicted = Counter(_predict(ring, keys))
    print_shares(
        {queue: predicted[queue] for queue in ring.destinations},
        title=f"Predicted: {len(keys):,} keys over 4 weighted queues",
    )
    exact = ", ".join(f"{queue} {share:.3%}" for queue, share in shares(ring).items())
    out.print(f"Exact shares of all possible keys: {exact}.")
    fifth = ring.bind(_FIFTH)
    first_gone = fifth.unbind("orders.0")
    out.print(f"Binding a fifth queue moves {moved(ring, fifth).share:.2%} of the keys, all to that queue.")
    out.print(
        f"Unbinding the first one moves {moved(fifth, first_gone).share:.2%}: "
        "buckets form a stack, so remove the queue that was bound last."
    )


def _predict(ring: Ring, keys: list[str]) -> list[Destination]:
    from rabbit_chx.exchange import ConsistentHashExchange

    exchange = ConsistentHashExchange(ring)
    return [exchange.destinations[index] for index in exchange.route_many(keys).tolist()]


def _broker_part(out: Console, keys: list[str], release: str | None) -> int:
    with _started(out, release) as (_, _, scratch):
        title = f"{_name(scratch)}: {len(keys):,} confirmed messages"
        before, differences = _publish_and_compare(scratch, keys, title)

        scratch.bind(_FIFTH)
        predicted = _differences(before, _predict(scratch.ring, keys))
        after, more = _publish_and_compare(scratch, keys, f"The same keys, with {_FIFTH} bound as well")
    moved = _differences(before, after)
    out.print(f"Binding {_FIFTH} moved {moved:,} of {len(keys):,} keys; predicted: {predicted:,}.")
    return Exit.FAILED if differences or more or moved != predicted else 0


def _spark_part(out: Console, release: str | None) -> int:
    from rabbit_chx.cli.progress import waiting
    from rabbit_chx.cli.spark import checked_java
    from rabbit_chx.exchange import ConsistentHashExchange

    java = checked_java()
    with _started(out, release) as (url, connection, scratch):
        out.print(f"Starting Spark {version('pyspark')} on Java {java.version} ({java.origin}) ...")
        with _spark(java) as spark:
            connection.process_data_events()  # heartbeats, on a machine where Spark takes minutes
            out.print(f"Predicting the queue of each of {_ROWS:,} rows in Spark ...")
            predicted = _predict_in_spark(spark, ConsistentHashExchange(scratch.ring))
            connection.process_data_events()
            out.print("Writing the rows from Spark, with confirms ...")
            start = perf_counter()
            _write(spark, url, scratch.exchange)
            seconds = perf_counter() - start
        arrived: list[int] = []
        with waiting("Reading the queues"):
            actual = scratch.landed(_ROWS, arrived.append)
    title = f"{_name(scratch)}: {_ROWS:,} rows from Spark in {seconds:.1f} seconds"
    differences = _compare(title, scratch.ring, predicted, actual)
    if (repeated := len(arrived) - _ROWS) > 0:
        out.print(f"{repeated} more messages than rows: Spark has retried a task.")
    return Exit.FAILED if differences or repeated else 0


@contextmanager
def _started(out: Console, release: str | None) -> Iterator[tuple[str, BlockingConnection, Scratch]]:
    """The URL of a broker, a connection to it, and a scratch exchange with the queues of the demo."""
    from rabbit_chx.broker.amqp import connect
    from rabbit_chx.broker.scratch import Scratch
    from rabbit_chx.releases import Release
    from rabbit_chx.testing import Broker, available

    out.print(f"Starting RabbitMQ: {available(release)} ...")
    with Broker(release=release) as broker, connect(broker.url) as connection:
        try:
            running = Release.parse(broker.version, store=broker.store)
        except BrokerUnavailable:  # an external broker does not report its metadata store
            running = Release.parse(broker.version)
        scratch = Scratch(connection, release=running)
        for queue, weight in _QUEUES.items():
            scratch.bind(queue, weight)
        yield broker.url, connection, scratch


def _name(scratch: Scratch) -> str:
    running = scratch.ring.release
    return f"RabbitMQ {running} on {running.store}"


@contextmanager
def _spark(java: Java) -> Iterator[SparkSession]:
    """A Spark on two threads of this machine that ignores settings meant for another Spark."""
    from rabbit_chx.cli.spark import QUIET, session

    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        del os.environ[name]
    # Without SPARK_LOCAL_IP Spark resolves the name of this machine, which may fail.
    os.environ |= {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": _LOOPBACK}
    with TemporaryDirectory(prefix="rabbit-chx-") as folder:
        settings = QUIET | {
            "spark.app.name": "rabbit-chx demo",
            "spark.master": "local[2]",
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": folder,
        }
        with session(settings) as spark:
            yield spark


def _predict_in_spark(spark: SparkSession, exchange: ConsistentHashExchange) -> list[str]:
    """The queue of each row, computed in Spark's workers."""
    from spark_connector import queue_of

    predicted = _orders(spark).select("id", queue_of("routing_key", exchange).alias("queue"))
    queues: list[str] = predicted.toArrow().sort_by("id")["queue"].to_pylist()
    return queues


def _write(spark: SparkSession, url: str, exchange: str) -> None:
    """Write the rows; the body of each message is the number of its row."""
    messages = _orders(spark).selectExpr("string(id) AS value", "routing_key")
    messages.write.format("rabbitmq").option("url", url).option("exchange", exchange).mode("append").save()


def _orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, _ROWS, 1, 4).selectExpr("id", "concat('customer-', id % 50000) AS routing_key")


def _publish_and_compare(scratch: Scratch, keys: list[str], title: str) -> tuple[list[str], int]:
    """Publish all keys, print the comparison, and return the queue of each key and the number of differences."""
    from rabbit_chx.cli.progress import progress

    predicted = _predict(scratch.ring, keys)
    with progress("Publishing with confirms", len(keys)) as advance:
        scratch.publish(((key, {}) for key in keys), advance)
    actual = scratch.landed(len(keys))
    return actual, _compare(title, scratch.ring, predicted, actual)


def _differences(some: Sequence[Destination], others: Sequence[Destination]) -> int:
    return sum(one != other for one, other in zip(some, others, strict=True))


def _compare(title: str, ring: Ring, predicted: Sequence[Destination], actual: Sequence[str]) -> int:
    """Print the counts of each queue; return how many messages reached another queue than predicted."""
    from rabbit_chx.cli.tables import show, table

    differences = _differences(predicted, actual)
    counts, real_counts = Counter(predicted), Counter(actual)
    shown = table("queue", "predicted", "actual", right=("predicted", "actual"))
    for queue in ring.destinations:
        shown.add_row(str(queue), f"{counts[queue]:,}", f"{real_counts[str(queue)]:,}")
    show(shown, f"{differences} differences, compared message by message.", title=title)
    return differences
