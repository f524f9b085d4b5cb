"""The topologies that a command is about: a file holds one, a ``definitions.json`` one for each virtual host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rabbit_chx.cli.options import check_names
from rabbit_chx.cli.output import echo
from rabbit_chx.cli.verb import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rabbit_chx.topology.model import Topology
    from rabbit_chx.urls import BrokerUrl

__all__ = ["for_each_vhost", "load_topologies", "vhosts_option"]

_WORST_FIRST = (Exit.PARTLY, Exit.FAILED, Exit.DIFFERENT, Exit.FINE)


def vhosts_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--vhost``: the virtual hosts of a definitions.json that has several."""
    return click.option(
        "-V",
        "--vhost",
        "vhosts",
        multiple=True,
        metavar="VHOST",
        callback=check_names,
        help="Only this virtual host of a definitions.json; can be repeated. The default is the URL's, or all.",
    )(command)


def load_topologies(
    file: str, vhosts: Sequence[str] = (), url: str | BrokerUrl | None = None
) -> tuple[Topology, ...]:
    """The topologies in a file: of the given virtual hosts, else of the URL's, else all."""
    from rabbit_chx.topology.file.definitions import looks_like_definitions
    from rabbit_chx.topology.file.load import read_file, topologies
    from rabbit_chx.urls import BrokerUrl

    document = read_file(file)
    named = BrokerUrl.parse(url).named_vhost if url else None
    if not vhosts and named is not None and looks_like_definitions(document.value):
        vhosts = (named,)
    return topologies(document, vhosts)


def for_each_vhost(topologies: Iterable[Topology], act: Callable[[Topology], int]) -> int:
    """Act on each topology and return the worst exit code; a failure ends it."""
    found = tuple(topologies)
    codes = []
    for topology in found:
        if len(found) > 1:
            echo(f"Virtual host {topology.vhost!r}:", err=True)
        codes.append(act(topology))
        if codes[-1] in (Exit.FAILED, Exit.PARTLY):
            break
    return next(code for code in _WORST_FIRST if code in codes)
