"""What the executors of a Spark have, and whether they reach the broker: one small job that asks each of them.

The question travels by value and needs the standard library alone, so that an executor can answer which has
nothing of what is asked for. It is a plain Python UDF: that needs neither Arrow nor pandas, and Spark Connect has
it too. This file prints nothing, and a secret stands in none of its texts.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import socket
import ssl
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import RabbitChxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "PACKAGES",
    "CheckUp",
    "Executor",
    "NoAnswer",
    "addresses_of",
    "ask_executors",
    "last_words",
    "why_no_format",
]

PACKAGES: Final = {
    "rabbit_chx": "rabbit-chx",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "pika": "pika",
    "pyspark": "pyspark",
}
"""What a write needs on an executor: the name to import, and the name to install."""

_PATIENCE: Final = 120.0
"""Seconds until all executors must have answered; the first has to start a JVM and a Python."""
_PAUSE: Final = 0.5
"""Seconds between two rounds, in which an executor may join."""


class NoAnswer(RabbitChxError):
    """The job failed, so that nothing is known of the executors; the message says why."""


@dataclass(frozen=True)
class Executor:
    """What one executor has answered."""

    host: str
    process: int
    """The parent of its Python workers, by which executors of one host are told apart."""
    python: str
    packages: Mapping[str, str]
    """The versions that were found, by the names of `PACKAGES`."""
    faults: Mapping[str, str]
    """Why the others cannot be imported."""
    broker: str | None
    """How far the broker was reached: ``open`` (the writer's own way), ``answers`` (all that can be tried without
    the packages), or why not; None where none was to be asked."""
    seconds: float = 0.0
    """The time that the connection took."""


@dataclass(frozen=True)
class CheckUp:
    """What all of them have answered."""

    executors: tuple[Executor, ...]
    there: int | None
    """How many there are; None with Spark Connect, which does not tell."""
    wanted: int = 0
    """How many the settings ask for, where they do."""
    spark: str = ""
    """The release of Spark."""
    master: str | None = None
    """Where they run; None with Spark Connect."""


def ask_executors(
    spark: SparkSession, options: Mapping[str, str] | None = None, *, patience: float = _PATIENCE
) -> CheckUp:
    """Meet every executor, and have each connect to the broker of these options, as the writer would.

    Tasks go where there is room, so they are sent in rounds until each executor that Spark knows of has answered.
    """
    classic = _context_of(spark)
    wanted = _wanted(classic) if classic else 0
    deadline = time.monotonic() + patience
    met: dict[_Place, Executor] = {}
    while True:
        tasks = max(_there(classic), 1) if classic else _slots(spark, deadline)
        try:
            met |= _round(spark, tasks, options or {}, set(met), deadline)
        except NoAnswer:
            if not met:
                raise
        there = _there(classic) if classic else None
        if there is None or len(met) >= max(there, wanted) or time.monotonic() > deadline - _PAUSE:
            break
        time.sleep(_PAUSE)
    master = str(classic.master) if classic else None
    found = tuple(sorted(met.values(), key=lambda one: (one.host, one.process)))
    return CheckUp(found, there, wanted, spark.version, master)


def why_no_format(spark: SparkSession) -> str:
    """Why Spark does not find ``format("rabbitmq")`` by itself; empty where it does.

    It is asked with an option that there is not: the connector complains of that before anything is done.
    """
    try:
        spark.range(0).write.format("rabbitmq").option("doctor", "").mode("append").save()
    except Exception as error:  # noqa: BLE001 - Spark's errors have no common root
        return "" if "got 'doctor'" in str(error) else _why(error)
    return ""


# -- the job ----------------------------------------------------------------------------------------


_Place = tuple[str, int]
"""Host and process: which executor it is."""


def _round(
    spark: SparkSession, tasks: int, options: Mapping[str, str], met: set[_Place], deadline: float
) -> dict[_Place, Executor]:
    """Ask so many tasks, of which Spark gives each executor one in turn; those that were met say nothing again."""
    from pyspark.sql import functions as F  # noqa: N812

    given = dict(options)
    addresses = addresses_of(given)

    def question(_: int) -> str | None:
        return _answer(given, addresses, met)

    with _by_value():
        asked = F.udf(question, "string", useArrow=False).asNondeterministic()
        rows = _collect(spark.range(0, tasks, 1, tasks).select(asked("id").alias("answer")), deadline)
    found = [Executor(**json.loads(row["answer"])) for row in rows if row["answer"]]
    return {(one.host, one.process): one for one in found}


def _slots(spark: SparkSession, deadline: float) -> int:
    """How many tasks run at once, seen from the outside: Spark cuts a range into as many parts."""
    from pyspark.sql import functions as F  # noqa: N812

    parts = spark.range(100_000).select(F.spark_partition_id().alias("part")).distinct()
    return len(_collect(parts, deadline))


def _collect(frame: DataFrame, deadline: float) -> list[Any]:
    """The rows of a frame. Without room in the cluster a job waits for ever: it is left to whoever stops the session."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(frame.collect).result(max(deadline - time.monotonic(), 1.0))
    except TimeoutError:
        raise NoAnswer(
            "no executor has run the job in time: has the cluster room for one, and can it reach the driver?"
        ) from None
    except Exception as error:  # noqa: BLE001 - Spark's errors have no common root
        raise NoAnswer(_why(error)) from None
    finally:
        pool.shutdown(wait=False)


@contextmanager
def _by_value() -> Iterator[None]:
    """Pickle the functions of this file whole, since executors may not have it."""
    from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value

    here = sys.modules[__name__]
    register_pickle_by_value(here)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        unregister_pickle_by_value(here)  # type: ignore[no-untyped-call]


_MISMATCH = re.compile(
    r"PYTHON_VERSION_MISMATCH\]? *Python in worker has different version: *(\S+) than .*?(\d\.\d+)"
)
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')


def _why(error: Exception) -> str:
    """One sentence for the failures that have a known cause; Spark's own last words for the others."""
    text = str(error)
    if mismatch := _MISMATCH.search(text):
        return (
            f"the executors run Python {mismatch[1]} and the driver {mismatch[2]}, and Spark refuses that: "
            "PYSPARK_PYTHON names the Python of the executors"
        )
    if program := _NO_PROGRAM.search(text):
        return f"there is no {program[1]}: PYSPARK_PYTHON names the Python of the executors"
    if "DATA_SOURCE_NOT_FOUND" in text:
        return "the Python that Spark starts beside the driver, to look for formats, has no rabbit-chx"
    return last_words(text)


# -- what runs on an executor: it may use the standard library alone ----------------------------------


def _answer(
    options: dict[str, str], addresses: list[tuple[str, int, bool]], met: set[tuple[str, int]]
) -> str | None:
    here = (socket.gethostname(), os.getppid())
    if here in met:
        return None
    packages, faults = {}, {}
    for name in PACKAGES:
        try:
            packages[name] = str(importlib.import_module(name).__version__)
        except Exception as error:  # noqa: BLE001 - a package that is built for another Python may raise anything
            missing = isinstance(error, ModuleNotFoundError) and error.name == name
            faults[name] = "missing" if missing else f"{type(error).__name__}: {error}".splitlines()[0]
    began = time.monotonic()
    broker = _reached(options, addresses) if addresses else None
    return json.dumps(
        {
            "host": here[0],
            "process": here[1],
            "python": platform.python_version(),
            "packages": packages,
            "faults": faults,
            "broker": broker,
            "seconds": time.monotonic() - began,
        }
    )


def _reached(options: dict[str, str], addresses: list[tuple[str, int, bool]]) -> str:
    """Connect as the writer does. Without its packages, see whether a broker answers at all."""
    try:
        from spark_connector.connections import borrow, discard
        from spark_connector.options import Options
    except ImportError:
        return _answers(addresses)
    try:
        asked = Options.of(options)
        discard(borrow(asked, f"{asked.connection_name} doctor"))
    except Exception as error:  # noqa: BLE001 - it is the answer
        return str(error) or type(error).__name__
    return "open"


def _answers(addresses: list[tuple[str, int, bool]]) -> str:
    """Say hello in AMQP 0-9-1: a broker's first word is a method frame, and the first byte of that is 1."""
    reasons = []
    for host, port, secure in addresses:
        try:
            with (
                socket.create_connection((host, port), 10.0) as plain,
                _secured(plain, secure=secure) as wire,
            ):
                wire.sendall(b"AMQP\x00\x00\x09\x01")
                if wire.recv(1) == b"\x01":
                    return "answers"
            reasons.append(f"what answers at {host}:{port} does not speak AMQP 0-9-1")
        except OSError as error:
            reasons.append(f"no broker answers at {host}:{port}: {error.strerror or error}")
    return "; ".join(reasons)


def _secured(plain: socket.socket, *, secure: bool) -> socket.socket:
    """With TLS where it is asked for; any certificate will do, as nothing secret is said."""
    if not secure:
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain)


# -- what the driver knows ----------------------------------------------------------------------------


def addresses_of(options: Mapping[str, str]) -> list[tuple[str, int, bool]]:
    """Host, port and whether with TLS, of each broker that the options name."""
    from spark_connector.options import Options

    return [(url.host, url.port, url.tls) for url in Options.of(options).urls] if options else []


_ERROR = re.compile(
    r'(?:Exception in thread "[^"]*" |Caused by: |: )?([\w.$]+(?:Exception|Error))\b(?:: (.+))?'
)


def last_words(text: str) -> str:
    """What a long error comes down to: the message of its last cause, in Java or in Python."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [found for found in map(_ERROR.match, lines) if found]
    if causes:
        return causes[-1][2] or causes[-1][1]
    return lines[-1] if lines else "no reason was given"


def _context_of(spark: SparkSession) -> Any:
    """The context of a classic session; None with Spark Connect, which has none."""
    from pyspark.sql.utils import is_remote

    return None if is_remote() else spark.sparkContext


def _there(context: Any) -> int:
    """How many executors have reported to the driver. Where they run in it, that is one."""
    if context.master.startswith("local") and not context.master.startswith("local-cluster"):
        return 1
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # noqa: SLF001 - PySpark tells it nowhere else


def _wanted(context: Any) -> int:
    """How many executors the settings ask for; 0 where they leave it open."""
    if found := re.match(r"local-cluster\[\s*(\d+)", context.master):
        return int(found[1])
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        return 0
    return int(context.getConf().get("spark.executor.instances", "0"))
