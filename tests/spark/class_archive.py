"""Writes the classes of Spark, as Java has loaded them, to a file that spares each later Java a third of its start.

`make long` calls it, and BRIEF_JAVA names the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from rabbit_chx.errors import MissingDependency
from spark_connector.java import find_java
from tests.spark import BRIEF
from tests.spark.conftest import SETTINGS


def write(file: Path) -> None:
    """Start a Spark that loads what most tests need; Java writes the file when it ends."""
    unfinished = file.with_suffix(".unfinished")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{BRIEF} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config(map=SETTINGS).getOrCreate()
    rows = spark.range(100).mapInArrow(lambda batches: batches, "id long")
    rows.selectExpr("id % 7 AS key").groupBy("key").count().collect()
    java = spark.sparkContext._gateway.proc
    spark.stop()
    java.stdin.close()
    java.wait()
    unfinished.replace(file)


if __name__ == "__main__":
    try:
        os.environ["JAVA_HOME"] = str(find_java().home)
    except MissingDependency as error:
        print(f"no archive of the classes of Spark: {error}")
    else:
        write(Path(sys.argv[1]).resolve())
