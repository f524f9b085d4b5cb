"""``rabbit-chx scale --write``: bring the queues of a topology file up to date."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

from rabbit_chx.cli.show.output import echo, notice, replace_file
from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.diff import changed_properties
from rabbit_chx.topology.file.definitions import looks_like_definitions
from rabbit_chx.topology.file.dump import json_text, values_of, yaml_text
from rabbit_chx.topology.file.load import read_file, topologies
from rabbit_chx.topology.file.problems import Document
from rabbit_chx.topology.graph import sources_of
from rabbit_chx.topology.model import (
    CONSISTENT_HASH,
    Observed,
    Topology,
    bound_to,
    hashing_exchanges,
    order_matters,
)
from rabbit_chx.topology.planning.scaled import scaled

_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\'\'|[^\'\n])*\'')
_COMMENT = re.compile(r"(?:^|\s)#", re.MULTILINE)


def with_queues_of_broker(topology: Topology, observed: Observed) -> Topology:
    """The topology with the queues that its exchanges have on the broker; the weights of the others stay as they are.

    New queues are bound as on the broker. If the order of their ring is not known, the topology says so.
    """
    for exchange in hashing_exchanges(topology):
        now, sources = bound_to(topology, exchange), sources_of(topology, exchange)
        there = {each.destination for each in observed.topology.bindings if each.source in sources}
        found, ring = sorted(there, key=str), observed.rings.get(exchange)
        if exchange in sources and ring is not None and ring.known:
            found = list(ring.destinations)
        if found and all(isinstance(each, str) for each in (*found, *now)):
            add = [str(each) for each in found if each not in now]
            remove = [str(each) for each in now if each not in set(found)]
            topology = _declared_as_there(scaled(topology, exchange, add=add, remove=remove), add, observed)
            if add and exchange in sources:
                topology = _bound_as_there(topology, exchange, add, observed)
    return topology


def _bound_as_there(
    topology: Topology, exchange: str, names: Collection[str], observed: Observed
) -> Topology:
    """The topology with the bindings of these queues to an exchange as the broker has them, and with their order or none."""
    keys = {each.destination: each.key for each in observed.topology.bindings_from(exchange)}
    bindings = tuple(
        replace(each, key=keys[each.destination])
        if each.source == exchange and each.destination in names
        else each
        for each in topology.bindings
    )
    topology = replace(topology, bindings=bindings)
    found, ring = topology.exchange(exchange), observed.rings.get(exchange)
    if found is None or found.type != CONSISTENT_HASH or not order_matters(topology.bindings_from(exchange)):
        return topology
    if ring is None or not ring.known:
        return replace(topology, unordered=topology.unordered | {exchange})
    return topology._with_order_of(ring, exchange)


def _declared_as_there(topology: Topology, names: Collection[str], observed: Observed) -> Topology:
    """The topology with these queues as the broker has them, where they differ: other programs may have declared them."""
    there = {queue.name: queue for queue in observed.topology.queues if queue.name in names}
    queues = (
        there[queue.name] if queue.name in there and changed_properties(queue, there[queue.name]) else queue
        for queue in topology.queues
    )
    return replace(topology, queues=tuple(queues))


def warn_of_unknown_orders(exchanges: Collection[str], observed: Observed) -> None:
    """Warn of the exchanges that are written into a file without their bind order."""
    for name in sorted(exchanges):
        ring = observed.rings.get(name)
        why = "its weights are invalid" if ring is None else ring.why_unknown
        notice(
            "Warning",
            f"exchange {name!r} is written with `order: unknown`: {why}. Predictions from the file are refused until the order is "
            "known: --node, --pairs or --probe learn it",
        )


def topology_file(path: str) -> Document:
    """The document in a file that --write can write: definitions of a broker are refused."""
    document = read_file(path)
    if looks_like_definitions(document.value):
        raise InvalidValue("file of --write", path, "a topology file, not definitions of a broker")
    return document


def write_file(path: str, wanted: Topology, *, dry_run: bool = False) -> bool:
    """Write a topology into its file, and return whether they differed.

    With ``dry_run``, and for a file with comments, which would be lost, the changes are only shown.
    """
    document = topology_file(path)
    (before,) = topologies(document)
    kept = {name: value for name, value in document.value.items() if name == "$schema"}
    text_of = json_text if path.lower().endswith(".json") else yaml_text
    old, new = (text_of(kept | values_of(each)) for each in (before, wanted))
    if old == new:
        notice("Note", f"{path} has these queues already")
    elif text_of is yaml_text and _COMMENT.search(_QUOTED.sub("", Path(path).read_text(encoding="utf-8"))):
        notice("Note", f"{path} has comments, which writing it would lose, so change it by hand")
        _print_changes(path, old, new)
    elif dry_run:
        notice("Note", f"{path} would be written")
        _print_changes(path, old, new)
    else:
        replace_file(path, new, option="--write")
        notice("Note", f"{path} is written")
    return old != new


def _print_changes(path: str, old: str, new: str) -> None:
    for line in unified_diff(
        old.splitlines(), new.splitlines(), path, f"{path} with these queues", lineterm=""
    ):
        echo(line, err=True)
