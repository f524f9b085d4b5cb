"""Compare reading streams through Spark with the same reader without Spark, and with a source in Spark that generates equal rows.

    python benchmarks/spark_streams.py [--rows 1000000] [--size 100] [--rounds 3] [--release 4.3] [--json]

README.md describes the ways, each over one connection or in one task. Rates are medians over the rounds, ratios are medians of the
ratios within a round. A wrong number of rows ends the run with exit code 1.

Spark starts Python processes for each read, before the first row. Rates exclude this start: the time of a read without rows is
subtracted. Spark, its workers and the broker share the cores. The bytes on disk are those of all files of a stream, on its one
replica, divided by the number of messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from statistics import median
from time import perf_counter
from typing import Any

import pyarrow as pa
from pyspark.sql import (
    DataFrame,
    Observation,
    SparkSession,
    functions as F,  # noqa: N812
)
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from streams import filled
from ways.local_spark import local_spark
from ways.streams import Source, ours
from ways.turns import conditions, headline, in_turns, options_parser, ratio

from rabbit_chx.testing import Broker

NO_SPARK, IN_SPARK, GENERATED = "this reader, no Spark", 'format("rabbitmq")', "generated rows, in Spark"
BAR = 0.7
COLUMNS = ["value", "routing_key"]
BATCH = 16_384
"""Rows of a batch, as in a batch of the reader."""


class Generator(DataSource, DataSourceReader):
    """A source that generates equal rows in one task, to measure how long Spark itself takes."""

    @classmethod
    def name(cls) -> str:
        return "generator"

    def schema(self) -> str:
        return "value binary, routing_key string"

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - the signature of Spark
        return self

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        rows, size = int(self.options["rows"]), int(self.options["size"])
        keys = pa.array([f"key-{row:07}" for row in range(BATCH)])
        batch = pa.record_batch([pa.array([b"x" * size] * BATCH, pa.binary()), keys], names=COLUMNS)
        for start in range(0, rows, BATCH):
            yield batch.slice(0, min(BATCH, rows - start))


@dataclass(frozen=True)
class Turn:
    """The times of one way in one round."""

    start: float
    """Seconds of a read without rows; 0 without Spark."""
    rate: float
    """Rows per second, without the start."""


def on_disk(broker: Broker, source: Source) -> float:
    """Return the bytes that a message takes on the broker's disk."""
    files = f'filelib:wildcard(filename:join([Folder, "__{source.stream}_*", "*"]))'
    sizes = f"[filelib:file_size(File) || File <- {files}]"
    found = broker.eval(f"{{ok, Folder}} = application:get_env(osiris, data_dir), lists:sum({sizes}).")
    return int(found) / source.messages


def from_stream(spark: SparkSession, source: Source, **options: str) -> DataFrame:
    given = {"url": source.stream_url, "stream": source.stream, "columns": ",".join(COLUMNS)}
    return spark.read.format("rabbitmq").options(**given, **options).load()


def generated(spark: SparkSession, rows: int, size: int) -> DataFrame:
    return spark.read.format("generator").options(rows=rows, size=size).load()


def consumed(frame: DataFrame) -> int:
    """Let Spark write the rows to its ``noop`` sink, and return the number of rows."""
    seen = Observation()
    frame.observe(seen, F.count(F.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def timed(name: str, work: Callable[[], int], rows: int) -> float:
    """Return the seconds that a way takes, and check that the way has read every row."""
    start = perf_counter()
    seen = work()
    seconds = perf_counter() - start
    if seen != rows:
        raise SystemExit(f"{name} read {seen:,} of {rows:,} rows")
    return seconds


def measure(name: str, way: Callable[[], int], empty: Callable[[], int] | None, rows: int) -> Turn:
    start = timed(name, empty, 0) if empty else 0.0
    seconds = timed(name, way, rows)
    return Turn(start, rows / (seconds - start))


def run(spark: SparkSession, sources: dict[str, Source], size: int, rounds: int) -> list[dict[str, Any]]:
    """Let all ways take turns, and return the medians of each way."""
    report = []
    for kind, source in sources.items():
        ways = ways_of(spark, source, size)
        turns: dict[str, list[Turn]] = {name: [] for name in ways}
        for name, counts in in_turns(ways, rounds):
            turn = measure(name, *ways[name], source.messages)
            if counts:
                turns[name].append(turn)
        report += [row(kind, name, turns) for name in ways]
    return report


def ways_of(
    spark: SparkSession, source: Source, size: int
) -> dict[str, tuple[Callable[[], int], Callable[[], int] | None]]:
    """Return each way and, for ways in Spark, a read without rows."""
    return {
        NO_SPARK: (lambda: ours(source), None),
        IN_SPARK: (
            lambda: consumed(from_stream(spark, source)),
            lambda: consumed(from_stream(spark, source, startingOffsets="latest")),
        ),
        GENERATED: (
            lambda: consumed(generated(spark, source.messages, size)),
            lambda: consumed(generated(spark, 0, size)),
        ),
    }


def row(kind: str, name: str, turns: dict[str, list[Turn]]) -> dict[str, Any]:
    return {
        "stream": kind,
        "way": name,
        "rows_per_second": median(turn.rate for turn in turns[name]),
        "start_seconds": median(turn.start for turn in turns[name]),
        "spark_to_it": ratio(turns[IN_SPARK], turns[name]),
        "bar": BAR if name == NO_SPARK else None,
    }


def as_text(report: dict[str, Any]) -> str:
    lines = [
        headline(report),
        f"PySpark {report['pyspark']}, pyarrow {report['pyarrow']}",
        "",
        f"{'stream':<13} {'way':<26} {'rows/s':>11} {'start':>8} {'in Spark / it':>14}",
    ]
    for one in report["ways"]:
        bar = f" (bar: {one['bar']})" if one["bar"] else ""
        lines.append(
            f"{one['stream']:<13} {one['way']:<26} {one['rows_per_second']:>11,.0f} {one['start_seconds']:>6.2f} s "
            f"{one['spark_to_it']:>14.2f}{bar}"
        )
    disk = ", ".join(f"{kind} {size:.0f}" for kind, size in report["bytes_on_disk"].items())
    return "\n".join([*lines, "", f"bytes of a message on disk: {disk}"])


def main() -> None:
    given = options_parser(__doc__, "--rows", 1_000_000, rounds=3).parse_args()
    with Broker(release=given.release, plugins=["rabbitmq_stream"]) as broker:
        sources = filled(broker, given.messages, given.size)
        spark = local_spark(1)
        spark.dataSource.register(Generator)
        report = {
            **conditions(broker, given),
            "pyspark": metadata.version("pyspark"),
            "pyarrow": metadata.version("pyarrow"),
            "ways": run(spark, sources, given.size, given.rounds),
            "bytes_on_disk": {kind: on_disk(broker, source) for kind, source in sources.items()},
        }
        spark.stop()
    print(json.dumps(report) if given.json else as_text(report))


if __name__ == "__main__":
    main()
