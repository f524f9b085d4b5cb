"""What ``rabbit-chx demo`` does in Spark: tell the queue of each of 200,000 rows on the cluster, then write them.

PySpark is imported when it is used, since it is optional. The Spark is the demo's own: no setting of the environment
reaches it, it asks nobody for this machine's name, and its log is a file of which the end is shown when it fails.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from importlib import metadata
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, TYPE_CHECKING, Final

from rabbit_chx.errors import MissingDependency, RabbitChxError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from rabbit_chx.exchange import ConsistentHashExchange
    from spark_connector.java import Java

__all__ = ["ROWS", "foretell", "java_for_spark", "publish", "started"]

ROWS: Final = 200_000
_CUSTOMERS: Final = 50_000
_PARTITIONS: Final = 4
_LAST_LINES: Final = 15
_HERE: Final = "127.0.0.1"


def java_for_spark() -> Java:
    """The Java to run Spark on; :class:`MissingDependency` says what is missing and how to get it."""
    for package in ("pyspark", "pyarrow"):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            raise MissingDependency(
                f"{package} is not installed: pip install 'rabbit-chx[spark]', or `make demo` in a checkout"
            ) from None
    from spark_connector.java import find_java

    return find_java()


@contextmanager
def started(java: Java) -> Iterator[SparkSession]:
    """A Spark for the length of the block, on two threads of this machine; standard error is in its log meanwhile."""
    from pyspark.sql import SparkSession

    _set_environment(java)
    interrupt = signal.getsignal(signal.SIGINT)
    with TemporaryDirectory(prefix="rabbit-chx-") as folder, TemporaryFile() as log:
        settings: dict[str, bool | float | int | str | None] = {
            "spark.driver.host": _HERE,
            "spark.driver.bindAddress": _HERE,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": folder,
        }
        builder = SparkSession.builder.master("local[2]").appName("rabbit-chx demo").config(map=settings)
        try:
            with _standard_error_to(log):
                spark = builder.getOrCreate()
                signal.signal(signal.SIGINT, interrupt)  # PySpark's own trips over its own call
                try:
                    yield spark
                finally:
                    spark.stop()
        except RabbitChxError:
            raise
        except Exception as error:
            raise RabbitChxError(_complaint(error, log)) from error


def foretell(spark: SparkSession, exchange: ConsistentHashExchange) -> list[str]:
    """The queue of each row, told by the mirror in Spark's workers."""
    from spark_connector import queue_of

    told = _orders(spark).select("id", queue_of("routing_key", exchange).alias("queue"))
    queues: list[str] = told.toArrow().sort_by("id")["queue"].to_pylist()
    return queues


def publish(spark: SparkSession, url: str, exchange: str) -> None:
    """Write the rows; each message holds the number of its row."""
    messages = _orders(spark).selectExpr("string(id) AS value", "routing_key")
    messages.write.format("rabbitmq").option("url", url).option("exchange", exchange).mode("append").save()


def _orders(spark: SparkSession) -> DataFrame:
    key = f"concat('customer-', id % {_CUSTOMERS}) AS routing_key"
    return spark.range(0, ROWS, 1, _PARTITIONS).selectExpr("id", key)


def _set_environment(java: Java) -> None:
    """Have Spark take this Java and this Python, and nothing that was meant for another Spark."""
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        del os.environ[name]
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = _HERE  # without it Spark resolves the name of this machine, if it can


@contextmanager
def _standard_error_to(file: IO[bytes]) -> Iterator[None]:
    """Lead it into a file: of this process, and of the JVM and the workers that are started meanwhile."""
    own = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def _complaint(error: Exception, log: IO[bytes]) -> str:
    """An error without its stack traces, and the last lines that Spark has logged."""
    log.seek(0)
    logged = log.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
    what = [line for line in str(error).splitlines() if line and not line[0].isspace()]
    return "\n".join(["Spark failed.", *what, "", "Its log ends with:", *logged])
