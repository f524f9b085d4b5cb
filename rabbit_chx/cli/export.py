"""``rabbit-chx export`` and ``import``: topology files from a live broker, and from ``definitions.json``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rabbit_chx.cli.broker_access import broker_access_options
from rabbit_chx.cli.options import FILE
from rabbit_chx.cli.output import echo, notice
from rabbit_chx.cli.verb import verb
from rabbit_chx.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from rabbit_chx.cli.broker_access import BrokerAccess
    from rabbit_chx.topology.model import Topology

__all__ = ["export", "import_"]


def _format_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "-o",
        "--out",
        type=FILE,
        metavar="FILE",
        help="Write to FILE, which must not exist; by default to standard output.",
    )(command)
    return click.option(
        "--format",
        "kind",
        type=click.Choice(["yaml", "json", "definitions"]),
        default="yaml",
        show_default=True,
        help="definitions is RabbitMQ's own definitions.json, whose import binds in random order.",
    )(command)


@verb(
    examples=[
        "rabbit-chx export -U amqp://user@host/ --password-file pw -o topology.yaml",
        "rabbit-chx export --vhost orders --format definitions",
    ],
)
@click.option("-V", "--vhost", default=None, metavar="VHOST", help="The virtual host; by default the URL's.")
@broker_access_options
@_format_options
def export(*, live: BrokerAccess, vhost: str | None, kind: str, out: str | None) -> None:
    """Write what stands in a virtual host as a topology file; rings are written in their own order."""
    from rabbit_chx.topology.file.dump import exportable
    from rabbit_chx.topology.model import Topology

    if live.amqp_only:
        raise InvalidValue("export", "--amqp-only", "the management API: AMQP lists nothing")
    wanted = Topology(vhost=live.given.vhost if vhost is None else vhost)
    observed = replace(live, url=live.given.with_vhost(wanted.vhost)).read(wanted)  # --vhost wins
    for name, ring in observed.rings.items():
        if not ring.known:
            notice("Note", f"exchange {name!r} is written in an order of no meaning: {ring.why_unknown}")
    _write(_text(exportable(observed.topology), kind), out)


@verb(
    "import",
    examples=[
        "rabbit-chx import definitions.json -o topology.yaml",
        "rabbit-chx import topology.yaml --format json",
    ],
)
@click.argument("file", type=FILE)
@click.option("-V", "--vhost", metavar="VHOST", help="Of a definitions.json with several.")
@_format_options
def import_(*, file: str, vhost: str | None, kind: str, out: str | None) -> None:
    """Turn FILE (a definitions.json, or a topology file) into a topology file. No broker is asked or changed."""
    from rabbit_chx.topology.file.load import load

    _write(_text(load(file, vhost=vhost), kind), out)


def _text(topology: Topology, kind: str) -> str:
    from rabbit_chx.topology.file.definitions import to_definitions
    from rabbit_chx.topology.file.dump import dumps

    if kind == "definitions":
        return json.dumps(to_definitions(topology), indent=2, ensure_ascii=False) + "\n"
    return dumps(topology, kind)  # type: ignore[arg-type]


def _write(text: str, out: str | None) -> None:
    if out is None:
        echo(text, nl=False)
        return
    try:
        with Path(out).open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidValue("--out", out, "a file that does not exist yet", str(error.strerror)) from None
    echo(f"Wrote {out}.", err=True)
