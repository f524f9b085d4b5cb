"""Spark on the command line: a session, and the checks of ``doctor --spark``.

PySpark and `spark_connector` are imported inside functions only.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from rabbit_chx import __version__
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.sockets import first_open
from rabbit_chx.cli.ask.options import pairs
from rabbit_chx.cli.show.output import Check, waiting
from rabbit_chx.errors import MissingDependency, RabbitChxError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_connector.java import Java

_FILES: Final = {
    "passwordFile": "password_file",
    "tlsCaFile": "tls_ca_cert_file",
    "tlsCertFile": "tls_cert_file",
    "tlsKeyFile": "tls_key_file",
}
"""The options of the connector that are also parameters of the command."""
_DOCS: Final = "docs/spark-cluster.md"
_PIP: Final = "pip install 'rabbit-chx[spark]'"
_PACKAGES: Final = ("rabbit_chx", "numpy", "pyarrow", "pika", "mmh3", "pyspark")
"""What reads and writes need on an executor."""
_TIMEOUT_SECONDS: Final = 120.0
"""How long executors may take to answer; the first has to start a JVM and a Python."""
QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_WAITING: Final = QUIET | {
    "spark.app.name": "rabbit-chx doctor",
    # Jobs wait until all executors have registered.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}
_REASONS: Final = (
    r"\[(?:PYTHON_VERSION_MISMATCH|DATA_SOURCE_NOT_FOUND)\].*|Cannot run program.*",
    r'^(?:Exception in thread "[^"]*" |Caused by: |: )?([\w.$]+(?:Exception|Error)\b.*)',
    r".*\S",
)
"""What to look for in an error of Spark: what docs/spark-cluster.md explains, else the last cause, else the last line."""


# -- a session ----------------------------------------------------------------------------------------


@contextmanager
def session(settings: Mapping[str, str], url: str = "") -> Iterator[SparkSession]:
    """A session of this command: Spark Connect at ``url``, or a new driver, whose log is hidden."""
    with TemporaryFile() as log:
        try:
            spark = _start(settings, url, log)
            try:
                yield spark
            finally:
                spark.stop()
        except RabbitChxError:
            raise
        except Exception as error:  # noqa: BLE001 - Spark's errors have no common base class
            log.seek(0)
            text = log.read().decode(errors="replace") if "JAVA_GATEWAY_EXITED" in str(error) else str(error)
            raise RabbitChxError(f"Spark failed: {reason_in(text)}") from None


def _start(settings: Mapping[str, str], url: str, log: IO[bytes]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    if url:
        return SparkSession.builder.remote(url).config(map=dict(settings)).getOrCreate()
    os.environ.pop("SPARK_REMOTE", None)
    interrupt = signal.getsignal(signal.SIGINT)
    conf = SparkConf(loadDefaults=False).setAll([*settings.items()])
    gateway = launch_gateway(conf, popen_kwargs={"stderr": log.fileno()})  # type: ignore[no-untyped-call]
    spark = SparkSession(SparkContext(gateway=gateway))
    signal.signal(signal.SIGINT, interrupt)  # PySpark's own calls Java, maybe within another call
    return spark


def reason_in(text: str) -> str:
    """The reason in a long error of Spark."""
    found = (re.findall(pattern, text, re.MULTILINE) for pattern in _REASONS)
    return next((str(one[-1]) for one in found if one), "no reason given")


def add_pyspark() -> None:
    """If PySpark is not installed, add the one of SPARK_HOME, or of the spark-submit on the PATH, to this process."""
    if find_spec("pyspark") is not None:
        return
    submit = shutil.which("spark-submit")
    home = os.environ.get("SPARK_HOME") or (submit and Path(submit).resolve().parents[1])
    if home and (found := [str(path) for path in Path(home, "python", "lib").glob("*.zip")]):
        os.environ["SPARK_HOME"] = str(home)
        sys.path += found  # what spark-submit adds to the PYTHONPATH of a program


def checked_java() -> Java:
    """The Java to run Spark on.

    Raises:
        MissingDependency: a package or a Java is missing.
    """
    add_pyspark()
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            where = ", or set SPARK_HOME to the folder of a Spark" if package == "pyspark" else ""
            raise MissingDependency(
                f"{package} is not installed: {_PIP}{where}, or `make demo` in a checkout"
            )
    from spark_connector.java import find_java

    return find_java()


# -- the doctor ---------------------------------------------------------------------------------------


def connector_options(
    url: str | None, parameters: Mapping[str, Any], options: Iterable[str]
) -> dict[str, str]:
    """The options of ``format("rabbitmq")`` as the command line describes them, checked; empty without a broker.

    ``parameters`` are those of the connection, by their names in click; an option replaces the same one of them.
    """
    from spark_connector.doctor import parsed

    given = dict(pairs("--option", options, "NAME=VALUE"))
    named = {name.lower() for name in given}
    if {"password", "passwordenv"} & named:
        named.add("passwordfile")
    if url is not None:
        secure = BrokerUrl.parse(url).tls
        same = {name: parameters.get(key) for name, key in _FILES.items() if secure or key == "password_file"}
        same |= {"url": url, "tlsVerify": "false" if secure and parameters.get("insecure") else None}
        given |= {name: str(value) for name, value in same.items() if value and name.lower() not in named}
    if given:
        parsed(given)
    return given


def broker_checks(options: Mapping[str, str]) -> Iterator[Check]:
    """What the driver checks on the broker before a batch write or a read."""
    from spark_connector.connections import NotOnThisMachine
    from spark_connector.doctor import is_read, reached

    try:
        yield Check("broker", "ok", reached(options, in_task=False))
    except NotOnThisMachine as absent:
        if is_read(options):
            yield Check("broker", "failed", str(absent), "a read also needs it on the driver")
        else:
            yield Check("broker", "missing", str(absent), "the executors check it instead, see below")
    except RabbitChxError as error:
        yield Check("broker", "failed", str(error), "is it running, and are the options right?")


def spark_checks(target: str, settings: Mapping[str, str], options: Mapping[str, str]) -> Iterator[Check]:
    """Everything that a write needs, in the order in which it is needed.

    ``target`` is a master or the URL of Spark Connect; empty for the master of Spark's own settings.
    """
    target = target or os.environ.get("SPARK_REMOTE", "")
    if target.startswith("sc://"):
        yield Check("Java", "ok", "not needed with Spark Connect")
    else:
        try:
            java = checked_java()
        except MissingDependency as error:
            reason, _, hint = str(error).partition(": ")
            yield Check("Java", "failed", reason, hint)
            return
        yield java_check(java)
        os.environ["JAVA_HOME"] = str(java.home)
    with waiting("Asking the executors"):
        found = [*_in_spark(target, settings, options)]
    yield from found


def _in_spark(target: str, settings: Mapping[str, str], options: Mapping[str, str]) -> Iterator[Check]:
    where = target.partition(";")[0]  # without the token of Spark Connect
    master = {"spark.master": target} if target and not target.startswith("sc://") else {}
    name, hint = "Spark", "is it running, and is --spark right?"
    try:
        _check_reachable(where)
        with session(_WAITING | master | {**settings}, "" if master else target) as spark:
            yield Check("Spark", "ok", f"{spark.version} at {where or 'the master in its settings'}")
            name, hint = "executors", _DOCS
            yield _format(spark)
            answers, expected = ask_executors(spark, options)
            yield executors_check(len(answers), expected)
            local = expected is not None and re.match(r"local(\[|$)", str(spark.sparkContext.master))
            fix = f"export PYSPARK_PYTHON={sys.executable}" if local else f"{_PIP} there, or ship it: {_DOCS}"
            yield from (executor_check(answer, fix) for answer in answers)
    except RabbitChxError as error:
        yield Check(name, "failed", without_token(str(error), target), hint)


def without_token(text: str, target: str) -> str:
    """An error of Spark, which may quote the target."""
    tokens = re.findall(r";token=([^;]+)", target)
    return re.sub("|".join(map(re.escape, tokens)), "***", text) if tokens else text


def _format(spark: SparkSession) -> Check:
    """Whether Spark finds the format: if so, the connector rejects an option that does not exist."""
    try:
        spark.range(0).write.format("rabbitmq").option("doctor", "").mode("append").save()
    except Exception as error:  # noqa: BLE001 - Spark's errors have no common base class
        if "got 'doctor'" not in str(error):
            fix = f"export PYSPARK_DRIVER_PYTHON={sys.executable}, or see {_DOCS}"
            return Check("data source rabbitmq", "failed", reason_in(str(error)), fix)
    return Check("data source rabbitmq", "ok", "found by Spark")


def java_check(java: Java) -> Check:
    """A Java that Spark would not find by itself is a fault, although this command uses it."""
    found = f"Java {java.version}, {java.origin}"
    if not java.skipped:
        return Check("Java", "ok", found)
    return Check("Java", "failed", f"{java.skipped}. Used here: {found}", f"export JAVA_HOME={java.home}")


def _check_reachable(target: str) -> None:
    """Fail within seconds if nothing listens at a target of one address; Spark would retry for minutes."""
    kind, _, place = target.partition("://")
    if kind not in {"spark", "sc"} or "," in place:
        return
    try:
        address = urlsplit(target)
        first_open(address.hostname or "", address.port or 15002, 5.0).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RabbitChxError(f"cannot connect to {place.strip('/')}: {reason}") from None


def executors_check(answers: int, expected: int | None) -> Check:
    """How many executors answered; with Spark Connect it is unknown how many there are."""
    if expected is None:
        return Check("executors", "ok", f"{answers} answered; Spark Connect does not say how many there are")
    hint = "" if answers >= expected else "does the cluster have resources for all? See also their logs"
    found = f"{answers} of {max(answers, expected)} answered"
    return Check("executors", "failed" if hint else "ok", found, hint)


def executor_check(answer: Mapping[str, Any], fix: str) -> Check:
    """The row of one executor: its packages, and its connection to the broker if one was named."""
    from pyspark import __version__ as pyspark_here

    packages, faults = answer["packages"], [f"{name}: {fault}" for name, fault in answer["faults"].items()]
    for name, here, parts in (("rabbit-chx", __version__, None), ("pyspark", pyspark_here, 2)):
        version = packages.get(name, here)
        if version.split(".")[:parts] != here.split(".")[:parts]:
            faults.append(f"{name}: {version}, but {here} on the driver")
    found = f"{answer['host']}, process {answer['process']}: Python {answer['python']}"
    found = ", ".join([found, *(f"{name} {version}" for name, version in packages.items())])
    if answer["broker"]:
        found += f"; {answer['broker']} in {answer['seconds'] * 1000:.0f} ms"
    elif answer["refused"]:
        fix = fix if faults else "can that machine reach the broker, and are user and password right?"
        faults.append(f"broker: {answer['refused']}")
    details = {name: answer[name] for name in ("host", "process", "python", "packages", "seconds")}
    state, hint = ("failed", fix) if faults else ("ok", "")
    return Check("executor", state, "; ".join([found, *faults]), hint, details)


# -- the executors --------------------------------------------------------------------------------


def ask_executors(spark: SparkSession, options: Mapping[str, str]) -> tuple[list[dict[str, Any]], int | None]:
    """The answer of each executor, and how many there should be (None with Spark Connect, which does not report it).

    The job has a task for each slot. Spark deals tasks out in turn, so every executor that has registered gets one.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.utils import is_remote

    from spark_connector.doctor import parsed

    addresses = [(url.host, url.port) for url in parsed(options).urls] if options else []
    question = F.udf(_question(dict(options), addresses), "string", useArrow=False).asNondeterministic()
    slots = len(_rows(spark.range(100_000).select(F.spark_partition_id()).distinct()))
    rows = _rows(spark.range(0, slots, 1, slots).select(question("id")))
    # The process is the executor, which is the parent of its Python workers.
    answers = {(one["host"], one["process"]): one for one in (json.loads(text) for (text,) in rows)}
    found = [answers[place] for place in sorted(answers)]
    return found, None if is_remote() else _expected(spark.sparkContext)


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


def _expected(context: Any) -> int:
    """How many executors have registered or, if that is more, how many the settings ask for."""
    if context._jsc.isLocal():  # PySpark has no API for it, nor for the next
        return 1
    registered = int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1
    settings = context.getConf()
    if settings.get("spark.dynamicAllocation.enabled", "false") == "true":
        return registered
    return max(registered, int(settings.get("spark.executor.instances", "0")))


def _question(options: dict[str, str], addresses: list[tuple[str, int]]) -> Callable[[int], str]:
    def answer(_: int) -> str:
        found = {"host": socket.gethostname(), "process": os.getppid(), "python": platform.python_version()}
        packages, faults, broker, refused = {}, {}, "", ""
        for name in _PACKAGES:
            package = name.replace("_", "-")
            try:
                module = importlib.import_module(name)
                packages[package] = str(getattr(module, "__version__", "") or metadata.version(name))
            except Exception as error:  # noqa: BLE001 - a package built for another Python may raise anything
                missing = isinstance(error, ModuleNotFoundError) and error.name == name
                faults[package] = "missing" if missing else f"{type(error).__name__}: {error}".splitlines()[0]
        began = time.monotonic()
        try:
            if options and not faults:  # connect as a task does
                from spark_connector.doctor import reached

                broker = reached(options, in_task=True)
            elif addresses:  # without the packages, only the port can be tried
                socket.create_connection(addresses[0], 10.0).close()
                broker = "{}:{} is reachable".format(*addresses[0])
        except Exception as error:  # noqa: BLE001 - the reason is the answer
            refused = str(error) or type(error).__name__
        found |= {"packages": packages, "faults": faults, "broker": broker, "refused": refused}
        return json.dumps(found | {"seconds": round(time.monotonic() - began, 3)})

    return answer
