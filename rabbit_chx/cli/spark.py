"""Spark on the command line: the checks of ``doctor --spark`` and the write of ``demo --spark``.

This is the only module of `rabbit_chx` that imports PySpark or `spark_connector`, and it does so inside functions.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from rabbit_chx import __version__
from rabbit_chx.cli.doctor_check import Check
from rabbit_chx.cli.progress import waiting
from rabbit_chx.errors import InvalidValue, MissingDependency, RabbitChxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from rabbit_chx.exchange import ConsistentHashExchange
    from spark_connector.java import Java
    from spark_connector.options import WriteOptions

__all__ = ["ROWS", "SparkChecks", "java_for_demo", "predict", "spark_for_demo", "write"]

_DOCS: Final = "docs/spark.md, On a cluster"
_PIP: Final = "pip install 'rabbit-chx[spark]'"
_QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


# -- a session ----------------------------------------------------------------------------------------


@contextmanager
def _session(settings: Mapping[str, str], url: str = "") -> Iterator[SparkSession]:
    """A session of this command: Spark Connect at ``url``, or a driver of its own, whose log is hidden."""
    interrupt = signal.getsignal(signal.SIGINT)
    with TemporaryFile() as log:
        try:
            spark = _start(settings, url, log)
            signal.signal(signal.SIGINT, interrupt)  # PySpark's own calls Java, maybe within another call
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
    conf = SparkConf(loadDefaults=False).setAll([*settings.items()])
    gateway = launch_gateway(conf, popen_kwargs={"stderr": log.fileno()})  # type: ignore[no-untyped-call]
    return SparkSession(SparkContext(gateway=gateway))


_KNOWN_REASONS: Final = {
    r"PYTHON_VERSION_MISMATCH\]? *Python in worker has different version: *(\S+) than .*?(\d\.\d+)": (
        "executors run Python {0} and the driver {1}; set PYSPARK_PYTHON to the same version"
    ),
    r'Cannot run program "([^"]+)"': "{0} does not exist; set PYSPARK_PYTHON to the Python of the executors",
    "DATA_SOURCE_NOT_FOUND": "rabbit-chx is not installed in the Python that Spark uses to look up formats",
}
_CAUSE: Final = re.compile(
    r'(?:Exception in thread "[^"]*" |Caused by: |: )?([\w.$]+(?:Exception|Error))\b(?:: (.+))?'
)


def reason_in(text: str) -> str:
    """The reason in a long error of Spark: a known one in plain words, else the message of the last cause."""
    for pattern, words in _KNOWN_REASONS.items():
        if found := re.search(pattern, text):
            return words.format(*found.groups())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [found for found in map(_CAUSE.match, lines) if found]
    if causes:
        return causes[-1][2] or causes[-1][1]
    return lines[-1] if lines else "no reason given"


# -- the demo -----------------------------------------------------------------------------------------

ROWS: Final = 200_000
_LOOPBACK: Final = "127.0.0.1"


def java_for_demo() -> Java:
    """The Java to run Spark on.

    Raises:
        MissingDependency: a package or a Java is missing.
    """
    for package in ("pyspark", "pyarrow"):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            raise MissingDependency(
                f"{package} is not installed: {_PIP}, or `make demo` in a checkout"
            ) from None
    from spark_connector.java import find_java

    return find_java()


@contextmanager
def spark_for_demo(java: Java) -> Iterator[SparkSession]:
    """A Spark on two threads of this machine that ignores settings meant for another Spark."""
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        del os.environ[name]
    # Without SPARK_LOCAL_IP Spark resolves the name of this machine, which may fail.
    os.environ |= {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": _LOOPBACK}
    with TemporaryDirectory(prefix="rabbit-chx-") as folder:
        settings = _QUIET | {
            "spark.app.name": "rabbit-chx demo",
            "spark.master": "local[2]",
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": folder,
        }
        with _session(settings) as spark:
            yield spark


def predict(spark: SparkSession, exchange: ConsistentHashExchange) -> list[str]:
    """The queue of each row, computed in Spark's workers."""
    from spark_connector import queue_of

    predicted = _orders(spark).select("id", queue_of("routing_key", exchange).alias("queue"))
    queues: list[str] = predicted.toArrow().sort_by("id")["queue"].to_pylist()
    return queues


def write(spark: SparkSession, url: str, exchange: str) -> None:
    """Write the rows; the body of each message is the number of its row."""
    messages = _orders(spark).selectExpr("string(id) AS value", "routing_key")
    messages.write.format("rabbitmq").option("url", url).option("exchange", exchange).mode("append").save()


def _orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 4).selectExpr("id", "concat('customer-', id % 50000) AS routing_key")


# -- the doctor ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SparkChecks:
    """What the command line says about Spark, and the checks that follow from it."""

    target: str
    """A master, or the URL of Spark Connect; empty for the master of Spark's own settings."""
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The options of ``format("rabbitmq")``; empty if no broker is named."""
    by_options: bool = False
    """Whether ``--option`` describes the broker."""

    @classmethod
    def of(
        cls,
        target: str,
        settings: Iterable[str],
        options: Iterable[str],
        url: str | None,
        password_file: Path | None,
    ) -> SparkChecks:
        """Check the command line before anything starts."""
        named = _pairs("--option", options)
        given = dict(named)
        if url is not None:
            given = {"url": url, **named}
            passwords = {"password", "passwordenv", "passwordfile"} & {name.lower() for name in given}
            if password_file is not None and not passwords:
                given["passwordFile"] = str(password_file)
        target = target or os.environ.get("SPARK_REMOTE", "")
        checks = cls(target, _pairs("--conf", settings), given, by_options=bool(named))
        if given:
            checks.parsed  # noqa: B018 - raises for an invalid option
        return checks

    @property
    def parsed(self) -> WriteOptions:
        """The options as the writer reads them."""
        from spark_connector.options import WriteOptions

        return WriteOptions.of(self.options)

    @property
    def connect_url(self) -> str:
        """The URL of Spark Connect; empty for a classic Spark."""
        return self.target if self.target.startswith("sc://") else ""

    @property
    def where(self) -> str:
        """The target as shown to people; the part after a semicolon may hold a token."""
        return self.target.partition(";")[0] or "the master in Spark's settings"

    def without_token(self, text: str) -> str:
        """A text of Spark, which may quote the target."""
        for token in re.findall(r";token=([^;]+)", self.target):
            text = text.replace(token, "***")
        return text

    def broker(self) -> Check:
        """What the driver checks on the broker before a batch write."""
        from spark_connector.connections import NotOnThisMachine, check_access

        options = self.parsed
        try:
            check_access(options, [] if options.exchange is None else [options.exchange])
        except NotOnThisMachine as absent:
            return Check("broker", "missing", str(absent), "the executors check it instead, see below")
        except RabbitChxError as error:
            return Check("broker", "failed", str(error), "is it running, and are the options right?")
        return Check("broker", "ok", options.where)

    def run(self) -> Iterator[Check]:
        """Everything that a write needs, in the order in which it is needed."""
        if find_spec("pyspark") is None:
            yield Check("Spark", "failed", "PySpark is not installed", _PIP)
        elif self.connect_url:
            yield Check("Java", "ok", "not needed with Spark Connect")
            yield from self._in_spark()
        else:
            from spark_connector.java import find_java

            try:
                java = find_java()
            except MissingDependency as error:
                reason, _, hint = str(error).partition(". Install ")
                yield Check("Java", "failed", reason, f"install {hint}")
                return
            yield java_check(java)
            os.environ["JAVA_HOME"] = str(java.home)
            yield from self._in_spark()

    def _in_spark(self) -> Iterator[Check]:
        # Jobs wait until all executors have registered.
        settings = _QUIET | {
            "spark.app.name": "rabbit-chx doctor",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        }
        master = {"spark.master": self.target} if self.target and not self.connect_url else {}
        found: list[Check] = []
        try:
            with waiting(f"Asking the executors at {self.where}"):
                _check_reachable(self.target)
                with _session({**settings, **master, **self.settings}, self.connect_url) as spark:
                    found += [Check("Spark", "ok", f"{spark.version} at {self.where}"), self._format(spark)]
                    found += self._executors(spark)
        except RabbitChxError as error:
            name, hint = ("executors", _DOCS) if found else ("Spark", "is it running, and is --spark right?")
            found.append(Check(name, "failed", self.without_token(str(error)), hint))
        yield from found

    def _format(self, spark: SparkSession) -> Check:
        """Whether Spark finds the format: if so, the connector rejects an option that does not exist."""
        name, reason = 'format("rabbitmq")', ""
        try:
            spark.range(0).write.format("rabbitmq").option("doctor", "").mode("append").save()
        except Exception as error:  # noqa: BLE001 - Spark's errors have no common base class
            reason = "" if "got 'doctor'" in str(error) else reason_in(str(error))
        if not reason:
            return Check(name, "ok", "found by Spark")
        hint = _DOCS if self.connect_url else f"export PYSPARK_DRIVER_PYTHON={sys.executable}"
        return Check(name, "failed", reason, hint)

    def _executors(self, spark: SparkSession) -> Iterator[Check]:
        from spark_connector.executors import ask_executors

        answers, expected = ask_executors(spark, self.options)
        yield executors_check(len(answers), expected)
        local = re.match(r"local(\[|$)", "" if self.connect_url else str(spark.sparkContext.master))
        fix = f"export PYSPARK_PYTHON={sys.executable}" if local else f"{_PIP} there, or ship it: {_DOCS}"
        for answer in answers:
            yield executor_check(answer, fix, self.parsed.where if self.options else "")


def _pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InvalidValue(option, name, "NAME=VALUE")
        found[name] = value
    return found


def java_check(java: Java) -> Check:
    """A Java that Spark would not find by itself is a fault, although this command uses it."""
    found = f"Java {java.version}, {java.origin}"
    if java.found_by_spark:
        return Check("Java", "ok", found)
    reasons = "; ".join(java.skipped) or "Spark does not find one"
    return Check("Java", "failed", f"{reasons}. Used here: {found}", f"export JAVA_HOME={java.home}")


def _check_reachable(target: str) -> None:
    """Fail within seconds if no port of the target is open; Spark would retry for minutes."""
    kind, _, places = target.partition("://")
    if kind not in {"spark", "sc"}:
        return
    reasons = []
    for place in places.split(","):
        address = urlsplit(f"//{place.partition(';')[0]}")
        try:
            socket.create_connection((address.hostname or "", address.port or 15002), 5.0).close()
        except (OSError, ValueError) as error:
            reasons.append(f"cannot connect to {address.netloc}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise RabbitChxError("; ".join(reasons))


def executors_check(answers: int, expected: int | None) -> Check:
    """How many executors answered; with Spark Connect it is unknown how many there are."""
    if expected is None:
        return Check("executors", "ok", f"{answers} answered; Spark Connect does not say how many there are")
    if answers >= expected:
        return Check("executors", "ok", f"{answers} of {answers} answered")
    hint = "does the cluster have resources for all of them? See also their logs"
    return Check("executors", "failed", f"{answers} of {expected} answered", hint)


def executor_check(answer: Mapping[str, Any], fix: str, broker: str) -> Check:
    """The row of one executor: its packages, and its connection to the broker if one was named."""
    from pyspark import __version__ as pyspark_here

    packages, faults = answer["packages"], [f"{name}: {fault}" for name, fault in answer["faults"].items()]
    if (version := packages.get("rabbit-chx", __version__)) != __version__:
        faults.append(f"rabbit-chx: {version}, but {__version__} on the driver")
    if (version := packages.get("pyspark", pyspark_here)).split(".")[:2] != pyspark_here.split(".")[:2]:
        faults.append(f"pyspark: {version}, but {pyspark_here} on the driver")
    found = [f"{answer['host']}, process {answer['process']}: Python {answer['python']}"]
    found += [f"{name} {version}" for name, version in packages.items()]
    details = {name: answer[name] for name in ("host", "process", "python", "packages", "seconds")}
    if faults:
        faults += [f"broker: {answer['broker']}"] if answer["broker"] else []
        return Check("executor", "failed", f"{', '.join(found)}; {'; '.join(faults)}", fix, details)
    if answer["broker"] in {"", "open"}:
        reached = f"; {broker} in {answer['seconds'] * 1000:.0f} ms" if answer["broker"] else ""
        return Check("executor", "ok", f"{', '.join(found)}{reached}", details=details)
    hint = "can that machine reach the broker, and are user and password right?"
    return Check("executor", "failed", f"{', '.join(found)}; {answer['broker']}", hint, details)
