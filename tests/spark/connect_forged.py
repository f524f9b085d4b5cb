"""Read forged rows over Spark Connect, write them again, and provoke errors; leave all that a user sees.

A separate program, since a process holds no classic session and a Connect session at a time. It reads its task as one line of JSON from stdin.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812 - as everywhere
)

from spark_connector import register, split_valid
from tests.patience import PATIENCE
from tests.programs import stopping

DEADLINE = 4 * PATIENCE
OTHERS = ("stream", "offset", "stream_timestamp", "exchange", "redelivered", "user_id", "expiration")
"""Columns that a write has not, that would have the broker refuse the row (user_id), or drop its message."""


class Scene:
    """A session, and a folder for what it shows."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self._queries = 0

    def keep(self, name: str, frame: DataFrame) -> None:
        """Keep the rows, which a user gets as Python objects as well."""
        table = frame.toArrow()
        assert len(frame.collect()) == table.num_rows
        with pa.OSFile(str(self.folder / name), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    def read(self, options: dict[str, str]) -> DataFrame:
        return self.spark.read.format("rabbitmq").options(**options).load()

    def queried(self, options: dict[str, str]) -> DataFrame:
        """The rows of a query that ran until its source was empty."""
        self._queries += 1
        rows, checkpoint = (str(self.folder / f"{what} {self._queries}") for what in ("rows", "checkpoint"))
        frame = self.spark.readStream.format("rabbitmq").options(**options).load()
        writer = (
            frame.writeStream.format("parquet").option("path", rows).option("checkpointLocation", checkpoint)
        )
        with stopping(writer.trigger(availableNow=True).start()) as query:
            assert query.awaitTermination(DEADLINE)
        return self.spark.read.parquet(rows)

    def write_again(self, frame: DataFrame, options: dict[str, str]) -> dict[str, int]:
        """Write rows as they were read, without the invalid ones, and return how many are valid and invalid."""
        key = F.coalesce("routing_key", F.lit("k"))  # a row without a key is invalid
        rows = frame.drop(*OTHERS).withColumn("routing_key", key)
        valid, invalid = split_valid(rows, exchange="")
        self.write({**options, "invalidRows": "drop"}, rows)
        return {"valid": valid.count(), "invalid": invalid.count()}

    def write(self, options: dict[str, str], rows: DataFrame) -> None:
        rows.write.format("rabbitmq").options(**options).mode("append").save()


def shown_by(call: Callable[[], object]) -> str:
    """All that a user sees of an error."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test reads it
        return f"{error}\n{''.join(traceback.format_exception(error))}"
    return "no error"


def main() -> None:
    task: dict[str, Any] = json.loads(sys.stdin.readline())
    session = SparkSession.builder.remote("local[2]")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        session = session.config(name, "127.0.0.1")
    spark = session.getOrCreate()
    assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
    register(spark)
    scene = Scene(spark, Path(task["folder"]))
    frame = scene.read(task["stream"])
    scene.keep("batch", frame)
    scene.keep("query", scene.queried({**task["stream"], "startingOffsets": "earliest"}))
    scene.keep("queue", scene.queried(task["queue"]))
    again = [scene.write_again(frame, each) for each in task["targets"]]
    rows = spark.createDataFrame([("x", "k")], "value string, routing_key string")
    ways = {"read": scene.read, "query": scene.queried}
    errors = {
        name: shown_by(
            lambda way=way, given=given: (
                ways[way](given).collect()
                if way in ways
                else scene.write(given, frame.drop(*OTHERS) if way == "write again" else rows)
            )
        )
        for name, way, given in task["errors"]
    }
    (scene.folder / "answers").write_text(json.dumps({"again": again, "errors": errors}))
    spark.stop()


if __name__ == "__main__":
    main()
