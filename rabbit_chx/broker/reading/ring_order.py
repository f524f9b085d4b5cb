"""What is known of the order of each ring, and how: pure, this file asks nobody.

Best is what the node itself says. Next are the numbers that our own binds carry (``x-bind-seq``). They tell the
order in which binds were issued, and that is the order of the buckets for as long as the broker keeps its rings.
Nothing in AMQP or over HTTP says how long it has: a restart of the RabbitMQ application leaves the node's uptime as
it is. But a transient exchange lives exactly as long as the rings do. On Mnesia both are kept in memory only, on
all nodes of a cluster, and both are copied when it goes over to Khepri, where both stay. So before the first
numbered bind of a virtual host the transient exchange ``rabbit-chx.order`` is declared (`marker`), which holds the
number that this bind will have. Where it is still there, all binds with that number or a higher one have kept their
order; where it is gone, the next apply declares a new one, with a higher number.

What can fool the numbers: a bind or unbind of another program's that left a destination without buckets and our
binding listed (a dead binding, see `Ring.unbind`), which on Khepri comes back to life at the end of the ring; an import
of definitions that hold numbered bindings, and where they also hold the marker, into a cluster of the same name; the
consistent-hash plugin switched off and on. Node access sees all of these, and observed messages most.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rabbit_chx.errors import Contradiction, InvalidValue, RingUnknown, Unpredictable
from rabbit_chx.inference import infer
from rabbit_chx.releases import Store
from rabbit_chx.ring import Ring, ToExchange
from rabbit_chx.topology.model import BIND_SEQUENCE, Exchange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from rabbit_chx.releases import Release
    from rabbit_chx.ring import Destination, RingBinding
    from rabbit_chx.topology.model import Binding, Observed, RingSource, Topology

__all__ = ["CHANGED", "MARKER", "Memory", "in_ring_order", "learn", "marker", "ring_of", "why_not_by_number"]

MARKER: Final = "rabbit-chx.order"
CHANGED: Final = "it changed while it was read"
_CLUSTER: Final = "x-cluster"
_NO_SOURCE: Final = "nobody can read the order of the buckets from outside, and {reason}; give a node command, or observe messages"


def marker(first: int, cluster: str) -> Exchange:
    """The exchange to declare before the first of the binds numbered from ``first`` on.

    Declaring it again changes nothing, as with any exchange: the number of the first declaration stays.
    """
    arguments = {BIND_SEQUENCE: first, _CLUSTER: cluster}
    return Exchange(MARKER, "fanout", durable=False, internal=True, arguments=arguments)


@dataclass(frozen=True, slots=True)
class Memory:
    """What tells whether numbered binds have kept their order."""

    release: Release
    marker: Exchange | None
    """The exchange of that name, if there is one."""
    cluster: str = ""
    """The name of the cluster now."""
    nodes: int | None = None
    """How many nodes it has; None where nobody may ask."""


def why_not_by_number(bindings: Sequence[Binding], memory: Memory) -> str:
    """Why the numbers of the bindings of one exchange do not tell the order of its buckets; nothing if they do."""
    numbers = [bound.sequence for bound in bindings]
    known = {number for number in numbers if number is not None}
    if len(known) < len(numbers):
        bare = numbers.count(None)
        return (
            f"{bare} of its {len(numbers)} bindings carry no {BIND_SEQUENCE}"
            if bare
            else f"a {BIND_SEQUENCE} stands twice among its bindings"
        )
    for destination, times in Counter(bound.destination for bound in bindings).items():
        if times > 1:
            return f"{destination} is bound {times} times, and one of these bindings is dead"
    first = memory.marker.arguments.get(BIND_SEQUENCE) if memory.marker else None
    # A durable one outlives the rings of Mnesia: it is not ours.
    if memory.marker is None or memory.marker.durable or not isinstance(first, int):
        return f"its binds are numbered, but the broker was started since, or brought here ({MARKER} is gone)"
    if memory.marker.arguments.get(_CLUSTER) != memory.cluster:
        return f"its binds are numbered, but by another cluster than {memory.cluster!r}"
    # One that was there before the others is at the front, wherever it stood.
    if sum(number < first for number in known) > 1:
        return "some of its numbered binds were made before the broker was last started"
    release = memory.release
    if release.store is Store.MNESIA and (release.major, release.minor) < (3, 11) and memory.nodes != 1:
        # Up to 3.10 a node that goes down takes its durable classic queues out of the rings of the others.
        who = "" if memory.nodes else ", and how many there are is shown to users with the tag monitoring"
        return f"its binds are numbered, but RabbitMQ {release} keeps their order on a single node only{who}"
    return ""


def ring_of(
    bindings: Sequence[Binding],
    listed: Sequence[RingBinding],
    memory: Memory,
    on_node: Sequence[Destination] | RingUnknown | None,
) -> tuple[Ring, RingSource]:
    """The ring of one exchange from what was read, and how its order is known.

    ``listed`` are its bindings once more, as a ring has them; ``on_node`` is what the node says, if it was asked.
    """
    unknown = Ring(tuple(listed), None, memory.release)
    if isinstance(on_node, RingUnknown):
        return replace(unknown, why_unknown=str(on_node)), "unknown"
    if on_node is not None:
        if not _agree(on_node, listed, memory.release):
            return replace(unknown, why_unknown=CHANGED), "unknown"
        return Ring.read(on_node, bindings=listed, release=memory.release), "node"
    if len(listed) <= 1:
        return Ring.of(listed, release=memory.release), "trivial"
    if reason := why_not_by_number(bindings, memory):
        return replace(unknown, why_unknown=_NO_SOURCE.format(reason=reason)), "unknown"
    in_order = [binding for _, binding in sorted(zip(bindings, listed, strict=True), key=_number)]
    return Ring.of(in_order, release=memory.release), "x-bind-seq"


def _number(pair: tuple[Binding, RingBinding]) -> int:
    return pair[0].sequence or 0


def _agree(buckets: Sequence[Destination], listed: Sequence[RingBinding], release: Release) -> bool:
    """Whether every destination of the ring has the buckets of one of its bindings."""
    weights = {(binding.destination, binding.weight) for binding in listed}
    if not release.first_binding_wins:  # there, each binding of a destination adds its own
        return set(buckets) <= {destination for destination, _ in weights}
    return weights >= set(Counter(buckets).items())


def in_ring_order(topology: Topology, rings: Mapping[str, Ring]) -> Topology:
    """The same topology with its bindings in an order that means something.

    Those of a ring stand in the order of its buckets, dead ones and those of an unknown ring by their numbers, all
    others sorted.
    """

    def place(bound: Binding) -> tuple[Any, ...]:
        order: tuple[Destination, ...] = ()
        ring = rings.get(bound.source)
        if ring is not None and ring.known:
            order = ring.destinations
        bucket = order.index(bound.destination) if bound.destination in order else len(order)
        number = bound.sequence if bound.sequence is not None else -1
        exchange = isinstance(bound.destination, ToExchange)
        name = str(bound.destination)
        return (
            bound.source,
            bucket,
            number,
            exchange,
            name,
            bound.key,
            repr(sorted(bound.arguments.items())),
        )

    return replace(topology, bindings=tuple(sorted(topology.bindings, key=place)))


def learn(observed: Observed, pairs: Mapping[str, Iterable[tuple[Any, Destination]]]) -> Observed:
    """What is known after messages were observed: by exchange, what was hashed and the destination it was seen at.

    They work out a ring that is unknown, and correct one that is taken from numbers or from having one binding
    only. What the node itself said is left alone.
    """
    rings, sources = dict(observed.rings), dict(observed.ring_sources)
    possible = dict(observed.possible_rings)
    for name, seen in pairs.items():
        exchange = observed.topology.exchange(name)
        if exchange is None or name not in rings:
            raise InvalidValue(
                "exchange of the observed messages",
                name,
                "one of " + (", ".join(map(repr, rings)) or "none"),
                "Only an x-consistent-hash exchange keeps a ring",
            )
        if sources[name] != "node":
            known = rings[name], sources[name]
            rings[name], sources[name], possible[name] = _learnt(exchange, *known, seen)
    possible = {name: some for name, some in possible.items() if some}
    topology = in_ring_order(observed.topology, rings)
    return replace(observed, topology=topology, rings=rings, ring_sources=sources, possible_rings=possible)


def _learnt(
    exchange: Exchange, ring: Ring, source: RingSource, seen: Iterable[tuple[Any, Destination]]
) -> tuple[Ring, RingSource, tuple[Ring, ...]]:
    """The ring after messages were seen, how it is known, and what is possible while it is not."""
    unknown = Ring(ring.bindings, None, ring.release)
    on = {"hash_header": exchange.hash_header, "hash_property": exchange.hash_property}
    try:
        inference = infer(seen, ring.bindings, release=ring.release, **on)
    except (Contradiction, Unpredictable) as error:
        return replace(unknown, why_unknown=str(error)), "unknown", ()
    if ring.known and any(each.runs == ring.runs for each in inference.rings):
        return ring, source, ()
    if inference.ring is not None:
        return inference.ring, "inference", ()
    return replace(unknown, why_unknown=str(inference)), "unknown", inference.rings
