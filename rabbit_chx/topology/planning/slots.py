"""The steps that point slots to other queues, and the keys that they move.

A slot is an exchange with one queue. Binding the new queue and then unbinding the old one sends every message to
exactly one of the two queues, and moves only the keys of that slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from rabbit_chx.base.text import counted
from rabbit_chx.mirror.kernel.table import SEEDS
from rabbit_chx.mirror.movement import MovementTracker, keys_of, moved, moved_among, shares
from rabbit_chx.mirror.partitioning import modulus_shares
from rabbit_chx.mirror.ring import Destination, Ring, ToExchange
from rabbit_chx.topology.diff import SlotsDifference, is_shard
from rabbit_chx.topology.model import CONSISTENT_HASH, HASHING, MODULUS_HASH, Exchange, Observed, Slots
from rabbit_chx.topology.planning.ring_paths import Case, Path, Runs, path_to
from rabbit_chx.topology.planning.steps import Bind, Step, Strategy, Unbind, ring_after
from rabbit_chx.topology.slots.slot_division import divide, recommended_count


def slot_steps(
    case: Case, repairs: Iterable[Step], top: str, scale: SlotScale | None
) -> tuple[tuple[Step, ...], float | None]:
    """The steps that leave a slot with one queue, and the exact share of the top exchange's keys that they move."""
    path = path_to(case, case.target)
    steps = list(repairs)
    rings = list(_rings(case, path))
    for (kind, binding), (before, after) in zip(path.commands, rings, strict=True):
        share = 0.0 if scale is None else scale(case.exchange, before, after)
        losers = before.destinations if kind is Bind and before.known else (binding.destination,)
        at_risk = 0 if share == 0.0 else case.waiting(losers)
        step = kind(binding, exchange_moved=top, moved=share, at_risk=at_risk)
        steps.append(replace(step, stay=after.destinations) if isinstance(step, Unbind) else step)
    total = scale(case.exchange, rings[0][0], rings[-1][1]) if scale is not None and rings else 0.0
    return tuple(steps), total


def _rings(case: Case, path: Path) -> Iterator[tuple[Ring, Ring]]:
    """The ring of the slot before and after each command, in listed order if the real order is unknown."""
    ring = case.before
    if ring.runs is None:
        listed = {each.destination: each.weight for each in ring.bindings}
        ring = Ring(ring.bindings, tuple(listed.items()), ring.release)
    steps = (kind(binding) for kind, binding in path.commands)
    return pairwise(accumulate(steps, ring_after, initial=ring))


class SlotScale:
    """The keys that a change of a slot moves, as a share of the top exchange's keys; None if its ring is unknown."""

    def __init__(self, slots: Slots, top: Exchange, observed: Observed) -> None:
        self._keys: Mapping[Destination, NDArray[np.intp]] | None = None
        self._shares: Mapping[Destination, float] | None = None
        ring = observed.rings.get(slots.exchange)
        if top.type == MODULUS_HASH:
            bindings = [(bound.destination, bound.key) for bound in slots._top_bindings]
            self._shares = modulus_shares(bindings, observed.release)
        elif ring is not None and ring.known:
            self._shares = shares(ring)
            if top.hash_header is None and top.hash_property is None:
                self._keys = keys_of(ring)  # the top exchange and the slots hash the same part of a message

    def __call__(self, slot: str, old: Ring, new: Ring) -> float | None:
        """The exact share that one change of a slot moves."""
        if self._shares is None:
            return None
        share = self._shares.get(ToExchange(slot), 0.0)
        if len(old.destinations) < 2 and len(new.destinations) < 2:
            return share if old.destinations != new.destinations else 0.0
        if self._keys is not None:
            return moved_among(self._keys[ToExchange(slot)], old, new) if share else 0.0
        numbers = {
            name: str(number)
            for number, name in enumerate(dict.fromkeys([*old.destinations, *new.destinations]))
        }
        before, after = (tuple((numbers[name], n) for name, n in ring.runs or ()) for ring in (old, new))
        return share * _moved(before, after)  # hashes of different parts of a message are independent


@lru_cache(maxsize=256)
def _moved(old: Runs, new: Runs) -> float:
    """The share that moves between two rings; all slots make the same few changes."""
    return moved(Ring(runs=old), Ring(runs=new)).share


def slot_notes(difference: SlotsDifference) -> Iterator[str]:
    """The notes of the plan about the slots."""
    slots = difference.slots
    idle = [queue for queue in slots.queues if queue not in difference.division.values()]
    if idle:
        yield (
            f"{slots.count} slots of {slots.exchange!r} leave none for {', '.join(map(repr, idle))}: give it more "
            "weight, or build a new exchange with more slots"
        )
    unfinished = [ring for ring in difference.rings if len({each.destination for each in ring.found}) > 1]
    if unfinished:
        yield (
            f"{counted(len(unfinished), 'slot')} of {slots.exchange!r} with two queues: this plan finishes an earlier change"
        )


# On Khepri before 4.3, rabbit_sharding_exchange_type_modulus_hash.erl has no defined order of destinations.
def slot_objections(slots: Slots, top: Exchange, observed: Observed) -> Iterator[str]:
    """The reasons why these slots cannot be planned."""
    release = observed.release
    if top.type == MODULUS_HASH and release.modulus_has_no_order:
        yield (
            f"exchange {top.name!r}: x-modulus-hash of RabbitMQ {release} on Khepri counts its destinations in an "
            f"undefined order; give it the type {CONSISTENT_HASH}, or use 4.3 or later"
        )
    if top.type not in HASHING:
        yield f"exchange {top.name!r} of type {top.type} cannot have slots: use {MODULUS_HASH} or {CONSISTENT_HASH}"
    there = observed.topology
    bound = [binding.destination for binding in there.bindings_from(top.name)]
    own = {ToExchange(name) for name in slots.names}
    foreign = [str(each) for each in bound if each not in own and not is_shard(each)]
    if foreign:
        yield (
            f"exchange {top.name!r} leads to {', '.join(foreign[:3])}{' and others' * (len(foreign) > 3)}, which are "
            f"not its {slots.count} slots: turning a ring into slots, or changing their number, moves nearly all "
            "keys; give the new exchange another name in the file and switch over to it (blue/green)"
        )
    exist = {exchange.name for exchange in there.exchanges}
    if not observed.bindings_seen and exist & set(slots.names):
        yield (
            f"exchange {top.name!r} has slots on the broker, and AMQP alone does not show to which queues they lead: "
            "binding them again could give a slot two queues. Use the management API"
        )
        return
    missing = [name for name in slots.names if name not in exist]
    # apply declares all slots before it binds the first, so an interrupted apply left all of them.
    if bound and not foreign and missing == list(slots.names[len(set(bound)) :]) and missing:
        yield (
            f"exchange {top.name!r} has {len(set(bound))} slots and the file says {slots.count}: changing their number "
            "moves nearly all keys; give the new exchange another name in the file and switch over to it (blue/green)"
        )


def slots_strategy(case: Case, tracker: MovementTracker | None) -> Strategy | None:
    """The strategy that converts the exchange to slots; None if anything but queues is bound."""
    queues = [destination for destination, _ in case.target if isinstance(destination, str)]
    count = recommended_count(len(queues))
    if len(queues) < len(case.target) or not queues or len(queues) > count:
        return None
    weights = {str(queue): weight for queue, weight in case.target}
    share = None
    if tracker is not None:
        division = divide([str(number) for number in range(count)], weights)
        known, counts = tracker.overlap(count)
        rows = {destination: row for row, destination in enumerate(known)}
        kept = [counts[rows[queue], slot] for slot, queue in enumerate(division.values()) if queue in rows]
        share = 1 - sum(map(int, kept)) / SEEDS
    return Strategy(
        "slots",
        f"build a new exchange with {count} slots and switch over to it once: from then on, adding or removing a "
        f"queue moves only that queue's slots, 1/{count} of the keys each (computed for an exchange of type {CONSISTENT_HASH})",
        moved=share,
        moved_between=share,
    )
