"""What it would cost to add queues, take some away or change weights: from a file alone, exactly.

The ring is the one that the file's bindings make in their order, so the answer holds for a broker that has no drift.
Nothing is read or sent.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rabbit_chx.errors import InvalidValue
from rabbit_chx.releases import Release
from rabbit_chx.ring import Ring, check_destination, each, parse_weight
from rabbit_chx.topology.model import (
    CONSISTENT_HASH,
    MODULUS_HASH,
    Binding,
    Exchange,
    Observed,
    Slots,
    Topology,
)
from rabbit_chx.topology.planning.bindings import modulus_moved
from rabbit_chx.topology.planning.ring_change import all_strategies
from rabbit_chx.topology.planning.ring_paths import Case
from rabbit_chx.topology.planning.slots import divide, plan_slots
from rabbit_chx.topology.planning.steps import Bind, Strategy, Unbind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rabbit_chx.ring import Destination
    from rabbit_chx.topology.planning.steps import Step

__all__ = ["what_if"]

_MOST_NEW: Final = 1000


def what_if(
    topology: Topology,
    exchange: str,
    *,
    add: int | Sequence[str] = 0,
    remove: Sequence[str] = (),
    weights: Mapping[str, int] | None = None,
    release: str | Release = "4.3",
) -> tuple[Strategy, ...]:
    """The ways to change the queues of one exchange, the one that ends in the order of the changed file first.

    Args:
        topology: what the file says.
        exchange: which of its exchanges.
        add: names of new queues, or how many; new ones come last, with the weight that most have.
        remove: the queues to take away.
        weights: queues with their new weights.
        release: the release of the broker.
    """
    found = topology.exchange(exchange)
    kinds = {CONSISTENT_HASH, MODULUS_HASH}
    if found is None or found.type not in kinds:
        raise InvalidValue(
            "exchange",
            exchange,
            "one of " + (", ".join(x.name for x in topology.exchanges if x.type in kinds) or "none"),
            "Only an exchange that hashes has keys to move",
        )
    parsed = Release.parse(release)
    slots = topology.slots_of(exchange)
    if slots:
        after = _changed(exchange, dict(slots.queues.items()), add, remove, weights or {})
        return (_slots_way(slots, found, after, parsed),)
    bindings = topology.bindings_from(exchange)
    if found.type == MODULUS_HASH:
        keys = {bound.destination: bound.key for bound in bindings}
        alike = _changed(exchange, dict.fromkeys(keys, 1), add, remove, weights or {})
        return (_modulus_way(exchange, bindings, alike, parsed),)
    before = {b.destination: parse_weight(b.key, of=b.destination) for b in bindings}
    target = tuple(_changed(exchange, before, add, remove, weights or {}).items())
    case = Case(exchange, Ring.of(before, release=parsed), target)
    if target == tuple(before.items()):
        return ()
    first, *others = all_strategies(case, found, topology)
    return (replace(first, chosen=True), *others)


def _changed(
    exchange: str,
    now: Mapping[Destination, int],
    add: int | Sequence[str],
    remove: Sequence[str],
    weights: Mapping[str, int],
) -> dict[Destination, int]:
    """The destinations and weights after the change; who changes its weight keeps its place."""
    by_name = {_name(destination): destination for destination in now}
    for name in (*each(remove, "queues to remove", "names"), *weights):
        if name not in by_name:
            raise InvalidValue(
                f"change of exchange {exchange!r}",
                name,
                "one of " + (", ".join(by_name) or "none"),
                "Only what is bound can be removed or weighed anew",
            )
    gone = {by_name[name] for name in remove}
    new = {by_name[name]: parse_weight(weight, of=name) for name, weight in weights.items()}
    after = {
        destination: new.get(destination, weight)
        for destination, weight in now.items()
        if destination not in gone
    }
    usual = Counter(now.values()).most_common(1)[0][0] if now else 1
    for name in _new_names(exchange, tuple(by_name), add):
        if name in by_name:
            raise InvalidValue(f"change of exchange {exchange!r}", name, "a queue that is not yet bound")
        after[check_destination(name)] = usual
    return after


def _name(destination: Destination) -> str:
    return destination if isinstance(destination, str) else destination.name


def _new_names(exchange: str, known: Sequence[str], add: int | Sequence[str]) -> tuple[str, ...]:
    """The names given, or so many that go on counting where the last one with a number ends."""
    if not isinstance(add, int):
        return tuple(each(add, "queues to add", "names"))
    if isinstance(add, bool) or not 0 <= add <= _MOST_NEW:
        raise InvalidValue("number of queues to add", add, f"from 0 to {_MOST_NEW}")
    numbered = [
        match for name in known if (match := re.fullmatch(r"(.*?)([0-9]+)", name, re.ASCII | re.DOTALL))
    ]
    stem, width, last = f"{exchange}.", 1, -1
    if numbered:
        stem, width = numbered[-1][1], len(numbered[-1][2])
        last = max(int(match[2]) for match in numbered if match[1] == stem)
    return tuple(f"{stem}{number:0{width}}" for number in range(last + 1, last + 1 + add))


def _slots_way(slots: Slots, top: Exchange, after: Mapping[Destination, int], release: Release) -> Strategy:
    """As many slots as must be are pointed elsewhere, whichever queue each of them leads to now."""
    division = divide(slots.names, slots.queues)
    stands = Topology(
        exchanges=(top, *slots.exchanges),
        bindings=(*slots.top_bindings, *(Binding(slot, queue, "1") for slot, queue in division.items())),
    )
    ring = Ring.of([bound.destination for bound in slots.top_bindings], release=release)
    observed = Observed(stands, release, rings={slots.exchange: ring} if top.type == CONSISTENT_HASH else {})
    wanted = Slots(
        slots.exchange,
        slots.count,
        {_name(queue): weight for queue, weight in after.items()},
        slots.alternate,
    )
    found = plan_slots(wanted, top, observed, lambda _: None)
    if found.refusals:
        raise InvalidValue(f"exchange {top.name!r}", top.type, "slots", "; ".join(found.refusals))
    return Strategy(
        "slots",
        f"point {len(found.steps)} of {slots.count} slots to other queues: at every moment a message goes to one queue",
        moved=found.moved,
        moved_between=found.moved,
        steps=tuple(step for steps in found.steps.values() for step in steps),
        chosen=True,
    )


def _modulus_way(
    exchange: str, bindings: Sequence[Binding], after: Mapping[Destination, int], release: Release
) -> Strategy:
    """Another number of bindings divides all keys anew."""
    if any(weight != 1 for weight in after.values()):
        raise InvalidValue(
            f"change of exchange {exchange!r}",
            "a weight",
            "queues to add or to remove",
            "An x-modulus-hash exchange knows no weights",
        )
    stay = [bound for bound in bindings if bound.destination in after]
    bound_now = {bound.destination for bound in bindings}
    key = bindings[0].key if bindings else ""
    new = [Binding(exchange, destination, key) for destination in after if destination not in bound_now]
    share = modulus_moved(bindings, [*stay, *new], release)
    steps: list[Step] = [*(Bind(bound) for bound in new)]
    steps += [Unbind(bound) for bound in bindings if bound.destination not in after]
    return Strategy(
        "in place",
        "another number of bindings divides all keys anew: with slots only the share of a queue would move",
        moved=share,
        moved_between=share if len(steps) < 2 else None,
        steps=tuple(steps),
        chosen=True,
    )
