"""Bindings of exchanges without a ring, the order of sources, and what waits behind a destination. Values only."""

from __future__ import annotations

import json
from math import lcm
from typing import TYPE_CHECKING, Final

import numpy as np

from rabbit_chx.errors import Unpredictable
from rabbit_chx.partitioning import ModulusHashExchange
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.planning.steps import Bind, Unbind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rabbit_chx.releases import Release
    from rabbit_chx.ring import Destination
    from rabbit_chx.topology.model import Binding, Observed, Topology

__all__ = [
    "grouped",
    "identity",
    "is_shard",
    "modulus_moved",
    "modulus_steps",
    "plain_changes",
    "sources_in_order",
    "waiting_behind",
]

_HASHES: Final = 1 << 27
"""How many values phash2 has."""


def identity(bound: Binding) -> str:
    """What makes two bindings the same to a file: all but the number of the bind command."""
    plain = bound.unnumbered
    to_exchange = isinstance(plain.destination, ToExchange)
    parts = [plain.source, to_exchange, str(plain.destination), plain.key, dict(plain.arguments)]
    return json.dumps(parts, sort_keys=True, default=repr)


def grouped(bindings: Iterable[Binding]) -> dict[str, list[Binding]]:
    """Bindings by their source, each group in its order."""
    groups: dict[str, list[Binding]] = {}
    for bound in bindings:
        groups.setdefault(bound.source, []).append(bound)
    return groups


def sources_in_order(topology: Topology) -> tuple[str, ...]:
    """Every exchange and every source of bindings, each after all exchanges that it leads to (circles aside)."""
    leads_to: dict[str, list[str]] = {exchange.name: [] for exchange in topology.exchanges}
    for bound in topology.bindings:
        following_ones = leads_to.setdefault(bound.source, [])
        if isinstance(bound.destination, ToExchange):
            following_ones.append(bound.destination.name)
    done: dict[str, None] = {}
    for start, targets in leads_to.items():
        # Depth first without recursion: a chain of exchanges may be longer than Python's stack.
        way: list[tuple[str, Iterator[str]]] = [(start, iter(targets))]
        entered = {start}
        while way:
            name, targets_left = way[-1]
            following = next(
                (each for each in targets_left if each not in done and each not in entered), None
            )
            if following is None:
                done.setdefault(name)
                way.pop()
            else:
                entered.add(following)
                way.append((following, iter(leads_to.get(following, ()))))
    return tuple(done)


# rabbit_sharding_util.erl, make_queue_name/3.
def is_shard(destination: Destination) -> bool:
    """Whether the sharding plugin made that queue, which its policy alone governs."""
    return isinstance(destination, str) and destination.startswith("sharding: ")


def plain_changes(wanted: Sequence[Binding], there: Sequence[Binding]) -> tuple[list[Binding], list[Binding]]:
    """The bindings that are missing, and those that the file does not name; what is a shard's is nobody's."""
    named = {identity(bound) for bound in wanted}
    live = {identity(bound) for bound in there}
    missing = list({identity(bound): bound for bound in wanted if identity(bound) not in live}.values())
    extra = [bound for bound in there if identity(bound) not in named and not is_shard(bound.destination)]
    return missing, extra


def modulus_steps(
    there: Sequence[Binding],
    missing: Sequence[Binding],
    extra: Sequence[Binding],
    release: Release,
    waiting: Callable[[Iterable[Destination]], int | None],
) -> tuple[list[Bind | Unbind], float | None]:
    """The steps that change an x-modulus-hash exchange, and what they move in the end."""
    steps: list[Bind | Unbind] = []
    now = list(there)
    kinds: list[tuple[type[Bind | Unbind], Binding]] = [
        *((Bind, one) for one in missing),
        *((Unbind, one) for one in extra),
    ]
    for kind, bound in kinds:
        after = [*now, bound] if kind is Bind else [one for one in now if one != bound]
        share = modulus_moved(now, after, release)
        losers = {one.destination for one in now}  # a changed number of bindings leaves no destination alone
        at_risk = waiting(losers) if now else 0
        steps.append(kind(bound, exchange_moved=bound.source, moved=share, at_risk=at_risk))
        now = after
    return steps, modulus_moved(there, now, release)


def modulus_moved(old: Sequence[Binding], new: Sequence[Binding], release: Release) -> float | None:
    """The exact share of hashed keys that change destination; None where the broker has no order.

    An exchange that led nowhere had nothing to move.
    """
    if not old:
        return 0.0
    if not new:
        return 1.0
    try:
        before, after = (
            ModulusHashExchange([(one.destination, one.key) for one in bounds], release=release).destinations
            for bounds in (old, new)
        )
    except Unpredictable:
        return None
    period = lcm(len(before), len(after))
    index = {destination: i for i, destination in enumerate(dict.fromkeys([*before, *after]))}
    columns = [np.resize([index[destination] for destination in side], period) for side in (before, after)]
    differs = columns[0] != columns[1]
    times, rest = divmod(_HASHES, period)
    return (times * int(np.count_nonzero(differs)) + int(np.count_nonzero(differs[:rest]))) / _HASHES


def waiting_behind(observed: Observed) -> Callable[[Iterable[Destination]], int | None]:
    """Counts the messages in queues, and in all queues that an exchange leads to; None where nobody counted."""
    there = {queue.name for queue in observed.topology.queues}
    leads_to = grouped(observed.topology.bindings)

    def waiting(destinations: Iterable[Destination]) -> int | None:
        ahead, seen, total = list(destinations), set[object](), 0
        while ahead:
            destination = ahead.pop()
            if destination in seen:
                continue
            seen.add(destination)
            if isinstance(destination, ToExchange):
                ahead += [bound.destination for bound in leads_to.get(destination.name, ())]
            elif destination in observed.backlog:
                total += observed.backlog[destination]
            elif destination in there:
                return None
        return total

    return waiting
