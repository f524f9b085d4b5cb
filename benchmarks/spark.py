"""Measure writing rows of a key and a body through Spark to a hash exchange: this connector, hand-written code and the limit.

    python benchmarks/spark.py [--rows 200000] [--rounds 3] [--connections N] [--release 4.3] [--json]
    python benchmarks/spark.py --rows 500000         the run in the documentation; takes some minutes
    python benchmarks/spark.py --rows 100000 --partitions 1000        small partitions, compared with a sink that drops the rows

README.md describes the ways, of which the slow ones write only some of the rows. A wrong number of messages ends the run with exit
code 1. Rates and CPU times are medians over the rounds; ratios are medians of the ratios within a round.

The time is that of the whole job, including the start of its tasks and connections, which matters less with more
rows. CPU time is the total of all Python processes under Spark's JVM, and peak memory (VmHWM) is that of the largest
one; each way has its own workers. Spark, workers and broker share the cores. Linux only, because it reads /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from statistics import median
from time import perf_counter

from publishing import declare, drain
from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)
from ways.dropping import Dropping
from ways.local_spark import local_spark
from ways.publishing import Load
from ways.spark import DROPPING, LIMIT, OURS, OURS_STREAM, SPARK_WAYS, STREAM, bare_sockets
from ways.stream_writing import RSTREAM, Writing, with_rstream
from ways.turns import Turn, conditions, headline, in_turns, options_parser, ratio, timed

from rabbit_chx.streams import StreamReader, connect
from rabbit_chx.streams.messages.encode import encode_messages
from rabbit_chx.testing import Broker

TICKS = os.sysconf("SC_CLK_TCK")
BAR_CPU, BAR_LIMIT, BAR_STREAM = 4.0, 0.8, 5.0
BAR_SMALL, BAR_RSTREAM = 1.3, 0.5


# ---- processes


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat, starting with the state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def under(jvm: int) -> list[int]:
    """Return all descendants of the JVM's process."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(path.name)] = int(stat(int(path.name))[1])
    found = [jvm]
    for pid in found:  # the list grows during the loop
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def ticks(pid: int, *, children: bool) -> int:
    """Return the CPU time of a process, or of its children that it has reaped; 0 if the process has ended."""
    with suppress(OSError):
        return sum(map(int, stat(pid)[13:15] if children else stat(pid)[11:13]))
    return 0


def peak(pid: int) -> int:
    """Return the peak memory of a process, in bytes; 0 if the process has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


class Workers:
    """The Python processes of a Spark application, measured from the start of a turn."""

    def __init__(self, jvm: int) -> None:
        self.jvm = jvm
        self.before, self.gone = self.look()
        for pid in self.before:
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak

    def look(self) -> tuple[dict[int, int], int]:
        """Return the CPU time of each running process, and that of ended ones, which their parents report."""
        living = {pid: ticks(pid, children=False) for pid in under(self.jvm)}
        return living, sum(ticks(pid, children=True) for pid in (self.jvm, *living))

    def since(self) -> tuple[float, float]:
        """Return the CPU seconds, and the peak memory of the largest process that did any work, in megabytes."""
        now, gone = self.look()
        used = sum(spent - self.before.get(pid, 0) for pid, spent in now.items())
        # Idle workers of earlier turns may have ended, and not all of their time reaches a parent.
        ended = sum(spent for pid, spent in self.before.items() if pid not in now)
        used += max(gone - self.gone - ended, 0)
        busy = [pid for pid, spent in now.items() if spent > self.before.get(pid, 0)]
        return used / TICKS, max(map(peak, busy), default=0) / 1e6


# ---- turns


def frame(spark: SparkSession, rows: int, size: int, partitions: int) -> DataFrame:
    """Return rows of a key and a body; with as many partitions as threads, each way has one connection per thread."""
    key = F.concat(F.lit("customer-"), F.lpad(F.col("id").cast("string"), 8, "0"))
    body = F.lit(b"x" * size)
    return spark.range(0, rows, 1, partitions).select(key.alias("key"), body.alias("body"))


def spark_turn(spark: SparkSession, name: str, url: str, given: argparse.Namespace) -> Turn:
    way, part = SPARK_WAYS[name]
    rows = max(int(given.messages * part), 1)
    df = frame(spark, rows, given.size, given.partitions or given.connections)
    spark.sparkContext.environment["BENCHMARK_WAY"] = (
        name  # a different environment makes Spark start new workers
    )
    workers = Workers(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    start = perf_counter()
    way(df, url)
    seconds = perf_counter() - start
    cpu, memory = workers.since()
    return Turn(rows, seconds, cpu, memory)


def rstream_turn(load: Load, url: str) -> Turn:
    """Write the same messages over one connection, without Spark; the time does not include their encoding."""
    messages = list(encode_messages([load.body] * len(load.keys), routing_keys=load.keys))
    return timed(lambda: with_rstream(Writing(url, STREAM, [], messages)))


def drain_stream(url: str) -> int:
    """Replace the stream with an empty stream; return the number of messages removed."""
    with StreamReader(url, STREAM) as reader:
        found = reader.bounds()
        batches = reader.read(found.first, found.end, columns=["routing_key"])
        count = sum(batch.num_rows for batch in batches)
    with connect(url) as connection:
        connection.delete(STREAM)
        connection.create(STREAM)
    return count


def run(broker: Broker, spark: SparkSession, given: argparse.Namespace) -> dict[str, list[Turn]]:
    keys = [f"customer-{number:08d}" for number in range(given.messages)]
    load = Load(broker.url, keys, b"x" * given.size, broker.management_url)
    names = [OURS, DROPPING] if given.partitions else [*SPARK_WAYS, LIMIT, RSTREAM]
    results: dict[str, list[Turn]] = {name: [] for name in names}
    for name, counts in in_turns(results, given.rounds):
        to_stream = name in {OURS_STREAM, RSTREAM}
        url = broker.stream_url if to_stream else broker.url
        if name == LIMIT:
            turn = Turn(given.messages, *bare_sockets(load, given.connections))
        elif name == RSTREAM:
            turn = rstream_turn(load, url)
        else:
            turn = spark_turn(spark, name, url, given)
        arrived = drain_stream(url) if to_stream else drain(broker)
        if arrived != (wanted := 0 if name == DROPPING else turn.messages):
            sys.exit(f"{name}: {arrived} messages arrived, not {wanted}")
        if counts:
            results[name].append(turn)
    return results


# ---- results


def report_of(results: dict[str, list[Turn]]) -> dict:
    ways = {}
    for name, turns in results.items():
        peaks = [turn.peak_megabytes for turn in turns if turn.peak_megabytes is not None]
        ways[name] = {
            "rows_per_second": median(turn.rate for turn in turns),
            "cpu_microseconds": median(turn.cpu for turn in turns),
            "peak_megabytes": max(peaks, default=None),
            "of_limit": ratio(turns, results[LIMIT]),
            "of_exchange": ratio(turns, results[OURS]),
            "of_rstream": ratio(turns, results[RSTREAM]),
        }
    return ways


def conditions_of(broker: Broker, given: argparse.Namespace) -> dict:
    return {
        **conditions(broker, given),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("pyspark", "pyarrow", "pika")},
        "connections": given.connections,
        "partitions": given.partitions,
    }


def small_report(results: dict[str, list[Turn]], given: argparse.Namespace) -> dict:
    """Return times of the job and CPU times of a task, and their ratios to those of the sink that drops the rows."""
    ways = {}
    for name, turns in results.items():
        ratios = [one.seconds / other.seconds for one, other in zip(turns, results[DROPPING], strict=True)]
        ways[name] = {
            "seconds": median(turn.seconds for turn in turns),
            "cpu_milliseconds_of_task": median(turn.cpu_seconds for turn in turns) / given.partitions * 1e3,
            "of_dropping": median(ratios),
            "extremes": (min(ratios), max(ratios)),
        }
    return ways


def small_text(report: dict) -> str:
    lines = [
        first_lines(report),
        "",
        f"{'way':<38} {'seconds':>8} {'Python ms/task':>15} {'/ dropping':>11}",
    ]
    for name, way in report["ways"].items():
        lines.append(
            f"{name:<38} {way['seconds']:>8.1f} {way['cpu_milliseconds_of_task']:>15.1f} {way['of_dropping']:>11.2f}"
        )
    low, high = report["ways"][OURS]["extremes"]
    lines += ["", f"time of this connector / dropping the rows: {low:.2f} to {high:.2f} (bar: {BAR_SMALL})"]
    return "\n".join(lines)


def first_lines(report: dict) -> str:
    versions = ", ".join(f"{name} {report[name]}" for name in ("python", "pyspark", "pyarrow", "pika"))
    partitions = f", {report['partitions']:,} partitions" if report["partitions"] else ""
    return f"{headline(report)}\n{versions}, {report['connections']} connections{partitions}"


def as_text(report: dict) -> str:
    ours, stream = report["ways"][OURS], report["ways"][OURS_STREAM]
    lines = [
        first_lines(report),
        "",
        f"{'way':<38} {'rows/s':>9} {'Python us/row':>14} {'peak MB':>8} {'/ limit':>8}",
    ]
    for name, way in report["ways"].items():
        memory = "" if way["peak_megabytes"] is None else f"{way['peak_megabytes']:.0f}"
        rate, cpu = f"{way['rows_per_second']:,.0f}", f"{way['cpu_microseconds']:.1f}"
        lines.append(f"{name:<38} {rate:>9} {cpu:>14} {memory:>8} {way['of_limit']:>8.2f}")
    lines += [
        "",
        f"Python CPU of this connector:   {ours['cpu_microseconds']:.1f} us a row (bar: {BAR_CPU})",
        f"this connector / bare sockets:  {ours['of_limit']:.2f} (bar: {BAR_LIMIT})",
        f"to a stream / to an exchange:   {stream['of_exchange']:.2f} (bar: {BAR_STREAM})",
        f"to a stream / rstream, no Spark: {stream['of_rstream']:.2f} (bar: {BAR_RSTREAM})",
        f"Python CPU to a stream:         {stream['cpu_microseconds']:.1f} us a row (bar: {BAR_CPU})",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = options_parser(__doc__, "--rows", 200_000, rounds=3)
    parser.add_argument("--connections", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--partitions", type=int, help="compare this many small partitions with a sink that drops them"
    )
    given = parser.parse_args()
    with Broker(release=given.release, plugins=["rabbitmq_sharding", "rabbitmq_stream"]) as broker:
        declare(broker, "classic")
        with connect(broker.stream_url) as connection:
            connection.create(STREAM)
        spark = local_spark(given.connections)
        spark.dataSource.register(Dropping)
        try:
            results = run(broker, spark, given)
        finally:
            spark.stop()
        figures = small_report(results, given) if given.partitions else report_of(results)
        report = {**conditions_of(broker, given), "ways": figures}
    print(json.dumps(report) if given.json else (small_text if given.partitions else as_text)(report))


if __name__ == "__main__":
    main()
