"""Compare the topology of a file with a broker, as typed differences.

Drift, plans and the checks of a live broker all start from these differences, so they agree. `owned_elsewhere` alone
decides which objects belong to a plugin or to a running client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from rabbit_chx.base.plugins import why_no_type
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.releases import Release
from rabbit_chx.mirror.ring import Destination, Ring, ToExchange, parse_weight
from rabbit_chx.topology.graph import sources_in_order, undeclared_targets
from rabbit_chx.topology.model import (
    CONSISTENT_HASH,
    DELIVERY_LIMIT,
    MODULUS_HASH,
    RESERVED,
    Binding,
    Exchange,
    Observed,
    Policy,
    Queue,
    Slots,
    Topology,
    as_ring_bindings,
    in_order_of,
    wire_text,
)
from rabbit_chx.topology.slots.slot_division import divide

_Objects: TypeAlias = Sequence[Exchange | Queue | Policy]
_PROPERTIES: Final = {
    Exchange: ("type", "durable", "auto_delete", "internal"),
    Queue: ("type", "durable", "auto_delete", "exclusive"),
    Policy: ("pattern", "apply_to", "priority", "definition"),
}


@dataclass(frozen=True, slots=True)
class MissingType:
    """An exchange type that the broker lacks."""

    type: str
    exchanges: tuple[str, ...]
    """The exchanges of this type."""
    reason: str
    """Why the type is missing, with a hint."""


@dataclass(frozen=True, slots=True)
class Property:
    """A property of an exchange, queue or policy that differs."""

    name: str
    wanted: object
    found: object
    is_argument: bool = False


_NO_LIMIT: Final = Property(DELIVERY_LIMIT, -1, None, is_argument=True)
"""No difference of an ordered queue: a policy can lift the limit of a queue that lacks the argument."""


@dataclass(frozen=True, slots=True)
class ObjectDifference:
    """An exchange, queue or policy that is missing (nothing found), extra (nothing wanted) or different."""

    wanted: Exchange | Queue | Policy | None
    found: Exchange | Queue | Policy | None

    @property
    def properties(self) -> tuple[Property, ...]:
        """The properties that differ, if the object is both wanted and found."""
        if self.wanted is None or self.found is None:
            return ()
        return changed_properties(self.wanted, self.found)


@dataclass(frozen=True, slots=True)
class BindingDifference:
    """A binding of an exchange without a ring that is missing (nothing found) or extra (nothing wanted)."""

    wanted: Binding | None
    found: Binding | None
    optional: bool = False
    """Whether the binding may stay: other programs may add bindings to an exchange that does not hash."""

    @property
    def binding(self) -> Binding:
        """The wanted binding, or else the one that was found."""
        binding = self.wanted or self.found
        assert binding is not None
        return binding


DestinationKind: TypeAlias = Literal["missing", "extra", "weight", "arguments", "duplicate", "dead"]


@dataclass(frozen=True, slots=True)
class DestinationDifference:
    """A destination of a ring whose binding differs from the file."""

    kind: DestinationKind
    destination: Destination
    wanted: Binding | None
    found: tuple[Binding, ...]
    keep: Binding | None = None
    """The one binding to keep, if unbinding its duplicates moves no keys, so that the repair is possible in place."""
    is_dead: bool = False
    """Whether the destination is bound but has no bucket."""
    is_spare: bool = False
    """Whether the wanted binding is listed and has its buckets, as far as is known, so that the others have no effect."""


@dataclass(frozen=True, slots=True)
class RingDifference:
    """A consistent-hash exchange whose ring differs, or may differ, from the ring of the file."""

    exchange: str
    wanted: tuple[Binding, ...]
    found: tuple[Binding, ...]
    ring: Ring
    """The ring on the broker; its order may be unknown."""
    destinations: tuple[DestinationDifference, ...] = ()
    why_unknown: str = ""
    """The reason why the order of the buckets is unknown, or empty."""


@dataclass(frozen=True, slots=True)
class SlotsDifference:
    """Slots that lead to other queues than they should."""

    slots: Slots
    division: Mapping[str, str]
    """The intended queue of each slot."""
    rings: tuple[RingDifference, ...]
    """The slots that differ."""


Difference: TypeAlias = MissingType | ObjectDifference | BindingDifference | RingDifference | SlotsDifference


def diff(wanted: Topology, observed: Observed) -> tuple[Difference, ...]:
    """All differences between a topology and a broker.

    Missing types come first, then objects, slots and bindings. The bindings of an exchange follow those of the
    exchanges that it leads to.
    """
    whole, there = wanted.expanded(), observed.topology
    slot_names = {name for slots in wanted.slots for name in slots.names}
    used = undeclared_targets(whole, there)
    found: list[Difference] = [
        *_types(whole.exchanges, observed),
        *_objects(whole.exchanges, there.exchanges, used),
        *_objects(whole.queues, there.queues, used),
        *_objects(whole.policies, there.policies),
    ]
    for slots in wanted.slots:  # divided with the fewest changes
        division = divide(slots.names, slots.queues, slot_holders(slots, observed))
        changes = slots_difference(slots, division, observed)
        found += [changes] if changes.rings else []
    for source in sources_in_order(whole):
        if source not in slot_names:
            found += _bindings(source, whole, observed)
    return tuple(found)


# Exchanges, queues and policies


def _types(wanted: Sequence[Exchange], observed: Observed) -> Iterator[MissingType]:
    exchanges: dict[str, list[str]] = {}
    for each in wanted:
        exchanges.setdefault(each.type, []).append(each.name)
    for type_, names in exchanges.items():
        if observed.exchange_types is not None and type_ not in observed.exchange_types:
            yield MissingType(type_, tuple(names), why_no_type(type_))


def _objects(
    wanted: _Objects, there: _Objects, used: Container[Destination] = ()
) -> Iterator[ObjectDifference]:
    """The objects that differ; those that the settings of the file use, but do not declare, are not extra."""
    live = {each.name: each for each in there}
    for each in wanted:
        found = live.get(each.name)
        if found is None or changed_properties(each, found):
            yield ObjectDifference(each, found)
    named = {each.name for each in wanted}
    for each in there:
        destination = each.name if isinstance(each, Queue) else ToExchange(each.name)
        if each.name not in named and destination not in used and not owned_elsewhere(each):
            yield ObjectDifference(None, each)


def changed_properties(
    wanted: Exchange | Queue | Policy, found: Exchange | Queue | Policy
) -> tuple[Property, ...]:
    """The properties and arguments in which two objects of one name differ."""
    is_ordered = isinstance(wanted, Queue) and wanted.is_ordered
    changed = [
        Property(name.replace("_", "-"), getattr(wanted, name), getattr(found, name))
        for name in _PROPERTIES[type(wanted)]
    ]
    ours, theirs = getattr(wanted, "arguments", {}), getattr(found, "arguments", {})
    changed += [
        Property(name, ours.get(name), theirs.get(name), is_argument=True)
        for name in sorted({*ours, *theirs})
    ]
    return tuple(
        each
        for each in changed
        if wire_text(each.wanted) != wire_text(each.found) and not (is_ordered and each == _NO_LIMIT)
    )


def owned_elsewhere(thing: Exchange | Queue | Policy) -> bool:
    """Whether the broker, a plugin or a running client creates and deletes the object, so that no file manages it."""
    if isinstance(thing, Policy):
        return False
    reserved = not thing.name or thing.name.startswith((RESERVED, *_OF_CLIENTS)) or is_shard(thing.name)
    federated = "x-internal-purpose" in thing.arguments
    return reserved or federated or thing.auto_delete or getattr(thing, "exclusive", False)


_OF_CLIENTS: Final = ("mqtt-subscription-", "mqtt-will-", "stomp-subscription-")
"""Prefixes of the queues that the MQTT and STOMP plugins keep while a client is disconnected."""


# rabbit_sharding_util.erl, make_queue_name/3.
def is_shard(destination: Destination) -> bool:
    """Whether the sharding plugin created the queue, so that only its policy manages it."""
    return isinstance(destination, str) and destination.startswith("sharding: ")


# Bindings


def _bindings(source: str, whole: Topology, observed: Observed) -> Iterator[Difference]:
    live = observed.topology.exchange(source)
    exchange = whole.exchange(source) or live
    if exchange is not None and live is not None and live.type != exchange.type:
        return  # bindings of another exchange type mean something else
    if exchange is not None and exchange.type == CONSISTENT_HASH:
        yield from _ring(source, whole, observed)
        return
    hashes = exchange is not None and exchange.type == MODULUS_HASH
    wanted = {each._identity: each for each in whole.bindings_from(source)}
    found = {each._identity: each for each in observed.topology.bindings_from(source)}
    for identity, binding in wanted.items():
        if identity not in found:
            yield BindingDifference(binding, None)
    for identity, binding in found.items():
        if identity in wanted or is_shard(binding.destination):
            continue
        if hashes or not _is_owned_elsewhere(binding.destination, observed.topology):
            yield BindingDifference(None, binding, optional=not hashes)


def _is_owned_elsewhere(destination: Destination, there: Topology) -> bool:
    found = there.queue(destination) if isinstance(destination, str) else there.exchange(destination.name)
    is_built_in = isinstance(found, Exchange) and found.name.startswith(RESERVED)
    return found is not None and owned_elsewhere(found) and not is_built_in


def ring_of(exchange: str, observed: Observed) -> Ring:
    """The ring of an exchange on the broker, with its listed bindings and their arguments."""
    bindings = as_ring_bindings(observed.topology.bindings_from(exchange))
    known = observed.rings.get(exchange)
    if known is not None:
        return Ring(bindings, known.runs, observed.release, known.why_unknown)
    if len(bindings) > 1:
        return Ring(bindings, None, observed.release, "it has not been read")
    return Ring.of(bindings, release=observed.release)


def _ring(exchange: str, whole: Topology, observed: Observed) -> Iterator[RingDifference]:
    """The difference of one ring, if any. The sharding plugin manages rings over shards."""
    found = observed.topology.bindings_from(exchange)
    if any(is_shard(binding.destination) for binding in found):
        return
    try:
        ring = ring_of(exchange, observed)
    except InvalidValue as error:  # an old release accepted a weight that this package rejects
        ring = Ring((), None, observed.release, str(error))
    wanted, any_order = whole.bindings_from(exchange), exchange in whole.unordered
    wanted = in_order_of(ring, wanted) if any_order else wanted
    why = "" if ring.known else ring.why_unknown or "it has not been read"
    destinations = tuple(destination_differences(wanted, found, ring))
    target = tuple((binding.destination, weight_of(binding)) for binding in wanted)
    if destinations or not (ring.runs == target or (any_order and not ring.known)):
        yield RingDifference(exchange, wanted, found, ring, destinations, why)


def destination_differences(
    wanted: Iterable[Binding], found: Iterable[Binding], ring: Ring
) -> Iterator[DestinationDifference]:
    """The destinations of one ring whose bindings differ from the file."""
    live: dict[Destination, list[Binding]] = {}
    for binding in found:
        live.setdefault(binding.destination, []).append(binding)
    buckets = None if ring.runs is None else dict(ring.runs)
    first: dict[Destination, Binding] = {}  # as in Ring.bind, of several only the first counts
    for binding in wanted:
        first.setdefault(binding.destination, binding)
    for binding in first.values():
        listed = tuple(live.pop(binding.destination, ()))
        dead = bool(listed) and buckets is not None and binding.destination not in buckets
        kind = "dead" if dead else _kind(binding, listed, ring.release)
        if kind is not None:
            keep = None if dead else _kept(binding, listed, ring.release)
            weight = weight_of(binding)
            has_buckets = (buckets or {}).get(binding.destination, weight) == weight
            spare = kind == "duplicate" and has_buckets and _is_listed(binding, listed)
            yield DestinationDifference(kind, binding.destination, binding, listed, keep, dead, spare)
    for destination, bindings in live.items():
        is_dead = buckets is not None and destination not in buckets
        yield DestinationDifference("extra", destination, None, tuple(bindings), is_dead=is_dead)


def _kind(wanted: Binding, found: Sequence[Binding], release: Release) -> DestinationKind | None:
    if not found:
        return "missing"
    if any(weight_of(each) != weight_of(wanted) for each in found):
        return "duplicate" if len(found) > 1 else "weight"
    same = {wire_text(dict(each.arguments)) for each in found}
    if same != {wire_text(dict(wanted.arguments))}:
        return "duplicate" if len(found) > 1 else "arguments"
    if not release.unbind_spares_duplicates:  # unbinding either would silence the queue
        return None if len({each.key for each in found}) == 1 else "duplicate"
    return "duplicate" if len(found) > 1 else None


# rabbit_db_binding:delete_v2/2, as in Ring.unbind: from 4.3 on, duplicates keep the buckets until the last one is gone.
def _kept(wanted: Binding, found: Sequence[Binding], release: Release) -> Binding | None:
    """The binding to keep, if unbinding the duplicates moves no keys."""
    keys = {each.key for each in found}
    if not release.unbind_spares_duplicates or len(keys) != 1 or weight_of(found[0]) != weight_of(wanted):
        return None
    return replace(wanted, key=found[0].key)


def _is_listed(wanted: Binding, found: Sequence[Binding]) -> bool:
    """Whether a binding is among those of its destination."""
    weight, arguments = weight_of(wanted), wire_text(dict(wanted.arguments))
    return any(weight_of(each) == weight and wire_text(dict(each.arguments)) == arguments for each in found)


def weight_of(binding: Binding) -> int | str:
    """The weight of a binding in a ring, or its key if the key is not a valid weight."""
    try:
        return parse_weight(binding.key, of=binding.destination)
    except InvalidValue:
        return binding.key


# Slots


def slots_difference(slots: Slots, division: Mapping[str, str], observed: Observed) -> SlotsDifference:
    """The slots that do not lead to their queue in a division."""
    differing = []
    for slot, queue in division.items():
        ring = ring_of(slot, observed)
        found = observed.topology.bindings_from(slot)
        key = next((each.key for each in found if each.destination == queue), "1")
        wanted = (Binding(slot, queue, key),)  # the weight of a slot's only queue does not matter
        destinations = tuple(destination_differences(wanted, found, ring))
        if destinations:
            differing.append(RingDifference(slot, wanted, found, ring, destinations))
    return SlotsDifference(slots, division, tuple(differing))


def slot_holders(slots: Slots, observed: Observed) -> dict[str, tuple[Destination, ...]]:
    """The destinations of each slot. If an unfinished change left several, the last is the new one.

    A change binds the new destination before it unbinds the old one. If the order is not known, the destination with
    the fewest slots is last, and destinations that are bound more than once are omitted.
    """
    bound = {
        slot: Counter(each.destination for each in observed.topology.bindings_from(slot))
        for slot in slots.names
    }
    counts = Counter(destination for listed in bound.values() for destination in listed)
    holders = {}
    for slot, listed in bound.items():
        ring = ring_of(slot, observed)
        once = [destination for destination, times in listed.items() if times == 1]
        once.sort(key=lambda destination: -counts[destination])
        holders[slot] = ring.destinations if ring.runs else tuple(once)
    return holders
