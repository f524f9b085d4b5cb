"""The topology with more or fewer queues behind one exchange. This module does no IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rabbit_chx.errors import InvalidValue
from rabbit_chx.ring import Destination
from rabbit_chx.topology.model import MODULUS_HASH, Binding, Topology, hashing_exchange
from rabbit_chx.topology.planning.what_if import changed_weights, next_names, weights_of


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
    found = hashing_exchange(topology, exchange)
    now = weights_of(topology, found)
    if to is not None:
        add, remove = max(0, to - len(now)), max(0, len(now) - to)
    after = changed_weights(exchange, now, next_names(exchange, now, add), remove, {})
    if not after:
        gone = remove if isinstance(remove, int) else ", ".join(remove)
        raise InvalidValue("queues to remove", gone, f"fewer than the {len(now)} queues of {exchange!r}")
    return _declared(_bound(topology, exchange, found.type, after), now, after)


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
    """Declare new queues like the last one and drop removed queues that nothing else leads to."""
    used = {each.destination for each in topology.bindings}
    used |= {queue for slots in topology.slots for queue in slots.queues}
    gone = before.keys() - used
    like = next((found for name in reversed(list(before)) if (found := topology.queue(str(name)))), None)
    queues = [each for each in topology.queues if each.name not in gone]
    if like is not None:
        new = (str(name) for name in after if name not in before)
        queues += [replace(like, name=name) for name in new if not topology.queue(name)]
    return replace(topology, queues=tuple(queues))
