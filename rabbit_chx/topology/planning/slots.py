"""Slots: which slot leads to which queue, and the fewest that have to be pointed elsewhere.

A slot is an exchange with one queue, so nothing is hashed in it: binding the new queue and then unbinding the old
one sends every message to exactly one of the two, and moves the keys of that slot and no other. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from rabbit_chx.errors import InvalidValue
from rabbit_chx.kernel.table import SEEDS
from rabbit_chx.movement import moved, moved_through, shares
from rabbit_chx.partitioning import ModulusHashExchange
from rabbit_chx.releases import Release, Store
from rabbit_chx.ring import Ring, ToExchange
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Binding
from rabbit_chx.topology.planning.ring_paths import path_to, spoiled
from rabbit_chx.topology.planning.steps import Bind, Strategy, Unbind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rabbit_chx.movement import MovementTracker
    from rabbit_chx.ring import Destination
    from rabbit_chx.topology.model import Exchange, Observed, Slots
    from rabbit_chx.topology.planning.ring_paths import Case
    from rabbit_chx.topology.planning.steps import Step

__all__ = [
    "SlotPlan",
    "divide",
    "modulus_shares",
    "plan_slots",
    "quotas",
    "recommended_count",
    "slots_strategy",
]

_HASHES: Final = 1 << 27
"""How many values phash2 has."""


def quotas(count: int, weights: Mapping[str, int], have: Mapping[str, int] | None = None) -> dict[str, int]:
    """How many of so many slots each queue gets: by largest remainder, ties to who would have to give.

    >>> quotas(64, {"a": 1, "b": 1, "c": 3})
    {'a': 13, 'b': 13, 'c': 38}
    """
    total = sum(weights.values())
    if not total:
        return {}
    shares = {queue: divmod(count * weight, total) for queue, weight in weights.items()}
    left = count - sum(whole for whole, _ in shares.values())
    order = list(weights)
    first = sorted(
        order,
        key=lambda queue: (
            -shares[queue][1],
            -((have or {}).get(queue, 0) > shares[queue][0]),
            order.index(queue),
        ),
    )
    return {queue: shares[queue][0] + (queue in first[:left]) for queue in order}


def divide(
    names: Sequence[str],
    weights: Mapping[str, int],
    holders: Mapping[str, Sequence[Destination]] | None = None,
) -> dict[str, str]:
    """The queue of each slot, with the fewest slots pointed elsewhere.

    Args:
        names: the slots.
        weights: the queues that share them.
        holders: the destinations that each slot has now, the last bound last. A slot with two is a change that
            was begun, so the last one comes first into question.
    """
    held = {slot: [queue for queue in (holders or {}).get(slot, ()) if queue in weights] for slot in names}
    have = {queue: sum(held[slot] == [queue] for slot in names) for queue in weights}
    quota = quotas(len(names), weights, have)
    division: dict[str, str] = {}
    for slot in sorted(names, key=lambda slot: len(held[slot])):  # those with a choice choose last
        queue = next((queue for queue in reversed(held[slot]) if quota[str(queue)]), None)
        if queue is not None:
            division[slot] = str(queue)
            quota[str(queue)] -= 1
    for slot in names:
        if slot not in division and quota:
            queue = max(quota, key=lambda queue: quota[queue])
            division[slot] = queue
            quota[queue] -= 1
    return {slot: division[slot] for slot in names if slot in division}


def modulus_shares(slots: Slots, release: Release) -> dict[Destination, float]:
    """The exact share of all hashed keys that an x-modulus-hash exchange sends to each slot."""
    bindings = [(bound.destination, bound.key) for bound in slots.top_bindings]
    counted = ModulusHashExchange(bindings, release=release).destinations
    count = len(counted)
    return {slot: len(range(place, _HASHES, count)) / _HASHES for place, slot in enumerate(counted)}


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What becomes of the slots under one top exchange."""

    steps: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    """The commands for each slot that is not as it should be."""
    moved: float | None = 0.0
    """The exact share of the top's keys that go elsewhere in the end."""
    notes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def plan_slots(
    slots: Slots,
    top: Exchange,
    observed: Observed,
    waiting: Callable[[Iterable[Destination]], int | None],
) -> SlotPlan:
    """The steps from the slots as they are to a division of the queues by their weights."""
    refusals = tuple(_refusals(slots, top, observed))
    if refusals:
        return SlotPlan(refusals=refusals)
    rings = {slot: _ring(slot, observed) for slot in slots.names}
    holders = {slot: _destinations(ring) for slot, ring in rings.items()}
    division = divide(slots.names, slots.queues, holders)
    flows = bool(observed.topology.bindings_from(slots.exchange))
    weigh = _Scale(slots, top, observed) if flows else None
    steps: dict[str, tuple[Step, ...]] = {}
    total: float | None = 0.0
    for slot, queue in division.items():
        commands = list(_commands(slot, queue, rings[slot]))
        if commands:
            steps[slot] = tuple(_weighed(slots.exchange, slot, commands, weigh, waiting))
            share = 0.0 if weigh is None else weigh(slot, commands[0][2], commands[-1][3])
            total = None if total is None or share is None else total + share
    return SlotPlan(steps, total, tuple(_notes(slots, division, holders)))


def _ring(slot: str, observed: Observed) -> Ring:
    """The ring of a slot, from the listed bindings where nobody read it."""
    known = observed.rings.get(slot)
    listed = Ring(release=observed.release)
    for bound in observed.topology.bindings_from(slot):
        listed = listed.bind(bound.destination, bound.key, bound.arguments)
    if known is None or known.runs is None:
        return listed
    return Ring(listed.bindings, known.runs, observed.release)


def _destinations(ring: Ring) -> tuple[Destination, ...]:
    """Who holds a slot, last bound last; whoever is bound twice or has no bucket holds nothing surely."""
    bad = spoiled(ring)
    return tuple(destination for destination in ring.destinations if destination not in bad)


_Command: TypeAlias = "tuple[type[Bind | Unbind], Binding, Ring, Ring]"


def _commands(slot: str, queue: str, ring: Ring) -> Iterator[_Command]:
    """The commands that leave the slot to one queue, each with the ring before and after."""
    path = path_to(slot, ring, ((queue, _weight(ring, queue)),))
    for (kind, bound), after in zip(path.commands, path.rings, strict=True):
        yield kind, bound, ring, after
        ring = after


def _weight(ring: Ring, queue: str) -> int:
    """One bucket is enough, and any number is as good for a queue that is alone."""
    listed = [binding.weight for binding in ring.bindings if binding.destination == queue]
    return listed[0] if len(listed) == 1 else 1


class _Scale:
    """What a change within a slot moves, as a share of the top's keys; None where the top's ring is unknown."""

    def __init__(self, slots: Slots, top: Exchange, observed: Observed) -> None:
        self._top: Ring | None = None
        self._shares: Mapping[Destination, float] | None
        if top.type == MODULUS_HASH:
            self._shares = modulus_shares(slots, observed.release)
            return
        ring = observed.rings.get(slots.exchange)
        if ring is None or ring.runs is None:
            self._shares = None
            return
        self._shares = shares(ring)
        if top.hash_header is None and top.hash_property is None:
            self._top = ring  # it hashes what the slots hash

    def __call__(self, slot: str, old: Ring, new: Ring) -> float | None:
        if self._shares is None:
            return None
        share = self._shares.get(ToExchange(slot), 0.0)
        if len(old.destinations) < 2 and len(new.destinations) < 2:
            return share if old.destinations != new.destinations else 0.0
        if self._top is not None:
            return moved_through(self._top, ToExchange(slot), old, new)
        return share * moved(old, new).share  # two hashes of different things know nothing of each other


def _weighed(
    top: str,
    slot: str,
    commands: Iterable[_Command],
    weigh: _Scale | None,
    waiting: Callable[[Iterable[Destination]], int | None],
) -> Iterator[Step]:
    for kind, bound, before, after in commands:
        share = 0.0 if weigh is None else weigh(slot, before, after)
        losers = before.destinations if kind is Bind else (bound.destination,)
        yield kind(bound, exchange_moved=top, moved=share, at_risk=0 if share == 0.0 else waiting(losers))


def _notes(
    slots: Slots, division: Mapping[str, str], holders: Mapping[str, Sequence[Destination]]
) -> Iterator[str]:
    idle = [queue for queue in slots.queues if queue not in division.values()]
    if idle:
        yield (
            f"{slots.count} slots under {slots.exchange!r} leave none for {', '.join(map(repr, idle))}: give it more "
            "weight, or build a new exchange with more slots"
        )
    unfinished = [slot for slot, held in holders.items() if len(held) > 1]
    if unfinished:
        yield f"{len(unfinished)} slots under {slots.exchange!r} have two queues: a change that was begun is finished"


# rabbit_sharding_exchange_type_modulus_hash.erl on Khepri counts destinations in an order of no rule.
def _refusals(slots: Slots, top: Exchange, observed: Observed) -> Iterator[str]:
    release = observed.release
    if top.type == MODULUS_HASH and not release.modulus_sorts_destinations and release.store is Store.KHEPRI:
        yield (
            f"exchange {top.name!r}: x-modulus-hash of RabbitMQ {release} on Khepri counts its destinations in an "
            f"order of no rule; give it the type {CONSISTENT_HASH}, or use 4.3 or later"
        )
    if top.type not in {MODULUS_HASH, CONSISTENT_HASH}:
        yield f"exchange {top.name!r} of type {top.type} cannot stand over slots: use {MODULUS_HASH} or {CONSISTENT_HASH}"
    there = observed.topology
    bound = [binding.destination for binding in there.bindings_from(top.name)]
    own = {ToExchange(name) for name in slots.names}
    foreign = [str(destination) for destination in bound if destination not in own]
    if foreign:
        yield (
            f"exchange {top.name!r} leads to {', '.join(foreign[:3])}{' and others' * (len(foreign) > 3)}, which are "
            f"none of its {slots.count} slots: turning a ring into slots, or changing their number, moves nearly all "
            "keys; give the new exchange another name in the file and switch over to it (blue/green)"
        )
    exist = {exchange.name for exchange in there.exchanges}
    missing = [name for name in slots.names if name not in exist]
    # An apply that was cut off has declared all slots before it binds the first.
    if bound and not foreign and missing == list(slots.names[len(set(bound)) :]) and missing:
        yield (
            f"exchange {top.name!r} has {len(set(bound))} slots and the file says {slots.count}: changing their number "
            "moves nearly all keys; give the new exchange another name in the file and switch over to it (blue/green)"
        )


def recommended_count(queues: int) -> int:
    """How many slots a new top exchange should have: a power of two, at least 16 a queue where 256 are enough."""
    if queues < 1:
        raise InvalidValue("number of queues", queues, "at least one")
    return next((count for count in (64, 128) if count >= 16 * queues), 256)


def slots_strategy(case: Case, walker: MovementTracker | None) -> Strategy | None:
    """What it costs to go over to slots once, under a top of the same kind; None where not only queues are bound."""
    queues = [destination for destination, _ in case.target if isinstance(destination, str)]
    count = recommended_count(max(1, len(queues)))
    if len(queues) < len(case.target) or not queues or len(queues) > count:
        return None
    weights = {str(queue): weight for queue, weight in case.target}
    share = None
    if walker is not None:
        division = divide([str(number) for number in range(count)], weights)
        known, counts = walker.overlap(count)
        rows = {destination: row for row, destination in enumerate(known)}
        kept = [counts[rows[queue], slot] for slot, queue in enumerate(division.values()) if queue in rows]
        share = 1 - sum(map(int, kept)) / SEEDS
    return Strategy(
        "slots",
        f"build a new exchange with {count} slots and switch over to it once: from then on a queue more or less moves "
        f"the keys of the slots that it takes or gives, 1/{count} each (counted for a top of type {CONSISTENT_HASH})",
        moved=share,
        moved_between=share,
    )
