"""The order of the buckets of each ring, and how it is known. Values only; this file opens no connection.

The node itself knows best. Next comes the record that `apply` keeps (:mod:`rabbit_chx.broker.reading.order_record`). It is
believed only while the exchange ``rabbit-chx.order`` shows that the broker has kept its rings. Pairs of keys and queues
that consumers saw correct it.

These events leave record and ring different, and only the node shows them: another program unbinds a destination and
binds it again with the same weight and arguments, or binds it a second time and unbinds that, which takes all its buckets; definitions that
hold a record are imported into a cluster of the same name; the consistent-hash plugin is disabled and enabled again; a
destination that is an exchange is deleted and keeps its buckets, as 4.3.0 to 4.3.5 may do.

A single binding has all buckets, in any order, or none: if its destination was bound twice and unbound once. Without a
record it is believed, since each slot of a modulus exchange has one, but not recorded, and commands say so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final

from rabbit_chx.broker.reading.order_record import CLUSTER, ORDER_EXCHANGE, OrderRecord, as_recorded
from rabbit_chx.errors import Contradiction, InvalidValue, RingUnknown, Unpredictable
from rabbit_chx.mirror.inference import infer
from rabbit_chx.mirror.releases import Release, Store
from rabbit_chx.mirror.ring import Destination, Ring, RingBinding, ToExchange, named
from rabbit_chx.topology.model import Binding, Exchange, Observed, RingSource, Topology, as_ring_bindings

_FEW: Final = 3
"""The most bindings that a message names."""
CHANGED: Final = "it changed while it was read"
_NO_SOURCE: Final = "neither AMQP nor the management API shows the order of the buckets, and {reason}"


@dataclass(frozen=True, slots=True)
class OrderEvidence:
    """What a virtual host shows of the order in which its rings were bound."""

    release: Release
    exchange: Exchange | None = None
    """``rabbit-chx.order``, if it exists."""
    cluster: str = ""
    """The name of the cluster now."""
    nodes: int | None = None
    """How many nodes it has; None where the user may not ask."""
    record: OrderRecord = field(default_factory=OrderRecord)

    @property
    def why_void(self) -> str:
        """Why the record does not count in this virtual host; nothing if it does."""
        if self.exchange is None or self.exchange.durable:  # a durable one outlives the rings of Mnesia
            return f"the record is gone: the broker was restarted, or {ORDER_EXCHANGE!r} deleted"
        if self.exchange.arguments.get(CLUSTER) != self.cluster:
            return f"the record was made in another cluster than {self.cluster!r}"
        return self.why_useless

    @property
    def why_useless(self) -> str:
        """Why no record can be believed in this cluster; nothing if one can."""
        release = self.release
        if release.store is Store.MNESIA and (release.major, release.minor) < (3, 11) and self.nodes != 1:
            # Up to 3.10 a node that goes down takes its durable classic queues out of the rings of the others.
            unseen = "" if self.nodes else "; only users with the tag monitoring see how many nodes there are"
            return f"RabbitMQ {release} keeps the order of a ring only on a single node{unseen}"
        return ""

    def lacks(self, ring: Ring, bindings: Sequence[Binding]) -> bool:
        """Whether this order could be recorded, but is not."""
        each = {(bound.destination, bound.key) for bound in bindings}
        single = len(each) == len({destination for destination, _ in each})
        if not (each and single and ring.known) or ring.dead or self.why_useless:
            return False
        recorded = {} if self.why_void else self._recorded(bindings)
        in_order = sorted(each & recorded.keys(), key=recorded.__getitem__)
        return tuple(destination for destination, _ in in_order) != ring.destinations

    def _recorded(self, bindings: Sequence[Binding]) -> dict[tuple[Destination, str], int]:
        """The numbers of the recorded bindings that are listed, by destination and weight.

        Another binding of the same destination and weight changes nothing, as long as the recorded one is listed.
        """
        numbers = self.record.numbers(bindings[0].source)
        return {one[:2]: numbers[one] for one in map(as_recorded, bindings) if one in numbers}

    def why_doubtful(self, bindings: Sequence[Binding]) -> str:
        """Why a single binding may have no buckets: another one was recorded, and perhaps unbound only afterwards."""
        if self.why_void or not bindings:
            return ""
        numbers = self.record.numbers(bindings[0].source)
        missing = {(bound.destination, bound.key) for bound in bindings} - self._recorded(bindings).keys()
        replaced = {destination for destination, _ in missing} & {destination for destination, *_ in numbers}
        return _why_unrecorded(bindings[0].source, missing, numbers) if replaced else ""

    def numbers(self, bindings: Sequence[Binding]) -> list[int] | str:
        """The number of the bind command of each binding of one exchange, or why they are unknown."""
        each = [(bound.destination, bound.key) for bound in bindings]
        recorded = self._recorded(bindings)
        missing = set(each) - set(recorded)
        if missing:
            return _why_unrecorded(bindings[0].source, missing, self.record.numbers(bindings[0].source))
        return self.why_void or [recorded[one] for one in each]


def _why_unrecorded(
    exchange: str, missing: Collection[tuple[Destination, str]], recorded: Collection[object]
) -> str:
    if not recorded:
        return f"the order of exchange {exchange!r} was not recorded"
    some = [f"{named(destination)} with weight {key}" for destination, key in sorted(missing, key=str)[:_FEW]]
    more = ", ..." * (len(missing) > _FEW)
    return (
        f"the record of exchange {exchange!r} lacks the {'binding' if len(missing) == 1 else 'bindings'} of "
        f"{', '.join(some)}{more}, which another program made"
    )


def ring_of(
    bindings: Sequence[Binding],
    evidence: OrderEvidence,
    on_node: Sequence[Destination] | RingUnknown | None,
) -> tuple[Ring, RingSource]:
    """The ring of one exchange, and how its order is known; ``on_node`` are the buckets read from the node, if any.

    Raises:
        InvalidValue: a binding has a weight that only old releases accept.
    """
    listed = as_ring_bindings(bindings)

    def unknown(why: str) -> tuple[Ring, RingSource]:
        return Ring(listed, None, evidence.release, why), "unknown"

    if isinstance(on_node, RingUnknown):
        return unknown(str(on_node))
    if on_node is not None:
        if not _agree(on_node, listed, evidence.release):
            return unknown(_why_different(on_node, listed, evidence.release))
        return Ring.read(on_node, bindings=listed, release=evidence.release), "node"
    if not listed:
        return Ring(release=evidence.release), "trivial"
    numbers = evidence.numbers(bindings)
    if len(listed) == 1 and isinstance(numbers, str) and not evidence.why_doubtful(bindings):
        return Ring.of(listed, release=evidence.release), "trivial"
    twice = Counter(destination for destination, _ in {(each.destination, each.key) for each in listed})
    for destination, times in twice.items():
        if times > 1:
            reason = f"{named(destination)} is bound with {times} weights, but only one takes effect"
            why = f"; {numbers}" if isinstance(numbers, str) else ""
            return unknown(_NO_SOURCE.format(reason=reason + why))
    if isinstance(numbers, str):
        return unknown(_NO_SOURCE.format(reason=numbers))
    in_order = [binding for _, binding in sorted(zip(numbers, listed, strict=True), key=itemgetter(0))]
    runs = {binding.destination: binding.weight for binding in in_order}
    return Ring(tuple(in_order), tuple(runs.items()), evidence.release), "record"


def _why_different(buckets: Sequence[Destination], listed: Sequence[RingBinding], release: Release) -> str:
    kept = {each for each in buckets if isinstance(each, ToExchange)} - {each.destination for each in listed}
    if not (kept and release.deleted_exchange_keeps_buckets):
        return CHANGED
    return (
        f"{CHANGED}, or it has kept buckets of {named(min(kept))}, which is not bound: RabbitMQ 4.3.0 to 4.3.5 may keep "
        "those of a deleted exchange, until an exchange of this name is bound and unbound again"
    )


def _agree(buckets: Sequence[Destination], listed: Sequence[RingBinding], release: Release) -> bool:
    """Whether every destination of the ring has the buckets of one of its bindings."""
    weights = {(binding.destination, binding.weight) for binding in listed}
    if not release.first_binding_wins:  # there, each binding of a destination adds its own
        return set(buckets) <= {destination for destination, _ in weights}
    return weights >= set(Counter(buckets).items())


def in_ring_order(topology: Topology, rings: Mapping[str, Ring]) -> Topology:
    """The same topology with sorted bindings: those of a known ring in the order of its buckets, others by name."""
    buckets = {
        (name, destination): bucket
        for name, ring in rings.items()
        if ring.known
        for bucket, destination in enumerate(ring.destinations)
    }

    def place(bound: Binding) -> tuple[Any, ...]:
        return (
            bound.source,
            buckets.get((bound.source, bound.destination), math.inf),
            isinstance(bound.destination, ToExchange),
            str(bound.destination),
            bound.key,
            repr(sorted(bound.arguments.items())),
        )

    known = {name for name, ring in rings.items() if ring.known}
    return replace(
        topology,
        bindings=tuple(sorted(topology.bindings, key=place)),
        unordered=(topology.unordered | rings.keys()) - known,
    )


def learn(observed: Observed, pairs: Mapping[str, Iterable[tuple[Any, Destination]]]) -> Observed:
    """Infer unknown rings from observed messages, and correct rings known from a record, but not those read from a node.

    ``pairs`` holds, for each exchange, the hashed values and the destinations that received them.
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
    inferred = {
        name
        for name, source in sources.items()
        # Each destination has one weight, and buckets. Bindings that differ only in their arguments are one.
        if source == "inference" and len(rings[name].destinations) == len({*rings[name].bindings})
    }
    return replace(
        observed,
        topology=topology,
        rings=rings,
        ring_sources=sources,
        possible_rings=possible,
        unrecorded=(observed.unrecorded - {name for name, ring in rings.items() if not ring.known})
        | inferred,
    )


def _learnt(
    exchange: Exchange, ring: Ring, source: RingSource, seen: Iterable[tuple[Any, Destination]]
) -> tuple[Ring, RingSource, tuple[Ring, ...]]:
    """The ring that explains the messages, how it is known, and which rings are possible if several do."""
    on = {"hash_header": exchange.hash_header, "hash_property": exchange.hash_property}
    try:
        inference = infer(seen, ring.bindings, release=ring.release, **on)
    except (Contradiction, Unpredictable) as error:
        return Ring(ring.bindings, None, ring.release, str(error)), "unknown", ()
    if ring.known and any(each.runs == ring.runs for each in inference.rings):
        return ring, source, ()
    if inference.ring is not None:
        return inference.ring, "inference", ()
    return Ring(ring.bindings, None, ring.release, str(inference)), "unknown", inference.rings
