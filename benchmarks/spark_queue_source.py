"""Measure how fast Spark reads a queue, into the sink noop.

    python benchmarks/spark_queue_source.py [--rows 200000] [--kind quorum] [--most 10000] [--release 4.3]

README.md says what is printed. Each message has 100 bytes. The second rate is by the durations that Spark reports. Spark, the driver's
Python and the broker share the cores; the CPU of each is that of all its processes on this machine, from the second micro-batch on.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress
from ways.local_spark import local_spark
from ways.repeated_rows import RepeatedRows

from rabbit_chx.publishing import Publisher
from rabbit_chx.testing import Broker

QUEUE = "measured"
BODY = b"x" * 100
PROGRAMS = {"beam.smp": "broker", "java": "Spark", "python": "Python"}


def main() -> int:
    """Fill a queue, read it, and print the rates."""
    options = _options()
    with Broker(options.release) as broker, broker.connection() as connection:
        channel = connection.channel()
        arguments = {"x-queue-type": options.kind}
        channel.queue_declare(QUEUE, durable=True, arguments=arguments)
        with Publisher(broker.url) as publisher:
            publisher.publish_many([BODY] * options.rows, QUEUE, exchange="")
        spark = local_spark(2)
        began = perf_counter()
        batches = options.rows // options.most
        rate = _read(spark, broker.url, str(options.most), batches)
        seconds = perf_counter() - began
        left = channel.queue_declare(QUEUE, passive=True).method.message_count
        ceiling = _repeat(spark, str(options.most), batches)
        spark.stop()
    print(f"{options.rows:,} rows of a {options.kind} queue in {seconds:.1f} s, {left} left")
    print(f"micro-batches from the second on: {rate:,.0f} rows/s")
    print(f"a source that repeats the same rows: {ceiling:,.0f} rows/s; ratio {rate / ceiling:.2f}")
    return 1 if left else 0


def _read(spark: SparkSession, url: str, most: str, batches: int) -> float:
    """Read the queue until it is empty; return the rows per second of the micro-batches after the first."""
    rows = spark.readStream.format("rabbitmq").option("maxRowsPerTrigger", most)
    rows = rows.option("url", url).option("queue", QUEUE).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        running = query.trigger(availableNow=True).start()
        _print_cpu(running, batches - 1)  # before the driver's Python ends
        running.awaitTermination()
        return _rate(running)


def _repeat(spark: SparkSession, most: str, batches: int) -> float:
    """Return the rows per second of a source that takes no time itself."""
    spark.dataSource.register(RepeatedRows)
    rows = spark.readStream.format("repeated_rows").option("rows", most).option("body", BODY.decode()).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        running = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        _print_cpu(running, batches + 1)
        running.stop()
        return _rate(running)


def _cpu() -> Counter[str]:
    """Return the CPU seconds of the processes on this machine, by program."""
    found: Counter[str] = Counter()
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            name, fields = each.read_text().partition("(")[2].rsplit(")", 1)
            ticks = sum(map(int, fields.split()[11:13]))  # utime and stime
            found[name.rstrip("0123456789.")] += ticks / os.sysconf("SC_CLK_TCK")
    return found


def _print_cpu(query: StreamingQuery, batches: int) -> None:
    """Print the CPU per row from the end of the first micro-batch to that of the last of ``batches``."""
    while query.isActive and not _finished(query):
        sleep(0.05)
    first, before = _rows(query), _cpu()
    while query.isActive and len(_finished(query)) < batches:
        sleep(0.05)
    seconds, rows = _cpu() - before, max(_rows(query) - first, 1)
    shares = (f"{text} {1e6 * seconds[name] / rows:.1f} us" for name, text in PROGRAMS.items())
    print("CPU per row:", ", ".join(shares))


def _rows(query: StreamingQuery) -> int:
    return sum(one["numInputRows"] for one in _finished(query))


def _rate(query: StreamingQuery) -> float:
    found = _finished(query)[1:]
    milliseconds = sum(one["durationMs"]["triggerExecution"] for one in found)
    return 1_000 * sum(one["numInputRows"] for one in found) / max(milliseconds, 1)


def _finished(query: StreamingQuery) -> list[StreamingQueryProgress]:
    return [one for one in query.recentProgress if one["numInputRows"]]


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
