"""``rabbit-chx export``: topology files from a live broker, and from ``definitions.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import click
from click.core import ParameterSource

from rabbit_chx.broker.reading.ring_order import in_ring_order
from rabbit_chx.cli.ask.broker_access import BrokerAccess, broker_access_options, note_unproven, vhosts_option
from rabbit_chx.cli.ask.options import FILE
from rabbit_chx.cli.show.file_writer import warn_of_unknown_orders
from rabbit_chx.cli.show.output import echo, notice
from rabbit_chx.cli.verb import bundle, option, verb
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.mirror.ring import Ring
from rabbit_chx.topology.file.definitions import (
    left_out,
    looks_like_definitions,
    to_definitions,
    unordered_rings,
)
from rabbit_chx.topology.file.dump import dumps, json_text
from rabbit_chx.topology.file.exportable import exportable, weight_of
from rabbit_chx.topology.file.load import read_file, topologies
from rabbit_chx.topology.model import Topology

_WithRings: TypeAlias = tuple[Topology, Mapping[str, Ring]]

_NOT_IN_FILES: Final = "users, permissions, topic permissions, operator policies, parameters, limits and tags"

_format_options = bundle(
    option(
        "--format",
        "kind",
        type=click.Choice(["yaml", "json", "definitions"]),
        default="yaml",
        show_default=True,
        help="definitions is RabbitMQ's own definitions.json; a broker that imports it binds in random order.",
    ),
    option(
        "-o",
        "--out",
        type=FILE,
        metavar="FILE",
        help="Write to a new FILE, or for several virtual hosts to a folder; the default is standard output.",
    ),
)


@verb(
    examples=[
        "rabbit-chx export -U amqp://user@host/ --password-file pw -o topology.yaml",
        "rabbit-chx export --vhost orders --format definitions",
        "rabbit-chx export definitions.json -o topology.yaml",
        "rabbit-chx export definitions.json -U amqp://old/ --node 'rabbitmqctl eval'",
    ],
)
@click.argument("file", type=FILE, required=False)
@vhosts_option
@broker_access_options
@_format_options
def export(
    *, file: str | None, vhosts: tuple[str, ...], live: BrokerAccess, kind: str, out: str | None
) -> None:
    """Write a virtual host as a topology file, with the queues of each ring in bucket order.

    With FILE (a definitions.json, or a topology file) it is the virtual hosts of FILE. The bindings in a definitions.json
    are not in the order of the ring: with --url (and --node, --pairs or --probe), the order is read from the broker
    that exported them.
    """
    _write(_of_broker(live, vhosts) if file is None else _of_file(file, vhosts, live), kind, out)


def _of_broker(live: BrokerAccess, vhosts: Sequence[str]) -> list[_WithRings]:
    if live.amqp_only:
        raise InvalidValue("export", "--amqp-only", "the management API, because AMQP cannot list objects")
    found: list[_WithRings] = []
    for vhost in vhosts or [live.given.vhost]:
        observed = replace(live, url=live.given.with_vhost(vhost)).read(Topology(vhost=vhost))
        warn_of_unknown_orders(observed.topology.unordered, observed)
        note_unproven(observed, observed.rings)
        found.append((observed.topology, observed.rings))
    try:
        _note_left_out(live.management.definitions(), [topology.vhost for topology, _ in found])
    except BrokerUnavailable as error:  # only an administrator may ask, and they may be too large
        notice("Note", f"not exported, if there are any: {_NOT_IN_FILES}. They could not be counted: {error}")
    return found


def _of_file(file: str, vhosts: Sequence[str], live: BrokerAccess) -> list[_WithRings]:
    document = read_file(file)
    if not looks_like_definitions(document.value):
        return [(topology, {}) for topology in topologies(document, vhosts)]
    source = click.get_current_context().get_parameter_source("url")
    asked = live if source is ParameterSource.COMMANDLINE else None  # AMQP_URL may be of another broker
    named = asked.given.named_vhost if asked else None
    found = topologies(document, vhosts or ([named] if named else []))
    ordered = [_in_ring_order(topology, asked) for topology in found]
    _note_left_out(document.value, [each.vhost for each in found])
    return ordered


def _in_ring_order(topology: Topology, live: BrokerAccess | None) -> _WithRings:
    """The topology with its bindings in the order of the broker's rings, and those rings; others are warned about."""
    rings: dict[str, Ring] = {}
    if live is not None:
        observed = replace(live, url=live.given.with_vhost(topology.vhost)).read(topology)
        for name, ring in observed.rings.items():
            in_file = {(bound.destination, weight_of(bound)) for bound in topology.bindings_from(name)}
            in_ring = {(bound.destination, weight_of(bound)) for bound in ring.bindings}
            # Of two bindings of a queue, only one is in effect.
            if ring.known and in_ring <= in_file and dict(in_ring).keys() == dict(in_file).keys():
                rings[name] = ring
    topology = in_ring_order(topology, rings) if rings else topology
    if topology.unordered:
        how = (
            "the order could not be read from the broker (pass --node), or the broker has other bindings"
            if live
            else "pass --url and --node to read it from the broker that exported the file, or use `rabbit-chx export` without FILE"
        )
        names = ", ".join(map(repr, sorted(topology.unordered)))
        notice(
            "Warning",
            f"the file does not contain the bind order of {names} in virtual host {topology.vhost!r}, so these exchanges "
            f"are written with `order: unknown`, and predictions from the result are refused; {how}",
        )
    return topology, rings


def _note_left_out(definitions: Any, vhosts: Iterable[str]) -> None:
    if counts := left_out(definitions, vhosts):
        some = ", ".join(f"{kind}: {count}" for kind, count in counts.items())
        notice("Note", f"left out, because a topology file cannot hold them: {some}")


def _write(found: Sequence[_WithRings], kind: str, out: str | None) -> None:
    """Write each topology, several to files of a folder."""
    if len(found) > 1 and out is None:
        names = ", ".join(repr(topology.vhost) for topology, _ in found)
        raise click.UsageError(f"missing --out: pass a folder for the virtual hosts {names}, or one --vhost")
    for topology, rings in found:
        text = _text(topology, rings, kind)
        if out is None:
            echo(text, nl=False)
        elif len(found) == 1:
            _create(Path(out), text)
        else:
            suffix = "yaml" if kind == "yaml" else "json"
            _create(Path(out) / f"{quote(topology.vhost, safe='')}.{suffix}", text, in_folder=True)


def _create(path: Path, text: str, *, in_folder: bool = False) -> None:
    try:
        if in_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        hint = "`export` overwrites no file: write a new one, and compare"
        raise InvalidValue("--out", str(path), "a file that does not exist yet", hint) from None
    except OSError as error:
        raise InvalidValue("--out", str(path), "a file that can be written", str(error.strerror)) from None
    echo(f"Wrote {path}.", err=True)


def _text(topology: Topology, rings: Mapping[str, Ring], kind: str) -> str:
    made, notes = exportable(topology, rings)
    for note in notes:
        notice("Note", note)
    if kind != "definitions":
        return dumps(made, "json" if kind == "json" else "yaml")
    if unordered := ", ".join(map(repr, unordered_rings(made))):
        notice(
            "Warning",
            f"a broker that imports these definitions binds in random order, so its rings of {unordered} will differ: "
            "`rabbit-chx apply` makes the same rings",
        )
    return json_text(to_definitions(made))
