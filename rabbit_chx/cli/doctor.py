"""``rabbit-chx doctor``: check the installation and the broker, and suggest a fix for each fault."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib import metadata
from itertools import chain
from typing import Final

import click

from rabbit_chx import __version__
from rabbit_chx.base.text import counted
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import connect, server_version
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.scratch import check_known
from rabbit_chx.broker.sockets import first_open
from rabbit_chx.cli.ask.broker_access import reached, tracer_hint
from rabbit_chx.cli.ask.options import Login, broker_options, management_options, output_option, pairs
from rabbit_chx.cli.show.output import Check, print_json, waiting
from rabbit_chx.cli.show.tables import Table, show
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.mirror.releases import Release
from rabbit_chx.streams import connect as open_streams
from rabbit_chx.streams.protocol.answers import Node
from rabbit_chx.testing import available
from rabbit_chx.topology.checks.cluster import cluster_problems, why_unchangeable
from rabbit_chx.topology.checks.ordered_queues import release_hazards
from rabbit_chx.topology.model import NodeState, Observed

_SPARK: Final = "Spark"
_ADVERTISED_SECONDS: Final = 3.0
_AFTER_SILENCE: Final = 2.0
"""Seconds for a protocol of a broker that was silent on another one."""

# What each optional package is for.
_EXTRAS: Final = {
    "pyarrow": ("arrow", "Arrow columns in route_many, batches of streams, and Spark"),
    "aio-pika": ("aio", "asyncio applications"),
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
@option("--conf", group=_SPARK, multiple=True, metavar="NAME=VALUE", help="A Spark setting.")
@option(
    "--option",
    "options",
    group=_SPARK,
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the data source rabbitmq, such as passwordEnv, tlsCaFile, or stream to check reads and writes of it.",
)
@output_option
def doctor(
    *,
    url: str | None,
    login: Login,
    management_of: partial[Management],
    connect_timeout: float,
    spark: str | None,
    conf: tuple[str, ...],
    options: tuple[str, ...],
    output: str,
) -> int:
    """Check the installation and, if one is given, the broker, and suggest fixes."""
    about_broker: Iterable[Check] = [Check("broker", "missing", "no URL", "pass --url or set AMQP_URL")]
    if url is not None:
        about_broker = _broker(url, login, management_of, connect_timeout)
    about_spark: Iterable[Check] = ()
    if spark is not None:
        from rabbit_chx.cli.spark import add_pyspark, broker_checks, connector_options, spark_checks

        add_pyspark()
        given = connector_options(url, click.get_current_context().params, options)
        about_spark = spark_checks(spark, dict(pairs("--conf", conf, "NAME=VALUE")), given)
        if options:
            about_broker = broker_checks(given)
    elif conf or options:
        raise click.UsageError("--conf and --option require --spark")
    checks: list[Check] = []
    for check in chain(about_broker, _installed(), about_spark):
        checks.append(check)
        if output == "json":
            name, state, found, hint, details = check
            print_json("check", name=name, state=state, found=found, hint=hint, **details)
    if output == "table":
        _print(checks)
    return Exit.FAILED if any(check.state == "failed" for check in checks) else Exit.FINE


def _installed() -> Iterator[Check]:
    yield Check("Python", "ok", platform.python_version())
    yield Check("rabbit-chx", "ok", __version__)
    for package in ("numpy", "pika", "mmh3"):
        yield _package(package, "failed", "not installed", f"pip install {package}")
    for package, (extra, purpose) in _EXTRAS.items():
        yield _package(package, "missing", f"for {purpose}", f"pip install 'rabbit-chx[{extra}]'")
    try:
        yield Check("throw-away broker", "ok", str(available()))
    except RabbitChxError as error:
        reason, _, hint = str(error).partition(" To get one: ")
        yield Check("throw-away broker", "missing", reason, hint)


def _package(name: str, absent: str, found: str, hint: str) -> Check:
    """The version of a package. Without the package, a check in the state ``absent``."""
    try:
        return Check(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(name, absent, found, hint)


def _broker(url: str, login: Login, management_of: partial[Management], timeout: float) -> Iterator[Check]:
    with waiting("Asking the broker"):
        began = time.monotonic()
        management = _management(url, login, management_of, timeout)
        answers = all(check.name != "cluster" or not check.hint for check in management)
        if management[0].state != "ok" and time.monotonic() - began >= timeout:
            timeout = min(timeout, _AFTER_SILENCE)
        broker = _broker_itself(url, login, timeout, answers=answers)
        found = [*broker, *management, _streams(url, login, timeout)]
    yield from found


def _broker_itself(url: str, login: Login, timeout: float, *, answers: bool) -> Iterator[Check]:
    """The broker over AMQP; without a majority of its nodes, it answers no declaration."""
    try:
        connection = connect(url, timeout=timeout, **login)
    except RabbitChxError as error:
        refused = isinstance(error, BrokerUnavailable) and error.permanent
        hint = "" if refused else "is the broker running, and is the URL right?"
        yield Check("broker", "failed", str(error), hint)
        return
    with connection:
        yield Check("broker", "ok", str(BrokerUrl.parse(url)))
        version = server_version(connection)
        try:
            release = Release.parse(version)
        except RabbitChxError as error:
            yield Check("release", "failed", version, str(error))
            return
        yield Check("release", "ok", f"RabbitMQ {version}")
        yield _ordered_queues(release)
        if not answers:
            yield Check("hash exchange", "missing", "not checked: the broker answers no declaration now")
            return
        try:
            check_known(connection)
        except RabbitChxError as error:
            yield Check("hash exchange", "failed", str(error))
        else:
            yield Check("hash exchange", "ok", "x-consistent-hash is enabled")


def _ordered_queues(release: Release) -> Check:
    """Known problems of the release for consumers of ordered queues."""
    if not release._obeys_active_priorities:
        found = f"RabbitMQ {release} gives all ordered queues to the first member of a group"
        return Check(
            "consumer groups",
            "missing",
            found,
            "upgrade to 4.0 or later, or let one member of a group consume and the others stand by",
        )
    if hazards := release_hazards(release):
        return Check("consumer groups", "missing", "; ".join(hazards.values()))
    return Check("consumer groups", "ok", "no known fault with ordered queues")


def _management(url: str, login: Login, management_of: partial[Management], timeout: float) -> list[Check]:
    """Only the topology commands need the API, so it may be missing unless a URL was given."""
    api = "management API"
    try:
        management = reached(management_of(url, **login), timeout)
        user = management.whoami()
        found = f"user {user.name!r} with the tags {', '.join(sorted(user.tags)) or 'none'}"
        cluster, nodes = None, {}
        try:
            nodes = management.nodes()
        except BrokerUnavailable as error:
            cluster = Check("cluster", "missing", str(error))
            if not error.permanent:
                hint = "find the node that hangs or is cut off"
                return [Check(api, "ok", found), Check("cluster", "failed", str(error), hint)]
        release = management.overview().release
        parsed = Release._of_broker(release)  # of any series: another check says whether it is mirrored
        store = management.store(release) or parsed.store
        cluster = cluster or _cluster(replace(parsed, store=store), nodes)
    except RabbitChxError as error:
        state, hint = "missing", "pass --management-url; plan, check and export need it"
        if management_of.keywords["url"]:
            state, hint = "failed", "plan, check and export need it"
        return [Check(api, state, str(error), hint)]
    checks = [Check(api, "ok", f"RabbitMQ {release}, {found}"), cluster]
    vhost = BrokerUrl.parse(url).vhost
    if hint := tracer_hint(management, vhost):
        found = f"on in virtual host {vhost!r}, so the broker copies every message"
        checks.append(Check("message tracer", "missing", found, hint))
    return checks


def _cluster(release: Release, nodes: dict[str, NodeState]) -> Check:
    observed = Observed(release=release, nodes=nodes)
    if problems := "; ".join(cluster_problems(observed)):
        return Check("cluster", "failed", problems, why_unchangeable(observed))
    return Check("cluster", "ok", f"{counted(len(nodes), 'node')}, all running, no alarm")


def _streams(url: str, login: Login, timeout: float = 10.0) -> Check:
    """Only readers and publishers of streams need the port, so it may be missing."""
    try:
        with open_streams(url, timeout=timeout, **login) as connection:
            return Check("stream protocol", "ok", f"{connection.url}; {_advertised(connection.node)}")
    except RabbitChxError as error:
        hint = "readers and publishers of streams need it, in Spark too; doctor --spark tries the options of a read"
        return Check("stream protocol", "missing", str(error), hint)


def _advertised(node: Node | None) -> str:
    """Whether this machine can follow the address that the node advertises."""
    if node is None:
        return "the node advertises no address"
    try:
        first_open(node.host, node.port, _ADVERTISED_SECONDS).close()
    except (OSError, UnicodeError) as error:  # not every text is the name of a host
        return f"{node.host}:{node.port}, which the node advertises, cannot be reached from here ({getattr(error, 'strerror', None) or error})"
    return f"the node advertises {node.host}:{node.port}"


def _print(checks: list[Check]) -> None:
    """Print the rows, each hint below what was found: a column for hints would be too narrow for a command."""
    colours = {"ok": "green", "missing": "yellow", "failed": "red"}
    shown = Table("what", "state", "found", wrapped=("found",))
    for check in checks:
        hint = f"\n-> {check.hint}" if check.hint else ""
        state = (check.state, colours[check.state])
        shown.add_row(check.name, (state,), ((check.found, ""), (hint, "cyan")))
    show(shown)
