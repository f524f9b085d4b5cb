"""Measure how fast Spark reads a queue, into the sink noop.

    python benchmarks/spark_queue_source.py [--rows 200000] [--kind quorum] [--most 10000] [--release 4.3]

Each message has 100 bytes. The first rate is that of the whole query with availableNow, including its start; the second one
is that of the micro-batches from the second on, by the durations that Spark reports. The exit code is 1 if the queue is not
empty afterwards. Spark, the driver's Python and the broker share the cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from time import perf_counter

from ways.local_spark import local_spark

from rabbit_chx.publishing import Publisher
from rabbit_chx.testing import Broker

QUEUE = "measured"
BODY = b"x" * 100


def main() -> int:
    """Fill a queue, read it, and print the rates."""
    options = _options()
    with Broker(options.release) as broker, broker.connection() as connection:
        channel = connection.channel()
        arguments = {"x-queue-type": options.kind}
        channel.queue_declare(QUEUE, durable=True, arguments=arguments)
        with Publisher(broker.url) as publisher:
            publisher.publish_many([BODY] * options.rows, QUEUE, exchange="")
        began = perf_counter()
        rates = _read(broker.url, str(options.most))
        seconds = perf_counter() - began
        left = channel.queue_declare(QUEUE, passive=True).method.message_count
    print(f"{options.rows:,} rows of a {options.kind} queue in {seconds:.1f} s, {left} left")
    print(f"micro-batches from the second on: {rates:,.0f} rows/s")
    return 1 if left else 0


def _read(url: str, most: str) -> float:
    """Read the queue until it is empty; return the rows per second of the micro-batches after the first."""
    spark = local_spark(2)
    with tempfile.TemporaryDirectory() as checkpoint:
        rows = spark.readStream.format("rabbitmq").option("maxRowsPerTrigger", most)
        rows = rows.option("url", url).option("queue", QUEUE).load()
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        found = [one for one in running.recentProgress if one["numInputRows"]][1:]
    spark.stop()
    milliseconds = sum(one["durationMs"]["triggerExecution"] for one in found)
    return 1_000 * sum(one["numInputRows"] for one in found) / max(milliseconds, 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--kind", choices=("classic", "quorum"), default="quorum")
    parser.add_argument("--most", type=int, default=10_000)
    parser.add_argument("--release", default="4.3")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
