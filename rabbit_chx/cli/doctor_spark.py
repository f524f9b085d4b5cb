"""What ``rabbit-chx doctor --spark`` finds: on this machine, and on each executor of a Spark of its own.

That Spark has the user's settings and environment, since they are what is examined; its log is kept from the
screen. Nothing here is imported without ``--spark``. A token of Spark Connect stands in no text.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from rabbit_chx import __version__
from rabbit_chx.cli.doctor import Check
from rabbit_chx.cli.progress import waiting
from rabbit_chx.errors import InvalidValue, MissingDependency, RabbitChxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_connector.checkup import CheckUp, Executor
    from spark_connector.java import Java
    from spark_connector.options import Options

__all__ = ["Asked"]

_PATIENCE: Final = 5.0
_PASSWORDS: Final = {"password", "passwordenv", "passwordfile"}
_FORMAT: Final = 'format("rabbitmq")'
_DOCS: Final = "docs/spark.md, On a cluster"
_BY_PIP: Final = "pip install 'rabbit-chx[spark]'"

# An executor that comes late should be met, too; what draws and serves pages is of no use.
_SETTINGS: Final = {
    "spark.app.name": "rabbit-chx doctor",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}


@dataclass(frozen=True)
class Asked:
    """What the command line says of Spark."""

    target: str
    """A master, or the URL of Spark Connect; empty for what Spark's own settings say."""
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of ``format("rabbitmq")``; empty where no broker is to be asked."""
    by_options: bool = False
    """Whether they say more of the broker than its URL."""

    @classmethod
    def of(
        cls,
        target: str,
        settings: Iterable[str],
        options: Iterable[str],
        url: str | None,
        password_file: Path | None,
    ) -> Asked:
        """Check the command line before anything is started."""
        named = _pairs("--option", options)
        given = dict(named)
        if url is not None:
            given = {"url": url, **named}
            if password_file is not None and not _PASSWORDS & {name.lower() for name in given}:
                given["passwordFile"] = str(password_file)
        target = target or os.environ.get("SPARK_REMOTE", "")
        asked = cls(target, _pairs("--conf", settings), given, by_options=bool(named))
        if given:
            asked.parsed  # noqa: B018 - which complains
        return asked

    @property
    def parsed(self) -> Options:
        """The options as the writer understands them."""
        from spark_connector.options import Options

        return Options.of(self.options)

    def broker(self) -> Check:
        """What the driver asks of the broker before a batch."""
        from spark_connector.connections import AbsentHere, check_access

        options = self.parsed
        try:
            check_access(options, [] if options.exchange is None else [options.exchange])
        except AbsentHere as absent:
            return Check(
                "broker", "missing", str(absent), "a write does not ask from here then; executors do, below"
            )
        except RabbitChxError as error:
            return Check("broker", "failed", str(error), "is it running, and are the options right?")
        return Check("broker", "ok", options.where)

    @property
    def connect(self) -> bool:
        """Whether it is Spark Connect, where the driver is elsewhere."""
        return self.target.startswith("sc://")

    @property
    def where(self) -> str:
        """The target for people to read; what follows a semicolon may be a token."""
        return self.target.partition(";")[0] or "the master that Spark's settings name"

    def without_secrets(self, text: str) -> str:
        """What Spark says, which may quote the target."""
        for token in re.findall(r";token=([^;]+)", self.target):
            text = text.replace(token, "***")
        return text

    def checks(self) -> Iterator[Check]:
        """Everything that a write from Spark needs, in the order in which it is needed."""
        if find_spec("pyspark") is None:
            yield Check("Spark", "failed", "PySpark is not installed", _BY_PIP)
            return
        if self.connect:
            yield Check("Java", "ok", "not needed here: Spark Connect runs elsewhere")
        else:
            from spark_connector.java import find_java

            try:
                java = find_java()
            except MissingDependency as error:
                reason, _, hint = str(error).partition(". Allowed is ")
                yield Check("Java", "failed", reason, f"allowed is {hint}")
                return
            yield _java(java)
            os.environ["JAVA_HOME"] = str(java.home)
        yield from self._of_spark()

    def _of_spark(self) -> Iterator[Check]:
        from spark_connector.checkup import NoAnswer, ask_executors, why_no_format

        fault = ""
        try:
            with waiting(f"Asking the executors at {self.where}"):
                _see_that_something_listens(self.target)
                with _started(self) as spark:
                    fault = why_no_format(spark)
                    found = ask_executors(spark, self.options)
        except NoAnswer as error:
            yield self.format(fault)
            yield Check("executors", "failed", self.without_secrets(str(error)), _DOCS)
        except RabbitChxError as error:
            yield Check(
                "Spark", "failed", self.without_secrets(str(error)), "is it running, and is --spark right?"
            )
        else:
            yield from _report(found, fault, self)

    def format(self, fault: str) -> Check:
        """Whether a write would find the connector."""
        if not fault:
            return Check(_FORMAT, "ok", "Spark finds it by itself")
        hint = _DOCS if self.connect else f"export PYSPARK_DRIVER_PYTHON={sys.executable}"
        return Check(_FORMAT, "failed", fault, hint)


def _pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InvalidValue(option, name, "NAME=VALUE", "Quote it where the shell would cut it")
        found[name] = value
    return found


def _java(java: Java) -> Check:
    """One that Spark does not find by itself is a fault; it is used here all the same."""
    found = f"Java {java.version}, {java.origin}"
    if not java.passed_over and not java.origin.startswith("brought"):
        return Check("Java", "ok", found)
    reasons = "; ".join(java.passed_over) or "Spark finds none by itself"
    return Check("Java", "failed", f"{reasons}. Taken here: {found}", f"export JAVA_HOME={java.home}")


# -- a Spark of its own -----------------------------------------------------------------------------


def _see_that_something_listens(target: str) -> None:
    """Spark itself would try for minutes, and say little."""
    kind, places, default = target.partition("://")[0], target.partition("://")[2], 15002
    if kind not in {"spark", "sc"}:
        return
    reasons = []
    for place in places.split(","):
        try:
            parts = urlsplit(f"//{place}")
            socket.create_connection((parts.hostname or "", parts.port or default), _PATIENCE).close()
        except (OSError, ValueError) as error:
            shown = place.partition("/")[0].partition(";")[0]
            reasons.append(f"nothing answers at {shown}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise RabbitChxError("; ".join(reasons))


@contextmanager
def _started(asked: Asked) -> Iterator[SparkSession]:
    from spark_connector.checkup import last_words

    with TemporaryFile() as log:
        try:
            spark = _connected(asked) if asked.connect else _launched(asked, log.fileno())
        except Exception as error:  # noqa: BLE001 - Spark's errors have no common root
            log.seek(0)
            text = log.read().decode(errors="replace") if "JAVA_GATEWAY_EXITED" in str(error) else str(error)
            raise RabbitChxError(last_words(text)) from None
        try:
            yield spark
        finally:
            spark.stop()


def _connected(asked: Asked) -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(asked.target).config(map=dict(asked.settings)).getOrCreate()


def _launched(asked: Asked, log: int) -> SparkSession:
    """A driver in a JVM of this process; its settings go over `_SETTINGS`, and Spark's files fill in the rest."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ.pop("SPARK_REMOTE", None)
    master = {"spark.master": asked.target} if asked.target else {}
    conf = SparkConf(loadDefaults=False).setAll([*{**_SETTINGS, **master, **asked.settings}.items()])
    gateway = launch_gateway(conf, popen_kwargs={"stderr": log})  # type: ignore[no-untyped-call]
    return SparkSession(SparkContext(gateway=gateway))


# -- what they have answered ------------------------------------------------------------------------


def _report(found: CheckUp, fault: str, asked: Asked) -> Iterator[Check]:
    yield Check("Spark", "ok", f"{found.spark} at {found.master or asked.where}")
    yield asked.format(fault)
    met = len(found.executors)
    if found.there is None:
        yield Check("executors", "ok", f"{met} answered; Spark Connect does not tell how many there are")
    elif met >= max(found.there, found.wanted):
        yield Check("executors", "ok", f"{met} of {met} answered")
    else:
        number = max(found.there, found.wanted)
        hint = "has the cluster room for them all?" if found.there < number else "their logs may tell why"
        yield Check("executors", "failed", f"{met} of {number} answered, and {found.there} are there", hint)
    for one in found.executors:
        yield _packages(one, _way_to_packages(found.master))
        if one.broker is not None:
            yield _broker(one, asked.parsed.where)


def _way_to_packages(master: str | None) -> str:
    if master and re.match(r"local(\[|$)", master):
        return f"export PYSPARK_PYTHON={sys.executable}"
    return f"{_BY_PIP} on its machine, or ship it: {_DOCS}"


def _packages(one: Executor, hint: str) -> Check:
    from pyspark import __version__ as pyspark_here

    from spark_connector.checkup import PACKAGES

    faults = [f"{PACKAGES[name]}: {fault}" for name, fault in one.faults.items()]
    there = one.packages.get("rabbit_chx", __version__)
    if there != __version__:
        faults.append(f"rabbit-chx: {there}, and {__version__} here")
    release = one.packages.get("pyspark", pyspark_here)
    if release.split(".")[:2] != pyspark_here.split(".")[:2]:
        faults.append(f"pyspark: {release}, and {pyspark_here} here")
    versions = ", ".join(f"{PACKAGES[name]} {version}" for name, version in one.packages.items())
    found = f"{_place(one)}: Python {one.python}, {versions}"
    details = {
        "host": one.host,
        "process": one.process,
        "python": one.python,
        "packages": {PACKAGES[name]: version for name, version in one.packages.items()},
    }
    if faults:
        return Check("executor", "failed", f"{found}; {'; '.join(faults)}", hint, details)
    return Check("executor", "ok", found, details=details)


def _broker(one: Executor, where: str) -> Check:
    name = "executor to broker"
    details = {"host": one.host, "process": one.process, "seconds": round(one.seconds, 3)}
    if one.broker == "open":
        return Check(name, "ok", f"{_place(one)}: {where}, in {one.seconds * 1000:.0f} ms", details=details)
    if one.broker == "answers":
        found = f"{_place(one)}: {where} answers; user and password are not tried without rabbit-chx"
        return Check(name, "missing", found, "see the executor above", details)
    hint = "is there a way from that machine to the broker, and are user and password right?"
    return Check(name, "failed", f"{_place(one)}: {one.broker}", hint, details)


def _place(one: Executor) -> str:
    return f"{one.host}, process {one.process}"
