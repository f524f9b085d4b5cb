"""Changes that go by a new name: a second exchange with the wanted ring, then one switch upstream.

The only way around the rings that lie between two rings, and around what a broker never changes in place: the type
and the arguments of an exchange. Values only.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rabbit_chx.movement import moved_through, shares
from rabbit_chx.ring import Ring, ToExchange
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Binding
from rabbit_chx.topology.planning.steps import Bind, DeclareExchange, Strategy, Unbind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from rabbit_chx.movement import MovementTracker
    from rabbit_chx.topology.model import Exchange, Topology
    from rabbit_chx.topology.planning.ring_paths import Case
    from rabbit_chx.topology.planning.steps import Step

__all__ = ["blue_green", "next_name"]

_HASHING: Final = (CONSISTENT_HASH, MODULUS_HASH)


def next_name(name: str, taken: Collection[str] = ()) -> str:
    """The name of the exchange or queue that follows on one.

    >>> next_name("orders"), next_name("orders.v2"), next_name("orders", ["orders.v2"])
    ('orders.v2', 'orders.v3', 'orders.v3')
    """
    numbered = re.fullmatch(r"(.+)\.v([1-9]\d*)", name, re.ASCII | re.DOTALL)
    stem, number = (numbered[1], int(numbered[2])) if numbered else (name, 1)
    while (following := f"{stem}.v{number + 1}") in taken:
        number += 1
    return following


def blue_green(case: Case, exchange: Exchange, there: Topology, tracker: MovementTracker | None) -> Strategy:
    """The way over a second exchange: no ring between, and the old one stays until it is deleted by hand.

    Args:
        case: what is, and what should be.
        exchange: the exchange as it is declared.
        there: the topology in which others may be bound to it.
        tracker: knows the ring as it is; None where nobody does.
    """
    name = next_name(case.exchange, [each.name for each in there.exchanges])
    after = Ring.of(case.target, release=case.before.release)
    upstream = [bound for bound in there.bindings if bound.destination == ToExchange(case.exchange)]
    moved = None
    at_risk = None
    if tracker is not None:
        journey = tracker.along([after])
        moved = journey.share
        at_risk = case.waiting(journey.hops[0].losers)
    steps: list[Step] = [DeclareExchange(replace(exchange, name=name))]
    steps += [Bind(replace(binding, source=name)) for binding in case.wanted]
    by_steps: tuple[float | None, float | None] = None, None
    if moved is not None and len(upstream) == 1:  # of several, nobody knows which keys come by which
        by_steps = _moved_by_steps(case.before, after, moved, exchange, upstream[0], name, there)
    steps += _switch(case.exchange, name, upstream, moved=by_steps, at_risk=at_risk)
    return Strategy(
        "blue/green",
        f"build {name!r} with the wanted ring, then {_at_the_switch(case.exchange, name, upstream, there)}",
        moved=moved,
        moved_between=moved,
        after=after,
        steps=tuple(steps),
    )


def _switch(
    old: str,
    new: str,
    upstream: Sequence[Binding],
    *,
    moved: tuple[float | None, float | None],
    at_risk: int | None,
) -> Iterator[Step]:
    """The new exchange first, so that nothing is lost."""
    first, second = moved
    for bound in upstream:
        # A copy that goes elsewhere moves no key: those count once the old exchange is gone.
        waiting = 0 if first == 0.0 else at_risk
        binding = replace(bound.unnumbered, destination=ToExchange(new))
        yield Bind(binding, exchange_moved=old, moved=first, at_risk=waiting)
        yield Unbind(bound, exchange_moved=old, moved=second, at_risk=at_risk)


def _moved_by_steps(
    before: Ring, after: Ring, moved: float, exchange: Exchange, bound: Binding, new: str, there: Topology
) -> tuple[float | None, float | None]:
    """What it moves to bind the new exchange, and then to unbind the old one; None where nobody knows."""
    source = there.exchange(bound.source)
    if source is None or source.type not in _HASHING:
        return 0.0, moved
    if len(there.bindings_from(source.name)) > 1:
        return None, None
    if source.type == MODULUS_HASH:
        first = (
            moved / 2
        )  # it hashes a list that holds the key: another hash, which knows nothing of this one
    else:
        both = Ring.of([(bound.destination, bound.key), (ToExchange(new), bound.key)])
        if (source.hash_header, source.hash_property) == (exchange.hash_header, exchange.hash_property):
            first = moved_through(both, ToExchange(new), before, after)
        else:
            first = moved * shares(both)[ToExchange(new)]
    return first, moved - first


def _at_the_switch(old: str, new: str, upstream: Sequence[Binding], there: Topology) -> str:
    """What is left to do, and what happens to the messages that pass at that moment."""
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
        if kind in _HASHING and not others:
            said = "no message is lost or duplicated"
        elif kind in _HASHING:
            said = f"it has other destinations too, and the keys of {source!r} itself move as its plan says"
        else:
            said = "a message that passes while both are bound goes to both: pause publishers, or take duplicates"
        parts.append(f"switch {source!r} over ({said})")
    return ", ".join(parts)
