"""``rabbit-chx scale --write``: bring the queues of a topology file up to date."""

from __future__ import annotations

import os
from difflib import unified_diff
from pathlib import Path

from rabbit_chx.cli.output import echo, notice
from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.file.definitions import looks_like_definitions
from rabbit_chx.topology.file.dump import dumps
from rabbit_chx.topology.file.load import Format, read_file, topologies
from rabbit_chx.topology.model import Observed, Topology, hashing_exchanges
from rabbit_chx.topology.planning.scaled import scaled


def with_queues_of_broker(topology: Topology, observed: Observed) -> Topology:
    """The topology with the queues that its exchanges have on the broker; weights and order stay as they are."""
    for exchange in hashing_exchanges(topology):
        slots = topology.slots_of(exchange)
        sources = {exchange} if slots is None else set(slots.names)
        bound = [each.destination for each in observed.topology.bindings if each.source in sources]
        ring = observed.rings.get(exchange)
        found = (
            ring.destinations
            if slots is None and ring is not None and ring.known
            else sorted(set(bound), key=str)
        )
        now = (
            {each.destination for each in topology.bindings_from(exchange)}
            if slots is None
            else set(slots.queues)
        )
        if found and all(isinstance(each, str) for each in (*found, *now)):
            add = [str(each) for each in found if each not in now]
            remove = [str(each) for each in now if each not in set(found)]
            topology = scaled(topology, exchange, add=add, remove=remove)
    return topology


def write_file(path: str, wanted: Topology) -> None:
    """Write a topology into its file; a file with comments, which would be lost, is not written, but the changes are shown."""
    document = read_file(path)
    if looks_like_definitions(document.value):
        raise InvalidValue("file of --write", path, "a topology file, not definitions of a broker")
    (before,) = topologies(document)
    form: Format = "json" if path.lower().endswith(".json") else "yaml"
    old, new = dumps(before, form), dumps(wanted, form)
    if old == new:
        notice("Note", f"{path} has these queues already")
    elif form == "yaml" and "#" in Path(path).read_text(encoding="utf-8"):
        lines = unified_diff(
            old.splitlines(), new.splitlines(), path, f"{path} with these queues", lineterm=""
        )
        notice("Note", f"{path} has comments, which writing it would lose, so change it by hand")
        for line in lines:
            echo(line, err=True)
    else:
        beside = Path(f"{path}.new")
        beside.write_text(new, encoding="utf-8")
        os.replace(beside, path)  # noqa: PTH105 - a file in place of another
        notice("Note", f"{path} is written")
