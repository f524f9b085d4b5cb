"""``rabbit-chx demo``: compare predictions with a throw-away broker.

The part without a broker runs first and takes a second; the broker may take a minute to start; Spark runs last.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Final

import click
from pika import BlockingConnection

from rabbit_chx.broker.amqp import connect
from rabbit_chx.broker.scratch import Scratch
from rabbit_chx.cli.ask.options import other_release_option
from rabbit_chx.cli.show.output import progress, waiting
from rabbit_chx.cli.show.tables import Table, console, print_shares, show
from rabbit_chx.cli.spark import QUIET, checked_java, session
from rabbit_chx.cli.verb import Exit, verb
from rabbit_chx.errors import BrokerUnavailable, MissingDependency
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.movement import moved, shares
from rabbit_chx.mirror.releases import Release
from rabbit_chx.mirror.ring import Destination, Ring
from rabbit_chx.testing import Broker, available
from rabbit_chx.testing.node import CannotSupply

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_connector.java import Java

_QUEUES: Final = {"orders.0": 1, "orders.1": 1, "orders.2": 2, "orders.3": 3}
_FIFTH: Final = "orders.4"
_KEYS: Final = 10_000
_ROWS: Final = 200_000
_KEY_OF_ROW: Final = "concat('customer-', id % 50000) AS routing_key"
_LOOPBACK: Final = "127.0.0.1"


@verb(
    examples=[
        "rabbit-chx demo",
        "rabbit-chx demo --release 4.0",
        "rabbit-chx demo --part spark",
    ],
    exit_codes={
        Exit.FINE: "every message reached the predicted queue",
        Exit.FAILED: "a message reached another queue, or no broker could be started",
    },
)
@other_release_option(help="The release of the throw-away broker; default: the newest available.")
@click.option(
    "--part",
    type=click.Choice(("offline", "broker", "spark")),
    help="Run only one part: without a broker, with one, or from Spark. Default: all.",
)
def demo(*, release: str | None, part: str | None) -> int:
    """Predict the queues of 10,000 keys, publish the keys to a real broker, and compare.

    Then predict and perform the binding of a fifth queue, and write 200,000 rows from Spark and read them back from a
    stream, if PySpark and Java are installed.
    """
    keys = [f"customer-{number}" for number in range(_KEYS)]
    code = 0
    if part in {None, "offline"}:
        _offline_part(keys)
    if part in {None, "broker"}:
        console().rule("with a real broker")
        code |= _unless_missing(lambda: _broker_part(keys, release), Exit.FAILED)
    if part in {None, "spark"}:
        console().rule("from Spark")
        code |= _unless_missing(lambda: _spark_part(release), Exit.FINE)
    return code


def _unless_missing(part: Callable[[], int], otherwise: int) -> int:
    """The exit code of a part of the demo, or ``otherwise`` if a package or Java is missing; 1 if no broker can be started."""
    try:
        return part()
    except (CannotSupply, MissingDependency) as error:
        show(f"Skipped: {error}")
        return otherwise if isinstance(error, MissingDependency) else Exit.FAILED


def _offline_part(keys: list[str]) -> None:
    console().rule("without a broker")
    ring = Ring.of(_QUEUES)
    predicted = Counter(_predict(ring, keys))
    print_shares(
        {queue: predicted[queue] for queue in ring.destinations},
        title=f"Predicted: {len(keys):,} keys over 4 weighted queues",
    )
    exact = ", ".join(f"{queue} {share:.3%}" for queue, share in shares(ring).items())
    show(f"Exact shares of all possible keys: {exact}.")
    fifth = ring.bind(_FIFTH)
    first_gone = fifth.unbind("orders.0")
    show(f"Binding a fifth queue moves {moved(ring, fifth).share:.2%} of the keys, all to that queue.")
    show(
        f"Unbinding the first one moves {moved(fifth, first_gone).share:.2%}: "
        "buckets form a stack, so remove the queue that was bound last."
    )


def _predict(ring: Ring, keys: list[str]) -> list[Destination]:
    exchange = ConsistentHashExchange(ring)
    return [exchange.destinations[index] for index in exchange.route_many(keys).tolist()]


def _broker_part(keys: list[str], release: str | None) -> int:
    with _started(release) as (_, _, scratch):
        title = f"{_name(scratch)}: {len(keys):,} confirmed messages"
        before, differences = _publish_and_compare(scratch, keys, title)

        scratch.bind(_FIFTH)
        predicted = _differences(before, _predict(scratch.ring, keys))
        after, more = _publish_and_compare(scratch, keys, f"The same keys, with {_FIFTH} bound as well")
    actual = _differences(before, after)
    show(f"Binding {_FIFTH} moved {actual:,} of {len(keys):,} keys; predicted: {predicted:,}.")
    return Exit.FAILED if differences or more or actual != predicted else 0


def _spark_part(release: str | None) -> int:
    java = checked_java()
    with _started(release) as (broker, connection, scratch):
        show(f"Starting Spark {version('pyspark')} on Java {java.version} ({java.origin}) ...")
        with _spark(java) as spark:
            from spark_connector import queue_of

            connection.process_data_events()  # heartbeats, on a machine where Spark takes minutes
            show(f"Predicting the queue of each of {_ROWS:,} rows in Spark ...")
            orders = spark.range(0, _ROWS, 1, 4).selectExpr("id", _KEY_OF_ROW)
            queue = queue_of("routing_key", ConsistentHashExchange(scratch.ring)).alias("queue")
            predicted = orders.select("id", queue).toArrow().sort_by("id")["queue"].to_pylist()
            connection.process_data_events()
            show("Writing the rows from Spark, with confirms ...")
            rows = orders.selectExpr("string(id) AS value", "routing_key")
            with _copied_to_stream(broker, connection, scratch) as (top, stream):
                start = perf_counter()
                options = {"url": broker.url, "exchange": top}
                rows.write.format("rabbitmq").options(**options).mode("append").save()
                seconds = perf_counter() - start
                lost = _read_back(spark, _stream_url(broker), stream, rows) if stream else 0
        arrived: list[int] = []
        with waiting("Reading the queues"):
            actual = scratch.landed(_ROWS, arrived.append)
    title = f"{_name(scratch)}: {_ROWS:,} rows from Spark in {seconds:.1f} seconds"
    differences = _compare(title, scratch.ring, predicted, actual)
    if (repeated := len(arrived) - _ROWS) > 0:
        show(f"{repeated} more messages than rows: Spark has retried a task.")
    return Exit.FAILED if differences or repeated or lost else 0


@contextmanager
def _copied_to_stream(
    broker: Broker, connection: BlockingConnection, scratch: Scratch
) -> Iterator[tuple[str, str]]:
    """Declare an exchange that leads to the scratch exchange and to a stream; yield the names of exchange and stream.

    Without support for streams, yield the scratch exchange and an empty name.
    """
    if not _stream_url(broker):
        show("The rows will not be read back: the broker has no port for streams.")
        yield scratch.exchange, ""
        return
    top = stream = f"{scratch.exchange}.stream"
    channel = connection.channel()
    channel.exchange_declare(top, "fanout", auto_delete=True)
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    try:
        channel.queue_bind(stream, top)
        channel.exchange_bind(scratch.exchange, top)
        yield top, stream
    finally:
        channel.queue_delete(stream)


def _stream_url(broker: Broker) -> str:
    """The URL for streams; "" without one, as an external broker may be."""
    try:
        return broker.stream_url
    except BrokerUnavailable:
        return ""


def _read_back(spark: SparkSession, url: str, stream: str, rows: DataFrame) -> int:
    """Read what was written, in Spark; return how many rows are missing."""
    show("Reading the rows back from a stream that also has them ...")
    options = {"url": url, "stream": stream, "columns": "value,routing_key"}
    start = perf_counter()
    found = spark.read.format("rabbitmq").options(**options).load()
    missing = rows.exceptAll(found.selectExpr("string(value) AS value", "routing_key")).count()
    show(f"Read back in {perf_counter() - start:.1f} seconds: {missing} of {_ROWS:,} rows are missing.")
    return missing


@contextmanager
def _started(release: str | None) -> Iterator[tuple[Broker, BlockingConnection, Scratch]]:
    """A broker, a connection to it, and a scratch exchange with the queues of the demo."""
    source = available(release)
    show(f"Starting RabbitMQ: {source} ...")
    plugins = [] if source.kind == "external" else ["rabbitmq_stream"]
    with Broker(release=release, plugins=plugins) as broker, connect(broker.url) as connection:
        try:
            running = Release.parse(broker.version, store=broker.store)
        except BrokerUnavailable:  # an external broker does not report its metadata store
            running = Release.parse(broker.version)
        scratch = Scratch(connection, release=running)
        for queue, weight in _QUEUES.items():
            scratch.bind(queue, weight)
        yield broker, connection, scratch


def _name(scratch: Scratch) -> str:
    running = scratch.ring.release
    return f"RabbitMQ {running} on {running.store}"


@contextmanager
def _spark(java: Java) -> Iterator[SparkSession]:
    """A Spark on two threads of this machine that ignores settings meant for another Spark."""
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


def _publish_and_compare(scratch: Scratch, keys: list[str], title: str) -> tuple[list[str], int]:
    """Publish all keys, print the comparison, and return the queue of each key and the number of differences."""
    predicted = _predict(scratch.ring, keys)
    with progress("Publishing with confirms", len(keys)) as advance:
        scratch.publish(((key, {}) for key in keys), advance)
    actual = scratch.landed(len(keys))
    return actual, _compare(title, scratch.ring, predicted, actual)


def _differences(some: Sequence[Destination], others: Sequence[Destination]) -> int:
    return sum(one != other for one, other in zip(some, others, strict=True))


def _compare(title: str, ring: Ring, predicted: Sequence[Destination], actual: Sequence[str]) -> int:
    """Print the counts of each queue; return how many messages reached another queue than predicted."""
    differences = _differences(predicted, actual)
    counts, real_counts = Counter(predicted), Counter(actual)
    shown = Table("queue", "predicted", "actual", right=("predicted", "actual"))
    for queue in ring.destinations:
        shown.add_row(str(queue), f"{counts[queue]:,}", f"{real_counts[str(queue)]:,}")
    show(shown, f"{differences} differences, compared message by message.", title=title)
    return differences
