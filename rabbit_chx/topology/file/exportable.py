"""What of a virtual host, as read from a broker, belongs in a topology file; the file always loads and lints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rabbit_chx.base.names import name_flaw
from rabbit_chx.mirror.releases import MAX_WEIGHT
from rabbit_chx.mirror.ring import Destination, Ring, RingBinding, ToExchange, parse_weight
from rabbit_chx.topology.model import (
    CONSISTENT_HASH,
    HASHING,
    OWN,
    RESERVED,
    Binding,
    Exchange,
    Policy,
    Queue,
    Topology,
    order_matters,
)

_Named = TypeVar("_Named", Exchange, Queue, Policy)


def _natural(name: str) -> tuple[Any, ...]:
    """A sort key that orders numbers within names by value: q2 before q10."""
    parts: list[Any] = re.split(r"([0-9]+)", name)
    # Of numbers without leading zeros, the longer one is greater; int() refuses very long ones.
    numbers = (part.lstrip("0") for part in parts[1::2])
    parts[1::2] = ((len(number), number) for number in numbers)
    return tuple(parts), name


def by_name(objects: Iterable[_Named]) -> tuple[_Named, ...]:
    """The objects in the order of their names, with numbers within names ordered by value."""
    return tuple(sorted(objects, key=lambda each: _natural(each.name)))


def exportable(
    topology: Topology, rings: Mapping[str, Ring] | None = None
) -> tuple[Topology, tuple[str, ...]]:
    """The topology for a file, and notes on what the file leaves out.

    The order depends only on names, and on bind order within an exchange.

    Left out are the broker's own exchanges (their bindings stay), exclusive queues and those that the broker named,
    default bindings, names that a file cannot hold, and bindings that have no effect on a ring.
    """
    notes: list[str] = []
    exchanges = by_name(_kept("exchange", topology.exchanges, notes))
    queues = by_name(_kept("queue", (each for each in topology.queues if not each.exclusive), notes))
    policies = by_name(_kept("policy", topology.policies, notes))
    hashing = {each.name: each.type for each in exchanges if each.type in HASHING}
    known: set[Destination] = {each.name for each in queues} | {ToExchange(each.name) for each in exchanges}
    bindings, unordered = _bindings(topology, known, hashing, rings or {}, notes)
    slots = tuple(sorted(topology.slots, key=lambda each: _natural(each.exchange)))
    kept = replace(
        topology,
        exchanges=exchanges,
        queues=queues,
        bindings=bindings,
        policies=policies,
        slots=slots,
        unordered=frozenset(unordered),
    )
    return kept, tuple(notes)


def _kept(kind: str, objects: Iterable[_Named], notes: list[str]) -> Iterator[_Named]:
    """The objects that a file can declare."""
    for each in objects:
        if not each.name or (kind != "policy" and each.name.startswith((RESERVED, OWN))):
            continue
        flaw = name_flaw(each.name)
        if flaw:
            notes.append(f"{kind} {each.name!r} is left out: a topology file cannot hold {flaw}")
        else:
            yield each


def _bindings(
    topology: Topology,
    known: set[Destination],
    hashing: Mapping[str, str],
    rings: Mapping[str, Ring],
    notes: list[str],
) -> tuple[tuple[Binding, ...], set[str]]:
    """The bindings that a file can hold, and the exchanges whose order it cannot."""
    bindings: list[Binding] = []
    unordered = set()
    for source in sorted({bound.source for bound in topology.bindings}, key=_natural):
        if not (source.startswith(RESERVED) or ToExchange(source) in known):
            continue
        listed = topology.bindings_from(source)
        ring = rings.get(source) if hashing.get(source) == CONSISTENT_HASH else None
        buckets = Counter(ring.bucket_map) if ring is not None and ring.known else None
        if buckets is not None:
            listed = tuple(_with_buckets(source, listed, buckets, notes))
        kept = [bound for bound in listed if _is_known(bound.destination, known)]
        missing = [bound for bound in listed if bound not in kept] if source in hashing else []
        effect = "predictions from the file are wrong while it is bound"
        if hashing.get(source) == CONSISTENT_HASH:
            kept = list(_ring_bindings(source, kept, buckets, notes))
            if (missing or source in topology.unordered) and order_matters(kept):
                unordered.add(source)
                effect = "the order is written as unknown"
        bindings += kept
        notes += [
            f"exchange {source!r}: {str(each.destination)!r} takes keys, but a file cannot declare it, so {effect}"
            for each in missing
        ]
    return tuple(bindings), unordered


def _is_known(destination: Destination, known: set[Destination]) -> bool:
    is_reserved = isinstance(destination, ToExchange) and destination.name.startswith(RESERVED)
    return is_reserved or destination in known


def _with_buckets(
    exchange: str, bindings: Iterable[Binding], buckets: Mapping[Destination, int], notes: list[str]
) -> Iterator[Binding]:
    for each in bindings:
        if each.destination in buckets:
            yield each
        else:
            notes.append(
                f"exchange {exchange!r}: the binding of {str(each.destination)!r} has no buckets and is left out"
            )


def _ring_bindings(
    exchange: str, bindings: Iterable[Binding], buckets: Mapping[Destination, int] | None, notes: list[str]
) -> Iterator[Binding]:
    """One binding per destination, with the weight that is in effect.

    The broker ignores a second binding of a destination, and removes all its buckets when either is unbound.
    """
    listed: dict[Destination, list[Binding]] = {}
    for each in bindings:
        listed.setdefault(each.destination, []).append(each)
    for destination, found in listed.items():
        notes += [f"exchange {exchange!r}: a second binding of {str(destination)!r} is left out"] * (
            len(found) - 1
        )
        plain_first = sorted(found, key=lambda each: bool(each.arguments))
        weight = weight_of(plain_first[0]) if buckets is None else buckets[destination]
        bound = min(plain_first, key=lambda each: weight_of(each) != weight)
        if weight > MAX_WEIGHT:
            notes.append(
                f"exchange {exchange!r}: the weight of {str(destination)!r} is {weight}, written as {MAX_WEIGHT}"
            )
        is_as_bound = weight_of(bound) == weight <= MAX_WEIGHT
        key = bound.key if is_as_bound else str(min(weight, MAX_WEIGHT))
        yield replace(bound, key=key)


def weight_of(bound: Binding | RingBinding) -> int:
    """The weight, which a live broker may have let exceed the limit of a file."""
    is_number = re.fullmatch(r"\+?[0-9]{1,255}", bound.key, re.ASCII)
    return (int(bound.key) if is_number else 0) or parse_weight(bound.key, of=bound.destination)
