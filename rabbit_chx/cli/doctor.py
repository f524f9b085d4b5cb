"""``rabbit-chx doctor``: check the installation and the broker, and suggest a fix for each fault."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Final

import click

from rabbit_chx import __version__
from rabbit_chx.cli.doctor_check import Check
from rabbit_chx.cli.options import broker_options, management_options, output_option
from rabbit_chx.cli.output import print_json
from rabbit_chx.cli.progress import waiting
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

    from rabbit_chx.cli.options import ManagementAccess
    from rabbit_chx.cli.spark import SparkChecks

_SPARK: Final = "Spark"

# What each optional package is for.
_EXTRAS: Final = {
    "pyarrow": ("arrow", "Arrow columns in route_many"),
    "aio-pika": ("aio", "asyncio applications"),
    "matplotlib": ("plot", "the report's pictures on axes"),
    "mmh3": ("streams", "super streams"),
    "pydantic": ("topology", "topology files"),
    "PyYAML": ("topology", "topology files in YAML"),
    "pyspark": ("spark", "the Spark connector"),
    "testcontainers": ("testing", "throw-away brokers in Docker"),
}


@verb(
    examples=[
        "rabbit-chx doctor",
        "AMQP_URL=amqp://user:password@host rabbit-chx doctor",
        "rabbit-chx doctor --spark --url amqp://user@host --password-file pw",
        "rabbit-chx doctor --spark spark://host:7077 --conf spark.executor.memory=2g",
        "rabbit-chx doctor --spark sc://host:15002 -U amqp://user@host \\\n    --option passwordEnv=SECRET",
    ],
    exit_codes={Exit.FINE: "no check failed", Exit.FAILED: "a check failed"},
)
@broker_options
@management_options
@option(
    "--spark",
    group=_SPARK,
    is_flag=False,
    flag_value="",
    metavar="[MASTER]",
    help="Run a small Spark job that checks each executor. MASTER is the --master of spark-submit or the sc:// URL of "
    "Spark Connect; default: SPARK_REMOTE, spark-defaults.conf or local[*]. Pass other arguments of spark-submit in "
    "PYSPARK_SUBMIT_ARGS.",
)
@option("--conf", group=_SPARK, multiple=True, metavar="NAME=VALUE", help="A Spark setting. Repeatable.")
@option(
    "--option",
    "options",
    group=_SPARK,
    multiple=True,
    metavar="NAME=VALUE",
    help='A connection option of format("rabbitmq"), such as passwordEnv or tlsCaFile. Repeatable.',
)
@output_option
def doctor(
    *,
    url: str | None,
    password_file: Path | None,
    tls: ssl.SSLContext | None,
    management_access: ManagementAccess,
    spark: str | None,
    conf: tuple[str, ...],
    options: tuple[str, ...],
    output: str,
) -> int:
    """Check the installation and, if one is given, the broker, and suggest fixes."""
    spark_checks = None
    if spark is not None:
        from rabbit_chx.cli.spark import SparkChecks

        spark_checks = SparkChecks.of(spark, conf, options, url, password_file)
    elif conf or options:
        raise click.UsageError("--conf and --option require --spark")
    checks: list[Check] = []
    broker = None if url is None else _Broker(url, password_file, tls, management_access)
    for check in _checks(broker, spark_checks):
        checks.append(check)
        if output == "json":
            print_json("check", **check.json())
    if output == "table":
        _print(checks)
    return Exit.FAILED if any(check.state == "failed" for check in checks) else Exit.FINE


def _checks(broker: _Broker | None, spark: SparkChecks | None) -> Iterator[Check]:
    yield Check("Python", "ok", platform.python_version())
    yield Check("rabbit-chx", "ok", __version__)
    for package in ("numpy", "pika"):
        yield Check(package, "ok", metadata.version(package))
    for package, (extra, purpose) in _EXTRAS.items():
        try:
            yield Check(package, "ok", metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Check(package, "missing", f"for {purpose}", f"pip install 'rabbit-chx[{extra}]'")
    yield _throw_away_broker()
    if spark is not None and spark.by_options:
        yield spark.broker()
    elif broker is None:
        yield Check("broker", "missing", "no URL", "pass --url or set AMQP_URL")
    else:
        with waiting("Asking the broker"):
            found = [*_broker_checks(broker), _management(broker)]
        yield from found
    if spark is not None:
        yield from spark.run()


def _throw_away_broker() -> Check:
    from rabbit_chx.testing import available

    try:
        return Check("throw-away broker", "ok", str(available()))
    except RabbitChxError as error:
        reason, _, hint = str(error).partition(" To get one: ")
        return Check("throw-away broker", "missing", reason, hint)


@dataclass(frozen=True)
class _Broker:
    """The broker that the command line names."""

    url: str
    password_file: Path | None
    tls: ssl.SSLContext | None
    management_access: ManagementAccess


def _broker_checks(broker: _Broker) -> Iterator[Check]:
    from rabbit_chx.broker.amqp import connect, server_version
    from rabbit_chx.broker.scratch import check_known
    from rabbit_chx.releases import Release
    from rabbit_chx.urls import BrokerUrl

    try:
        connection = connect(broker.url, credentials=broker.password_file, tls=broker.tls)
    except RabbitChxError as error:
        refused = isinstance(error, BrokerUnavailable) and error.permanent
        hint = "" if refused else "is the broker running, and is the URL right?"
        yield Check("broker", "failed", str(error), hint)
        return
    with connection:
        yield Check("broker", "ok", str(BrokerUrl.parse(broker.url)))
        version = server_version(connection)
        try:
            Release.parse(version)
        except RabbitChxError as error:
            yield Check("release", "failed", version, str(error))
            return
        yield Check("release", "ok", f"RabbitMQ {version}")
        try:
            check_known(connection)
        except RabbitChxError as error:
            yield Check("hash exchange", "failed", str(error))
        else:
            yield Check("hash exchange", "ok", "x-consistent-hash is enabled")


def _management(broker: _Broker) -> Check:
    """Only the topology commands need the API, so it may be missing unless a URL was given."""
    try:
        management = broker.management_access.open(broker.url, broker.password_file, broker.tls)
        user, tags = management.whoami().name, ", ".join(sorted(management.whoami().tags))
        release = management.overview().release
    except RabbitChxError as error:
        hint = "pass --management-url; plan, check and export need it"
        state = "failed" if broker.management_access.url else "missing"
        return Check("management API", state, str(error), hint)
    return Check("management API", "ok", f"RabbitMQ {release}, user {user!r} with the tags {tags or 'none'}")


def _print(checks: list[Check]) -> None:
    """Print the rows, each hint below what was found: a column for hints would be too narrow for a command."""
    from rich.text import Text

    from rabbit_chx.cli.tables import show, table

    colours = {"ok": "green", "missing": "yellow", "failed": "red"}
    shown = table("what", "state", "found", folds=("found",))
    for check in checks:
        hint = f"\n-> {check.hint}" if check.hint else ""
        found = Text.assemble(check.found, (hint, "cyan"))  # not markup: it contains brackets
        shown.add_row(Text(check.name), Text(check.state, colours[check.state]), found)
    show(shown)
