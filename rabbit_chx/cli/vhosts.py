"""The topologies that a command is about: a file holds one, a ``definitions.json`` one for each virtual host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from rabbit_chx.cli.broker_access import broker_access_options
from rabbit_chx.cli.options import FILE, check_names
from rabbit_chx.cli.output import echo
from rabbit_chx.cli.verb import Exit, bundle, option
from rabbit_chx.topology.file.definitions import looks_like_definitions
from rabbit_chx.topology.file.load import read_file
from rabbit_chx.topology.file.load import topologies as topologies_in
from rabbit_chx.urls import BrokerUrl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rabbit_chx.topology.model import Topology

_WORST_FIRST: Final = (Exit.PARTLY, Exit.FAILED, Exit.DIFFERENT, Exit.FINE)

vhosts_option = option(
    "-V",
    "--vhost",
    "vhosts",
    multiple=True,
    metavar="VHOST",
    callback=check_names,
    help="Only this virtual host of a definitions.json; can be repeated. The default is the URL's, or all.",
)


def load_topologies(
    file: str, vhosts: Sequence[str] = (), url: str | BrokerUrl | None = None
) -> tuple[Topology, ...]:
    """The topologies in a file: of the given virtual hosts, else of the URL's, else all."""
    document = read_file(file)
    named = BrokerUrl.parse(url).named_vhost if url else None
    if not vhosts and named is not None and looks_like_definitions(document.value):
        vhosts = (named,)
    return topologies_in(document, vhosts)


def _with_topologies(given: dict[str, Any]) -> dict[str, Any]:
    found = load_topologies(given.pop("file"), given.pop("vhosts"), given["live"].url)
    return given | {"topologies": found}


topology_options = bundle(
    click.argument("file", type=FILE), vhosts_option, broker_access_options, gather=_with_topologies
)
"""A topology file and a broker; the command gets ``topologies`` and ``live``."""


def for_each_vhost(topologies: Sequence[Topology], act: Callable[[Topology], int]) -> int:
    """Act on each topology and return the worst exit code; a failure ends it."""
    codes = []
    for topology in topologies:
        if len(topologies) > 1:
            echo(f"Virtual host {topology.vhost!r}:", err=True)
        codes.append(act(topology))
        if codes[-1] in (Exit.FAILED, Exit.PARTLY):
            break
    return next(code for code in _WORST_FIRST if code in codes)
