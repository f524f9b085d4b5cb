"""The exact cost of adding queues, removing queues or changing weights, computed without a broker.

The ring is computed from the bindings of the file in their order, so the result holds for a broker without drift.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Final

from rabbit_chx.base.limits import check_integer
from rabbit_chx.base.names import name_flaw
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.releases import NEWEST, Release
from rabbit_chx.mirror.ring import Destination, check_destination, each, name_of, parse_weight
from rabbit_chx.topology.model import (
    MODULUS_HASH,
    Binding,
    Exchange,
    Observed,
    RingSource,
    Slots,
    Topology,
    bound_in,
    hashing_exchange,
    ring_in_order,
)
from rabbit_chx.topology.planning.modulus_change import modulus_moved
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.ring_change import strategies
from rabbit_chx.topology.planning.ring_paths import Case
from rabbit_chx.topology.planning.steps import Bind, Strategy, Unbind
from rabbit_chx.topology.slots.slot_division import divide, quotas, too_few

MOST_NEW: Final = 1000


def assume_applied(topology: Topology, release: str | Release = NEWEST) -> Observed:
    """The state of a broker to which only this topology was applied.

    Slots are divided among their queues as by a first apply, and rings are in bind order.
    """
    parsed = Release.parse(release)
    queue_of = {
        slot: queue for slots in topology.slots for slot, queue in divide(slots.names, slots.queues).items()
    }
    applied = replace(topology.expanded(queue_of), co_partitioned=())
    rings = {exchange.name: applied.ring(exchange.name, parsed) for exchange in applied.hash_exchanges}
    sources: dict[str, RingSource] = {
        name: "node" if ring.known else "unknown" for name, ring in rings.items()
    }
    return Observed(applied, parsed, rings=rings, ring_sources=sources)


def what_if(
    topology: Topology,
    exchange: str,
    *,
    add: int | Sequence[str] = 0,
    remove: int | Sequence[str] = (),
    weights: Mapping[str, int] | None = None,
    release: str | Release = NEWEST,
) -> tuple[Strategy, ...]:
    """The strategies for a change of one exchange's queues; the first ends in the order of the changed file.

    Args:
        topology: the topology of the file.
        exchange: the exchange to change.
        add: the names or the number of new queues, which come last, with the most common weight.
        remove: the names of the queues to remove, or how many of the last ones.
        weights: the new weight of each queue to change.
        release: the release of the broker.

    Raises:
        RingUnknown: the topology does not know the bind order.
    """
    found, parsed = hashing_exchange(topology, exchange), Release.parse(release)
    before = weights_of(topology, found, parsed)
    new = _names_to_price(exchange, before, add, bound_in(topology))
    target = changed_weights(topology, exchange, before, new, remove, weights or {})
    if slots := topology.slots_of(exchange):
        return (_slots_strategy(slots, found, target, parsed),)
    if found.type == MODULUS_HASH:
        return (_modulus_strategy(found, topology.bindings_from(exchange), target, parsed),)
    if target == before:
        return ()
    wanted = tuple(Binding(exchange, destination, str(weight)) for destination, weight in target.items())
    case = Case(exchange, topology.ring(exchange, parsed)._require_known(), wanted)
    first, *others = strategies(case, found, topology)
    return (replace(first, chosen=True), *others)


def weights_of(
    topology: Topology, exchange: Exchange, release: str | Release = NEWEST
) -> dict[Destination, int]:
    """The destinations of an exchange that hashes, with their weights; ``x-modulus-hash`` has none, so all get 1."""
    if slots := topology.slots_of(exchange.name):
        return {str(queue): weight for queue, weight in slots.queues.items()}
    if exchange.type == MODULUS_HASH:
        return {each.destination: 1 for each in topology.bindings_from(exchange.name)}
    ring = ring_in_order(topology.bindings_from(exchange.name), Release.parse(release))
    return dict(ring._runs())


def changed_weights(
    topology: Topology,
    exchange: str,
    now: Mapping[Destination, int],
    add: Sequence[str],
    remove: int | Sequence[str],
    weights: Mapping[str, int],
) -> dict[Destination, int]:
    """The destinations and weights after the change; a new weight does not change a destination's position."""
    by_name = {name_of(destination): destination for destination in now}
    names = remove
    if isinstance(names, int):
        names = tuple(by_name)[max(0, len(by_name) - names) :]
    for name in (*each(names, "queues to remove", "names"), *weights):
        if name not in by_name:
            raise InvalidValue(
                f"change of exchange {exchange!r}",
                name,
                "one of " + (", ".join(by_name) or "none"),
                "Only what is bound can be removed or get another weight",
            )
    gone = {by_name[name] for name in names}
    new = {by_name[name]: parse_weight(weight, of=name) for name, weight in weights.items()}
    after = {
        destination: new.get(destination, weight)
        for destination, weight in now.items()
        if destination not in gone
    }
    slots = topology.slots_of(exchange)
    # Equal counts are weights as well.
    count = slots.count if slots and slots._has_counts and len({*now.values()}) > 1 else 0
    for name in add:
        if name in by_name:
            raise InvalidValue(f"change of exchange {exchange!r}", name, "a queue that is not bound yet")
        after[check_destination(name)] = count // len(now) if count else _most_common(now.values())
    _check_count(topology, exchange, len(now), len(after), remove)
    return _as_counts(count, after) if count and after.keys() != now.keys() else after


def _most_common(weights: Collection[int]) -> int:
    return Counter(weights).most_common(1)[0][0] if weights else 1


def _as_counts(count: int, weights: Mapping[Destination, int]) -> dict[Destination, int]:
    """Numbers of slots in the proportion of these weights, at least one each."""
    above_one = {name_of(queue): weight - 1 for queue, weight in weights.items()}
    if not any(above_one.values()):
        above_one = dict.fromkeys(above_one, 1)
    rest = quotas(count - len(weights), above_one)
    return {queue: 1 + rest[name_of(queue)] for queue in weights}


def _check_count(
    topology: Topology, exchange: str, now: int, after: int, remove: int | Sequence[str]
) -> None:
    gone, most = (remove, remove) if isinstance(remove, int) else (", ".join(remove), 0)
    if most > now or (now and not after):
        raise InvalidValue("queues to remove", gone, f"fewer than the {now} queues of {exchange!r}")
    slots = topology.slots_of(exchange)
    if slots and (flaw := too_few(slots.count, after)):
        raise InvalidValue(f"slots of exchange {exchange!r}", *flaw)


def next_names(
    exchange: str, now: Iterable[Destination], add: int | Sequence[str], taken: Container[Destination]
) -> tuple[str, ...]:
    """The given names, or the given number of names that continue the numbering of the existing ones and are not taken."""
    if not isinstance(add, int):
        return tuple(each(add, "queues to add", "names"))
    check_integer("number of queues to add", add, 0, MOST_NEW)
    numbered = [
        match
        for name in map(name_of, now)
        if (match := re.fullmatch(r"(.*?)([0-9]+)", name, re.ASCII | re.DOTALL))
    ]
    stem, width = (numbered[-1][1], len(numbered[-1][2])) if numbered else (f"{exchange}.", 1)
    first = max((int(match[2]) for match in numbered if match[1] == stem), default=-1) + 1
    names = (f"{stem}{number:0{width}}" for number in count(first))
    return tuple(islice((name for name in names if name not in taken), add))


def _names_to_price(
    exchange: str, now: Iterable[Destination], add: int | Sequence[str], taken: Container[Destination]
) -> tuple[str, ...]:
    """The next names, and short ones where those would be too long."""
    names = next_names(exchange, now, add, taken)
    if isinstance(add, int) and any(map(name_flaw, names)):
        short = (name for name in now if re.fullmatch(r"new\.[0-9]+", name_of(name), re.ASCII))
        names = next_names("new", short, add, taken)
    return names


def _slots_strategy(
    slots: Slots, top: Exchange, after: Mapping[Destination, int], release: Release
) -> Strategy:
    """The strategy for slots; its cost does not depend on which slot leads to which queue now."""
    wanted = replace(slots, queues={name_of(queue): weight for queue, weight in after.items()})
    applied = assume_applied(Topology(exchanges=(top,), slots=(slots,)), release)
    found = plan(Topology(exchanges=(top,), slots=(wanted,)), applied)
    if found.refusals:
        raise InvalidValue(
            f"exchange {top.name!r}", top.type, "a top exchange for slots", "; ".join(found.refusals)
        )
    moved = found.slot_moves.get(top.name, 0.0)
    count = len({step.binding.source for step in found.steps if isinstance(step, (Bind, Unbind))})
    return Strategy(
        "slots",
        f"point {count} of {slots.count} slots to other queues; at every moment a message goes to one queue",
        moved=moved,
        moved_between=moved,
        steps=found.steps,
        chosen=True,
    )


def _modulus_strategy(
    exchange: Exchange, bindings: Sequence[Binding], after: Mapping[Destination, int], release: Release
) -> Strategy:
    """The only strategy for an ``x-modulus-hash`` exchange, which moves keys of all queues."""
    if any(weight != 1 for weight in after.values()):
        raise InvalidValue(
            f"change of exchange {exchange.name!r}",
            "a weight",
            "queues to add or to remove",
            "An x-modulus-hash exchange has no weights",
        )
    stay = [binding for binding in bindings if binding.destination in after]
    bound_now = {binding.destination for binding in bindings}
    key = bindings[0].key if bindings else ""
    new = [Binding(exchange.name, destination, key) for destination in after if destination not in bound_now]
    before = Observed(Topology(exchanges=(exchange,), bindings=tuple(bindings)), release)
    steps = plan(Topology(exchanges=(exchange,), bindings=(*stay, *new)), before, force=True).steps
    share = modulus_moved(bindings, [*stay, *new], release)
    return Strategy(
        "in place",
        "another number of bindings redistributes all keys; with slots only the share of a queue would move",
        moved=share,
        moved_between=share if len(steps) < 2 else None,
        steps=steps,
        chosen=True,
    )
