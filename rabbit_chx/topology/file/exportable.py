"""What of a virtual host, as read from a broker, belongs in a topology file; the file always loads and lints."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rabbit_chx.names import name_flaw
from rabbit_chx.releases import MAX_WEIGHT
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Policy, Queue, Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rabbit_chx.ring import Destination, Ring

__all__ = ["Export", "exportable", "natural"]

_OURS: Final = "rabbit-chx."
_NOT_DECLARED: Final = ("amq.", _OURS)

_Named = TypeVar("_Named", Exchange, Queue, Policy)


@dataclass(frozen=True, slots=True)
class Export:
    """A topology for a file, and what of the broker it does not show."""

    topology: Topology
    notes: tuple[str, ...]


def natural(name: str) -> tuple[Any, ...]:
    """A sort key that orders numbers within names by value: q2 before q10."""
    parts = re.split(r"([0-9]+)", name)
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts)), name


def exportable(topology: Topology, rings: Mapping[str, Ring] | None = None) -> Export:
    """The topology for a file, in an order that depends only on names, and on bind order within an exchange.

    Left out are the broker's own exchanges (their bindings stay), exclusive queues and those that the broker named,
    default bindings, names that a file cannot hold, and bindings that have no effect on a ring.
    """
    notes: list[str] = []
    exchanges = _kept("exchange", topology.exchanges, notes)
    queues = _kept("queue", (each for each in topology.queues if not each.exclusive), notes)
    hashing = {each.name for each in exchanges if each.type == CONSISTENT_HASH}
    by_source = _by_source(topology, {each.name for each in queues})
    bindings: list[Binding] = []
    for source in sorted(by_source, key=natural):
        if source in hashing:
            bindings += _ring_bindings(source, by_source[source], (rings or {}).get(source), notes)
        else:
            bindings += _unique(by_source[source])
    kept = replace(
        topology,
        exchanges=tuple(exchanges),
        queues=tuple(queues),
        bindings=tuple(bindings),
        policies=tuple(_kept("policy", topology.policies, notes)),
        slots=tuple(sorted(topology.slots, key=lambda each: natural(each.exchange))),
    )
    return Export(kept, tuple(notes))


def _kept(kind: str, objects: Iterable[_Named], notes: list[str]) -> list[_Named]:
    """The objects that a file can declare, by name."""
    kept = []
    for each in sorted(objects, key=lambda each: natural(each.name)):
        if not each.name or (kind != "policy" and each.name.startswith(_NOT_DECLARED)):
            continue
        flaw = name_flaw(each.name)
        if flaw:
            notes.append(f"{kind} {each.name!r} is left out: a topology file cannot hold {flaw}")
        else:
            kept.append(each)
    return kept


def _by_source(topology: Topology, queues: set[str]) -> dict[str, list[Binding]]:
    """The bindings that a file can name; those of the default exchange follow from the queues."""
    found: dict[str, list[Binding]] = {}
    for bound in topology.bindings:
        to = bound.destination
        is_kept = not name_flaw(to.name) if isinstance(to, ToExchange) else to in queues
        if is_kept and not name_flaw(bound.source) and not bound.source.startswith(_OURS):
            found.setdefault(bound.source, []).append(bound)
    return found


def _unique(bindings: Iterable[Binding]) -> Iterator[Binding]:
    """The bindings without those that differ only in the number of the bind command."""
    seen: set[str] = set()
    for bound in bindings:
        plain = bound.unnumbered
        if repr(plain) not in seen:
            seen.add(repr(plain))
            yield plain


def _ring_bindings(
    exchange: str, bindings: list[Binding], ring: Ring | None, notes: list[str]
) -> Iterator[Binding]:
    """One binding per destination, with the weight that is in effect.

    The broker ignores a second binding of a destination, and removes all its buckets when either is unbound.
    """
    buckets: dict[Destination, int] | None = None
    if ring is not None and ring.known:
        buckets = {}
        for destination in ring.bucket_map:
            buckets[destination] = buckets.get(destination, 0) + 1
    seen: set[Destination] = set()
    for bound in bindings:
        destination = bound.destination
        if destination in seen:
            notes.append(f"exchange {exchange!r}: a second binding of {str(destination)!r} is left out")
            continue
        if buckets is not None and destination not in buckets:
            notes.append(
                f"exchange {exchange!r}: the binding of {str(destination)!r} has no buckets and is left out"
            )
            continue
        seen.add(destination)
        weight = int(bound.key) if buckets is None else buckets[destination]
        if weight > MAX_WEIGHT:
            notes.append(
                f"exchange {exchange!r}: the weight of {str(destination)!r} is {weight}, written as {MAX_WEIGHT}"
            )
        plain = bound.unnumbered
        is_as_bound = int(bound.key) == weight <= MAX_WEIGHT
        yield plain if is_as_bound else replace(plain, key=str(min(weight, MAX_WEIGHT)))
