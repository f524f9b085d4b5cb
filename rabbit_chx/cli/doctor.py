"""``rabbit-chx doctor``: what is there, what is missing, and the command that mends it."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Final

import click

from rabbit_chx import __version__
from rabbit_chx.cli.options import broker_options, management_option, output_option
from rabbit_chx.errors import RabbitChxError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What each optional package is for.
_EXTRAS: Final = {
    "pyarrow": ("arrow", "Arrow columns in route_many"),
    "aio-pika": ("aio", "asyncio applications"),
    "mmh3": ("streams", "super streams"),
    "pydantic": ("topology", "topology files"),
    "PyYAML": ("topology", "topology files in YAML"),
    "pyspark": ("spark", "the Spark connector"),
    "testcontainers": ("testing", "throw-away brokers in Docker"),
}


@dataclass(frozen=True)
class _Check:
    name: str
    state: str
    """``ok``, ``missing`` (only needed for a part) or ``failed``."""
    found: str
    way_out: str = ""


@click.command(
    epilog="""\b
Examples:
  rabbit-chx doctor
  AMQP_URL=amqp://user:password@host rabbit-chx doctor
"""
)
@broker_options
@management_option
@output_option
def doctor(*, url: str | None, password_file: Path | None, management_url: str | None, output: str) -> int:
    """Check what is installed, and the broker if one is given, and say how to mend what is not right.

    Exit code 1 means that something which was asked for does not work.
    """
    checks: list[_Check] = []
    for check in _checks(url, password_file, management_url):
        checks.append(check)
        if output == "json":
            click.echo(json.dumps(vars(check), ensure_ascii=False))
    if output == "table":
        _print(checks)
    return 1 if any(check.state == "failed" for check in checks) else 0


def _checks(url: str | None, password_file: Path | None, management_url: str | None) -> Iterator[_Check]:
    yield _Check("Python", "ok", platform.python_version())
    yield _Check("rabbit-chx", "ok", __version__)
    for package in ("numpy", "pika"):
        yield _Check(package, "ok", metadata.version(package))
    for package, (extra, purpose) in _EXTRAS.items():
        try:
            yield _Check(package, "ok", metadata.version(package))
        except metadata.PackageNotFoundError:
            yield _Check(package, "missing", f"for {purpose}", f"pip install 'rabbit-chx[{extra}]'")
    yield _throw_away_broker()
    if url is None:
        yield _Check("broker", "missing", "none was named", "give --url, or set AMQP_URL")
    else:
        yield from _broker_checks(url, password_file)
        yield _management(url, password_file, management_url)


def _throw_away_broker() -> _Check:
    from rabbit_chx.testing import available

    try:
        return _Check("throw-away broker", "ok", str(available()))
    except RabbitChxError as error:
        reason, _, way_out = str(error).partition(" Ways out: ")
        return _Check("throw-away broker", "missing", reason, way_out)


def _broker_checks(url: str, password_file: Path | None) -> Iterator[_Check]:
    from rabbit_chx.broker.connect import connect, describe, server_version
    from rabbit_chx.broker.scratch import Scratch
    from rabbit_chx.releases import Release

    try:
        connection = connect(url, credentials=password_file)
    except RabbitChxError as error:
        yield _Check("broker", "failed", str(error), "is it running, and is the URL right?")
        return
    with connection:
        yield _Check("broker", "ok", describe(url))
        version = server_version(connection)
        try:
            release = Release.parse(version)
        except RabbitChxError as error:
            yield _Check("release", "failed", version, str(error))
            return
        yield _Check("release", "ok", f"RabbitMQ {version}")
        try:
            Scratch(connection, release=release).bind("probe")
        except RabbitChxError as error:
            yield _Check("hash exchange", "failed", str(error))
        else:
            yield _Check("hash exchange", "ok", "a scratch exchange could be declared and bound")


def _management(url: str, password_file: Path | None, management_url: str | None) -> _Check:
    """It is needed by the verbs of topology only, so that none is no fault unless one was named."""
    from rabbit_chx.broker.connect import asked_for, management_of
    from rabbit_chx.broker.management import Management

    try:
        where = management_url or management_of(url)
        management = Management(where, credentials=asked_for(password_file, url))
        user, tags = management.whoami().name, ", ".join(sorted(management.whoami().tags))
        release = management.overview().release
    except RabbitChxError as error:
        way_out = "give --management-url; plan, check and export need it"
        return _Check("management API", "failed" if management_url else "missing", str(error), way_out)
    return _Check("management API", "ok", f"RabbitMQ {release}, user {user!r} with the tags {tags or 'none'}")


def _print(checks: list[_Check]) -> None:
    from rabbit_chx.cli.tables import console, table

    marks = {"ok": "[green]ok[/]", "missing": "[yellow]missing[/]", "failed": "[red]failed[/]"}
    shown = table("what", "state", "found", "way out")
    for check in checks:
        shown.add_row(check.name, marks[check.state], check.found, check.way_out)
    console().print(shown)
