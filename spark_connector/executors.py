"""Ask each executor of a Spark which packages it has and whether it reaches the broker.

The question is a plain Python UDF, so it needs neither Arrow nor pandas and works with Spark Connect. It is pickled
by value and imports the standard library alone, so an executor can answer even if it lacks rabbit-chx.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx import RabbitChxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PACKAGES", "ask_executors"]

PACKAGES: Final = {
    "rabbit_chx": "rabbit-chx",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "pika": "pika",
    "pyspark": "pyspark",
}
"""What a write needs on an executor: the name to import, and the name to install."""

_TIMEOUT_SECONDS: Final = 120.0
"""How long executors may take to answer; the first has to start a JVM and a Python."""


def ask_executors(spark: SparkSession, options: Mapping[str, str]) -> tuple[list[dict[str, Any]], int | None]:
    """The answer of each executor, and how many there should be (None with Spark Connect, which does not say).

    The job has a task for each slot. Spark deals tasks out in turn, so every executor that has registered gets one.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.utils import is_remote

    slots = len(_rows(spark.range(100_000).select(F.spark_partition_id()).distinct()))
    with _pickled_by_value():
        question = F.udf(
            _question(dict(options), _addresses(options)), "string", useArrow=False
        ).asNondeterministic()
        rows = _rows(spark.range(0, slots, 1, slots).select(question("id")))
    found = [json.loads(text) for (text,) in rows]
    # The process is the executor, which is the parent of its Python workers.
    answers = {(answer["host"], answer["process"]): answer for answer in found}
    return [answers[place] for place in sorted(answers)], None if is_remote() else _expected(
        spark.sparkContext
    )


def _addresses(options: Mapping[str, str]) -> list[tuple[str, int]]:
    from spark_connector.options import WriteOptions

    return [(url.host, url.port) for url in WriteOptions.of(options).urls] if options else []


def _rows(frame: DataFrame) -> list[Any]:
    """The rows of a job, which is abandoned after a while: without resources it would wait forever."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(frame.collect).result(_TIMEOUT_SECONDS)
    except TimeoutError:
        raise RabbitChxError(
            "no executor ran the job in time: does the cluster have free resources, and can it reach the driver?"
        ) from None
    finally:
        pool.shutdown(wait=False)


@contextmanager
def _pickled_by_value() -> Iterator[None]:
    from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value

    here = sys.modules[__name__]
    register_pickle_by_value(here)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        unregister_pickle_by_value(here)  # type: ignore[no-untyped-call]


def _expected(context: Any) -> int:
    """How many executors have registered or, if that is more, how many the settings ask for."""
    if re.match(r"local(\[|$)", context.master):
        return 1
    registered = int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # noqa: SLF001 - PySpark has no API for it
    cluster = re.match(r"local-cluster\[\s*(\d+)", context.master)
    settings = context.getConf()
    if settings.get("spark.dynamicAllocation.enabled", "false") == "true":
        return registered
    wanted = cluster[1] if cluster else settings.get("spark.executor.instances", "0")
    return max(registered, int(wanted))


# -- on the executors: the standard library alone -------------------------------------------------------


def _question(options: dict[str, str], addresses: list[tuple[str, int]]) -> Callable[[int], str]:
    def answer(_: int) -> str:
        packages, faults = {}, {}
        for name, package in PACKAGES.items():
            try:
                packages[package] = str(importlib.import_module(name).__version__)
            except Exception as error:  # noqa: BLE001 - a package built for another Python may raise anything
                missing = isinstance(error, ModuleNotFoundError) and error.name == name
                faults[package] = "missing" if missing else f"{type(error).__name__}: {error}".splitlines()[0]
        found = {"host": socket.gethostname(), "process": os.getppid(), "python": platform.python_version()}
        began = time.monotonic()
        broker = _reachable(addresses) if faults else _connected(options) if options else ""
        seconds = round(time.monotonic() - began, 3)
        return json.dumps(
            found | {"packages": packages, "faults": faults, "broker": broker, "seconds": seconds}
        )

    return answer


def _reachable(addresses: list[tuple[str, int]]) -> str:
    """Whether a broker's port is open, which is all that can be tried without the packages."""
    reasons = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), 10.0).close()
        except OSError as error:
            reasons.append(f"cannot connect to {host}:{port}: {error.strerror or error}")
        else:
            return "reachable"
    return "; ".join(reasons)


def _connected(options: dict[str, str]) -> str:
    """Connect as the writer does: ``open``, or the reason why not."""
    from spark_connector.connections import borrow, discard
    from spark_connector.options import WriteOptions

    try:
        checked = WriteOptions.of(options)
        discard(borrow(checked, f"{checked.connection_name} doctor"))
    except Exception as error:  # noqa: BLE001 - the reason is the answer
        return str(error) or type(error).__name__
    return "open"
