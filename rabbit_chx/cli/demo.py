"""``rabbit-chx demo``: compare predictions with a throw-away broker.

The part without a broker runs first and takes a second; the broker may take a minute to start; Spark runs last.
"""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING, Final

import click

from rabbit_chx.cli.completion import releases
from rabbit_chx.cli.verb import Exit, verb
from rabbit_chx.errors import BrokerUnavailable, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pika
    from rich.console import Console

    from rabbit_chx.broker.scratch import Scratch
    from rabbit_chx.releases import Release
    from rabbit_chx.ring import Destination, Ring
    from rabbit_chx.testing import Broker

_QUEUES: Final = {"orders.0": 1, "orders.1": 1, "orders.2": 2, "orders.3": 3}
_FIFTH: Final = "orders.4"
_KEYS: Final = 10_000


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
    from rabbit_chx.broker.amqp import connect
    from rabbit_chx.testing import Broker, available

    out.print(f"Starting RabbitMQ: {available(release)} ...")
    with Broker(release=release) as broker, connect(broker.url) as connection:
        running = _running(broker)
        scratch = _bound(connection, running)
        title = f"RabbitMQ {running} on {running.store}: {len(keys):,} confirmed messages"
        before, differences = _publish_and_compare(scratch, keys, title)

        scratch.bind(_FIFTH)
        predicted = sum(old != new for old, new in zip(before, _predict(scratch.ring, keys), strict=True))
        after, more = _publish_and_compare(scratch, keys, f"The same keys, with {_FIFTH} bound as well")
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    out.print(f"Binding {_FIFTH} moved {moved:,} of {len(keys):,} keys; predicted: {predicted:,}.")
    return Exit.FAILED if differences or more or moved != predicted else 0


def _spark_part(out: Console, release: str | None) -> int:
    from rabbit_chx.broker.amqp import connect
    from rabbit_chx.cli.progress import waiting
    from rabbit_chx.cli.spark import ROWS, java_for_demo, predict, spark_for_demo, write
    from rabbit_chx.exchange import ConsistentHashExchange
    from rabbit_chx.testing import Broker, available

    java = java_for_demo()
    out.print(f"Starting RabbitMQ: {available(release)} ...")
    with Broker(release=release) as broker, connect(broker.url) as connection:
        running = _running(broker)
        scratch = _bound(connection, running)
        out.print(f"Starting Spark {version('pyspark')} on Java {java.version} ({java.origin}) ...")
        with spark_for_demo(java) as spark:
            connection.process_data_events()  # heartbeats, on a machine where Spark takes minutes
            out.print(f"Predicting the queue of each of {ROWS:,} rows in Spark ...")
            predicted = predict(spark, ConsistentHashExchange(scratch.ring))
            connection.process_data_events()
            out.print("Writing the rows from Spark, with confirms ...")
            start = perf_counter()
            write(spark, broker.url, scratch.exchange)
            seconds = perf_counter() - start
        arrived: list[int] = []
        with waiting("Reading the queues"):
            actual = scratch.landed(ROWS, arrived.append)
    title = f"RabbitMQ {running} on {running.store}: {ROWS:,} rows from Spark in {seconds:.1f} seconds"
    differences = _compare(title, scratch.ring, predicted, actual)
    if (repeated := len(arrived) - ROWS) > 0:
        out.print(f"{repeated} more messages than rows: Spark has retried a task.")
    return Exit.FAILED if differences or repeated else 0


def _running(broker: Broker) -> Release:
    """The release to mirror; an external broker does not report its metadata store."""
    from rabbit_chx.releases import Release

    try:
        return Release.parse(broker.version, store=broker.store)
    except BrokerUnavailable:
        return Release.parse(broker.version)


def _bound(connection: pika.BlockingConnection, running: Release) -> Scratch:
    """A scratch exchange with the queues of the demo."""
    from rabbit_chx.broker.scratch import Scratch

    scratch = Scratch(connection, release=running)
    for queue, weight in _QUEUES.items():
        scratch.bind(queue, weight)
    return scratch


def _publish_and_compare(scratch: Scratch, keys: list[str], title: str) -> tuple[list[str], int]:
    """Publish all keys, print the comparison, and return the queue of each key and the number of differences."""
    from rabbit_chx.cli.progress import progress

    predicted = _predict(scratch.ring, keys)
    with progress("Publishing with confirms", len(keys)) as advance:
        scratch.publish(((key, {}) for key in keys), advance)
    actual = scratch.landed(len(keys))
    return actual, _compare(title, scratch.ring, predicted, actual)


def _compare(title: str, ring: Ring, predicted: Sequence[Destination], actual: Sequence[str]) -> int:
    """Print the counts of each queue; return how many messages reached another queue than predicted."""
    from rabbit_chx.cli.tables import show, table

    differences = sum(expected != found for expected, found in zip(predicted, actual, strict=True))
    counts, real_counts = Counter(predicted), Counter(actual)
    shown = table("queue", "predicted", "actual", right=("predicted", "actual"))
    for queue in ring.destinations:
        shown.add_row(str(queue), f"{counts[queue]:,}", f"{real_counts[str(queue)]:,}")
    show(shown, f"{differences} differences, compared message by message.", title=title)
    return differences
