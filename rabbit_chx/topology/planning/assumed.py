"""The broker that holds exactly what a topology says: what a plan from one file to another starts from.

Slots are divided among their queues evenly, in order, as a first apply would; rings are in bind order. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rabbit_chx.releases import Release
from rabbit_chx.topology.model import Binding, Observed
from rabbit_chx.topology.planning.slots import divide

if TYPE_CHECKING:
    from rabbit_chx.topology.model import Topology

__all__ = ["assumed"]


def assumed(topology: Topology, release: str | Release = "4.3") -> Observed:
    """What would be read from a broker to which nothing but this topology was ever applied."""
    parsed = Release.parse(release)
    bindings = list(topology.bindings)
    exchanges = list(topology.exchanges)
    for slots in topology.slots:
        exchanges += slots.exchanges
        bindings += slots.top_bindings
        bindings += [Binding(slot, queue, "1") for slot, queue in divide(slots.names, slots.queues).items()]
    stands = replace(
        topology, exchanges=tuple(exchanges), bindings=tuple(bindings), slots=(), co_partitioned=()
    )
    rings = {exchange.name: stands.ring(exchange.name, parsed) for exchange in stands.hash_exchanges}
    return Observed(
        stands,
        parsed,
        rings=rings,
        ring_sources={
            name: "trivial" if len(ring.bindings) < 2 else "x-bind-seq" for name, ring in rings.items()
        },
    )
