"""The topology with more or fewer queues behind one exchange. This module does no IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rabbit_chx.errors import InvalidValue
from rabbit_chx.ring import Destination, parse_weight
from rabbit_chx.topology.model import HASHING, MODULUS_HASH, Binding, Topology
from rabbit_chx.topology.planning.what_if import changed_weights


def scaled(
    topology: Topology,
    exchange: str,
    *,
    to: int | None = None,
    add: int | Sequence[str] = 0,
    remove: int | Sequence[str] = 0,
) -> Topology:
    """The topology after adding or removing queues of an exchange that hashes.

    Args:
        topology: of a file.
        exchange: whose queues change.
        to: the number of queues: new ones are added at the end, or the last ones are removed.
        add: the names or the number of new queues, which are declared like the last one.
        remove: the names of the queues to remove, or how many of the last ones.
    """
    found = topology.exchange(exchange)
    if found is None or found.type not in HASHING:
        known = ", ".join(each.name for each in topology.exchanges if each.type in HASHING) or "none"
        raise InvalidValue(
            "exchange", exchange, f"one of {known}", "Only an exchange that hashes can be scaled"
        )
    now = _weights(topology, exchange)
    if to is not None:
        add, remove = max(0, to - len(now)), max(0, len(now) - to)
    gone = (
        tuple(map(str, now))[len(now) - min(remove, len(now)) :] if isinstance(remove, int) else tuple(remove)
    )
    after = changed_weights(exchange, now, add, gone, {})
    if not after:
        raise InvalidValue(
            "queues to remove", ", ".join(gone), f"fewer than the {len(now)} queues of {exchange!r}"
        )
    return _declared(_bound(topology, exchange, found.type, after), now, after)


def _weights(topology: Topology, exchange: str) -> dict[Destination, int]:
    slots = topology.slots_of(exchange)
    if slots is not None:
        return {str(queue): weight for queue, weight in slots.queues.items()}
    return {
        each.destination: parse_weight(each.key or "1", of=each.destination)
        for each in topology.bindings_from(exchange)
    }


def _bound(topology: Topology, exchange: str, kind: str, after: Mapping[Destination, int]) -> Topology:
    """The topology with these queues bound to the exchange; bindings that stay are not changed."""
    if topology.slots_of(exchange) is not None:
        queues = {str(queue): weight for queue, weight in after.items()}
        slots = (
            replace(each, queues=queues) if each.exchange == exchange else each for each in topology.slots
        )
        return replace(topology, slots=tuple(slots))
    kept = {each.destination for each in topology.bindings_from(exchange)} & after.keys()
    stay = (each for each in topology.bindings if each.source != exchange or each.destination in kept)
    new = (
        Binding(exchange, queue, "" if kind == MODULUS_HASH else str(weight))
        for queue, weight in after.items()
        if queue not in kept
    )
    return replace(topology, bindings=(*stay, *new))


def _declared(
    topology: Topology, before: Mapping[Destination, int], after: Mapping[Destination, int]
) -> Topology:
    """Declare new queues like the last one, and drop removed queues that nothing else leads to."""
    used = {each.destination for each in topology.bindings}
    used |= {queue for slots in topology.slots for queue in slots.queues}
    gone = before.keys() - used
    like = next((found for name in reversed(list(before)) if (found := topology.queue(str(name)))), None)
    new = (
        []
        if like is None
        else [name for name in after.keys() - before.keys() if not topology.queue(str(name))]
    )
    queues = [each for each in topology.queues if each.name not in gone]
    if like is not None:
        queues += [replace(like, name=str(name)) for name in after if name in new]
    return replace(topology, queues=tuple(queues))
