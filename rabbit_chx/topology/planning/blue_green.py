"""Blue/green changes: build a second exchange with the wanted ring, then switch upstream to it.

This strategy avoids intermediate rings, and is the only way to change the type or the arguments of an exchange, which
a broker never changes in place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from rabbit_chx.mirror.movement import MovementTracker, keys_of, moved_among, shares
from rabbit_chx.mirror.ring import Ring, ToExchange
from rabbit_chx.topology.model import HASHING, MODULUS_HASH, Binding, Exchange, Topology
from rabbit_chx.topology.planning.ring_paths import Case
from rabbit_chx.topology.planning.steps import Bind, DeclareExchange, Step, Strategy, Unbind


def next_name(name: str, taken: Collection[str] = ()) -> str:
    """The next free version of an exchange's or queue's name.

    >>> next_name("orders"), next_name("orders.v2"), next_name("orders", ["orders.v2"])
    ('orders.v2', 'orders.v3', 'orders.v3')
    """
    numbered = re.fullmatch(r"(.+)\.v([1-9]\d*)", name, re.ASCII | re.DOTALL)
    stem, number = (numbered[1], int(numbered[2])) if numbered else (name, 1)
    while (following := f"{stem}.v{number + 1}") in taken:
        number += 1
    return following


def blue_green(case: Case, exchange: Exchange, there: Topology, tracker: MovementTracker | None) -> Strategy:
    """The blue/green strategy: it has no intermediate rings, and leaves the old exchange to be deleted by hand.

    ``there`` holds the upstream bindings, and ``tracker`` is None if the current ring is unknown.
    """
    upstream = [bound for bound in there.bindings if bound.destination == ToExchange(case.exchange)]
    name = _new_name(case, exchange, there, is_switched=not upstream)
    after = Ring.of(case.target, release=case.before.release)
    moved = None
    at_risk = None
    if tracker is not None:
        journey = tracker.along([after])
        moved = journey.share
        at_risk = case.waiting(journey.hops[0].losers)
    steps: list[Step] = [] if there.exchange(name) else [DeclareExchange(replace(exchange, name=name))]
    begun = len(there.bindings_from(name))
    steps += [Bind(replace(binding, source=name)) for binding in case.wanted[begun:]]
    first, second = None, None
    if moved is not None and len(upstream) == 1:  # the division of keys among several upstreams is unknown
        first, second = _moved_by_steps(case.before, after, moved, exchange, upstream[0], name, there)
    # The new exchange is bound before the old one is unbound, so that no message is lost.
    for bound in upstream:
        # Copies to another queue move no keys; the keys move when the old exchange is unbound.
        waiting = 0 if first == 0.0 else at_risk
        binding = replace(bound, destination=ToExchange(name))
        steps.append(Bind(binding, exchange_moved=case.exchange, moved=first, at_risk=waiting))
        steps.append(Unbind(bound, exchange_moved=case.exchange, moved=second, at_risk=at_risk))
    return Strategy(
        "blue/green",
        f"build {name!r} with the wanted ring, then {_at_the_switch(case.exchange, name, upstream, there)}",
        moved=moved,
        moved_between=moved,
        after=after,
        steps=tuple(steps),
    )


def _new_name(case: Case, exchange: Exchange, there: Topology, *, is_switched: bool) -> str:
    """The next free version, or the last one if an interrupted change has begun it."""
    taken = {each.name for each in there.exchanges}
    last, name = case.exchange, next_name(case.exchange)
    while name in taken:
        last, name = name, next_name(name)
    bound = [(each.destination, each.key) for each in there.bindings_from(last)]
    wanted = [(each.destination, each.key) for each in case.wanted]
    is_ours = there.exchange(last) == replace(exchange, name=last) and bound == wanted[: len(bound)]
    is_done = bound == wanted and is_switched
    return last if last != case.exchange and is_ours and not is_done else name


def _moved_by_steps(
    before: Ring, after: Ring, moved: float, exchange: Exchange, bound: Binding, new: str, there: Topology
) -> tuple[float | None, float | None]:
    """The shares that binding the new exchange and unbinding the old one move; None if unknown."""
    source = there.exchange(bound.source)
    if source is None or source.type not in HASHING:
        return 0.0, moved
    if len(there.bindings_from(source.name)) > 1:
        return None, None
    if source.type == MODULUS_HASH:
        # x-modulus-hash hashes a list that contains the key, so its hash is independent of the ring's.
        first = moved / 2
    else:
        both = Ring.of([(bound.destination, bound.key), (ToExchange(new), bound.key)])
        if (source.hash_header, source.hash_property) == (exchange.hash_header, exchange.hash_property):
            first = moved_among(keys_of(both)[ToExchange(new)], before, after)
        else:
            first = moved * shares(both)[ToExchange(new)]
    return first, moved - first


def _at_the_switch(old: str, new: str, upstream: Sequence[Binding], there: Topology) -> str:
    """Describe the switch, and its effect on messages in transit."""
    sources = list(dict.fromkeys(bound.source for bound in upstream))
    if not sources:
        return (
            f"let publishers publish to {new!r}: nothing leads to {old!r} that could be switched; order holds once "
            "all of them have changed over"
        )
    parts = []
    for source in sources:
        found = there.exchange(source)
        kind = "" if found is None else found.type
        others = [bound for bound in there.bindings_from(source) if bound.destination != ToExchange(old)]
        if kind in HASHING and not others:
            effect = "no message is lost or duplicated"
        elif kind in HASHING:
            effect = "it has other destinations too, and some of its keys move between them"
        else:
            effect = "messages go to both while both are bound: pause publishers, or accept duplicates"
        parts.append(f"switch {source!r} over ({effect})")
    return ", ".join(parts)
