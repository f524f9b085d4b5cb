"""The topology with more or fewer queues behind one exchange."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rabbit_chx.mirror.ring import Destination
from rabbit_chx.topology.graph import sources_of
from rabbit_chx.topology.model import (
    DELIVERY_LIMIT,
    MODULUS_HASH,
    SINGLE_ACTIVE_CONSUMER,
    Binding,
    Observed,
    Queue,
    Topology,
    bound_in,
    bound_to,
    hashing_exchange,
    hashing_exchanges,
)
from rabbit_chx.topology.planning.steps import Plan, Unbind
from rabbit_chx.topology.planning.what_if import MOST_NEW, changed_weights, next_names, weights_of

_ORDERED: Final = Queue("", "quorum", arguments={SINGLE_ACTIVE_CONSUMER: True, DELIVERY_LIMIT: -1})
"""A queue of ``preset: ordered``."""


def scaled(
    topology: Topology,
    exchange: str,
    *,
    to: int | None = None,
    add: int | Sequence[str] = 0,
    remove: int | Sequence[str] = 0,
    taken: Collection[Destination] = (),
) -> Topology:
    """The topology after adding or removing queues of an exchange that hashes.

    Args:
        topology: of a file.
        exchange: whose queues change.
        to: the number of queues: new ones are added at the end, or the last ones are removed.
        add: the names or the number of new queues, which are declared like the last one; those of an exchange without
            queues like the last one of another exchange that hashes, or else as ordered queues.
        remove: the names of the queues to remove, or how many of the last ones.
        taken: names that no new queue gets, like those of the queues that other exchanges of the topology lead to.
    """
    found = hashing_exchange(topology, exchange)
    now = weights_of(topology, found)
    if to is not None:
        add, remove = max(0, to - len(now)), max(0, len(now) - to)
    new = next_names(exchange, now, add, {*bound_in(topology), *taken})
    after = changed_weights(topology, exchange, now, new, remove, {})
    return _declared(_bound(topology, exchange, found.type, after), now, after)


def differing(
    file: Topology, wanted: Topology, exchange: str, made: Plan, observed: Observed, *, is_total: bool
) -> tuple[list[str], list[str]]:
    """The queues that only the broker has and those that only the file has, which a change of one exchange does not name.

    An interrupted change leaves the broker between the file and the topology that `scaled` made of it, so that a plan which
    repeats it has none of either. If it ``is_total``, the change names the new number of queues, whatever their number is now: an
    earlier one that the file does not have yet chose the names that continue its numbering.
    """
    named = {name: bound_to(file, name) | bound_to(wanted, name) for name in hashing_exchanges(file)}
    if is_total:
        named[exchange].update(_next_names(file, exchange))
    named |= {slot: named[slots.exchange] for slots in file.slots for slot in slots.names}
    unbound = [step.binding for step in made.steps if isinstance(step, Unbind)]
    gone = {
        str(each.destination)
        for each in unbound
        if each.source in named and each.destination not in named[each.source]
    }
    if is_total or not observed.topology.bindings_from(exchange):
        return sorted(gone), []
    stay = bound_to(file, exchange) & bound_to(wanted, exchange)
    sources = sources_of(file, exchange)
    bound = {each.destination for each in observed.topology.bindings if each.source in sources}
    return sorted(gone), sorted(map(str, stay - bound))


def possible_queues(file: Topology) -> set[Destination]:
    """The queues of a file, and those that `scaled` would add to its exchanges without being given names."""
    own = bound_in(file) | {queue.name for queue in file.queues}
    return own.union(*(_next_names(file, exchange) for exchange in hashing_exchanges(file)))


def _next_names(file: Topology, exchange: str) -> tuple[str, ...]:
    now = weights_of(file, hashing_exchange(file, exchange))
    return next_names(exchange, now, MOST_NEW, bound_in(file))


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
    gone = before.keys() - bound_in(topology)
    like = next((found for name in reversed(list(before)) if (found := topology.queue(str(name)))), None)
    if not before:
        hashed = set().union(*(bound_to(topology, name) for name in hashing_exchanges(topology)))
        others = (queue for queue in reversed(topology.queues) if queue.name in hashed)
        like = next(others, _ORDERED)
    queues = [each for each in topology.queues if each.name not in gone]
    if like is not None:
        new = (str(name) for name in after if name not in before)
        queues += [replace(like, name=name) for name in new if not topology.queue(name)]
    return replace(topology, queues=tuple(queues))
