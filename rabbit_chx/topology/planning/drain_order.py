"""Which queues must be drained before which others may be consumed, so that every key keeps its order. Values only.

A key that moves does no harm by itself; but if the queue that gains it is consumed while its old queue still holds
messages, they overtake. A change of several steps moves keys several times: of two queues bound one after the other,
the first gains keys that the second takes over, so it must be drained, too. :mod:`rabbit_chx.broker.applying.handover`
does the draining.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from rabbit_chx.movement import moved
from rabbit_chx.topology.planning.steps import Bind, Unbind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rabbit_chx.ring import Destination, Ring
    from rabbit_chx.topology.planning.steps import Plan, RingChange

__all__ = ["drain_first", "drain_first_in", "drain_stages"]

_MOST_RINGS: Final = 8
"""Up to this many steps of one exchange are judged exactly; each counts all keys."""


def drain_first(*rings: Ring) -> dict[Destination, frozenset[Destination]]:
    """Which destinations gain keys when each ring becomes the next, each with those that lose keys to it.

    >>> from rabbit_chx import Ring
    >>> two = Ring.of(["q0", "q1"])
    >>> drain_first(two, two.bind("q2")) == {"q2": frozenset({"q0", "q1"})}
    True
    """
    found: dict[Destination, set[Destination]] = {}
    for before, after in pairwise(rings):
        for (loser, gainer), share in moved(before, after).flows.items():
            if share and loser != gainer and loser is not None and gainer is not None:
                found.setdefault(gainer, set()).add(loser)
    return {gainer: frozenset(losers) for gainer, losers in found.items()}


def drain_stages(waits: Mapping[Destination, Collection[Destination]]) -> list[set[Destination]] | None:
    """The destinations that gain keys in the order in which they may be consumed; None if there is none.

    Those of the first stage may be consumed when the queues that they wait for are drained, and so on: a queue that
    gains and then loses keys is consumed and drained in its turn.
    """
    stages: list[set[Destination]] = []
    left = {gainer: set(losers) for gainer, losers in waits.items()}
    while left:
        stage = {gainer for gainer, losers in left.items() if not losers & left.keys()}
        if not stage:
            return None
        stages.append(stage)
        for gainer in stage:
            del left[gainer]
    return stages


def drain_first_in(plan: Plan) -> dict[Destination, frozenset[Destination]]:
    """As `drain_first`, for the steps of a plan: its rings, and the slots that it re-points."""
    found: dict[Destination, frozenset[Destination]] = {}
    own: dict[str, list[Bind | Unbind]] = {}
    for step in plan.steps:
        if isinstance(step, (Bind, Unbind)):
            own.setdefault(step.binding.source, []).append(step)
    rings = {change.exchange for change in plan.changes}
    pairs = [_of_slot(steps) for source, steps in own.items() if source not in rings]
    pairs += [
        _of_ring(change, own.get(change.exchange, ()))
        for change in plan.changes
        if change.before.known and change.after.known and change.before.bindings
    ]
    for each in pairs:
        for gainer, losers in each.items():
            found[gainer] = found.get(gainer, frozenset()) | losers
    return found


def _of_ring(
    change: RingChange, steps: Sequence[Bind | Unbind]
) -> Mapping[Destination, frozenset[Destination]]:
    if len(steps) <= _MOST_RINGS:
        rings = [change.before]
        for step in steps:
            after = rings[-1].bind if isinstance(step, Bind) else rings[-1].unbind
            one = step.binding
            rings.append(after(one.destination, one.key, one.arguments))
        return drain_first(*rings) if len(rings) > 2 else drain_first(change.before, change.after)
    old = change.before.destinations
    new = [step.binding.destination for step in steps]
    if all(isinstance(step, Bind) for step in steps) and not set(new) & set(old):
        # Appended: the first takes keys of all others. A later one waits for the one before it, and so for all.
        return {new[0]: frozenset(old)} | {one: frozenset({before}) for before, one in pairwise(new)}
    every = frozenset({*old, *change.after.destinations})
    return {one: every - {one} for one in every}


def _of_slot(steps: Sequence[Bind | Unbind]) -> Mapping[Destination, frozenset[Destination]]:
    """A slot has one queue: its keys go straight from the one that is unbound to the one that is bound."""
    taken = {step.binding.destination for step in steps if isinstance(step, Unbind)}
    given = {step.binding.destination for step in steps if isinstance(step, Bind)}
    losers = frozenset(one for one in taken - given if isinstance(one, str))
    return {one: losers for one in given - taken if isinstance(one, str) and losers}
