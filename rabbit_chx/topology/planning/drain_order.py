"""Which queues must be drained before which others may be consumed, so that every key keeps its order.

If the new queue of a key is consumed while its old queue still holds messages, newer messages overtake older ones. A
change of several steps may move a key several times: when two queues are bound in turn, the first gains keys that the
second then takes over, so the first must be drained too. :mod:`rabbit_chx.broker` drains queues.
This module does no IO.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final

from rabbit_chx.movement import moved
from rabbit_chx.ring import Destination, Ring
from rabbit_chx.topology.planning.steps import Bind, Plan, RingChange, Unbind

_MOST_RINGS: Final = 8
"""The most steps of one exchange that are compared exactly; each comparison counts all keys."""


def drain_first(*rings: Ring) -> dict[Destination, frozenset[Destination]]:
    """The destinations that gain keys from each ring to the next, each with those that lose keys to it.

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
    """The destinations that gain keys, in the order in which they may be consumed; None if no order is possible.

    The destinations of a stage may be consumed once all queues that lose keys to them are drained. A queue that gains
    and then loses keys is consumed and drained in its own stage.
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
    """Like `drain_first`, for all rings and slots that a plan changes."""
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
        # The first appended queue gains keys from all others; each later one follows its predecessor.
        return {new[0]: frozenset(old)} | {one: frozenset({before}) for before, one in pairwise(new)}
    if all(isinstance(step, Unbind) for step in steps) and new == list(reversed(old))[: len(new)]:
        # The last-bound queue goes first. The next one gains some of its keys, and then gives all keys to those that stay.
        staying = dict.fromkeys(change.after.destinations, frozenset(new))
        return staying | {one: frozenset({before}) for before, one in pairwise(new)}
    every = frozenset({*old, *change.after.destinations})
    return {one: every - {one} for one in every}


def _of_slot(steps: Sequence[Bind | Unbind]) -> Mapping[Destination, frozenset[Destination]]:
    """The keys of a slot move directly from its old queue to its new one, which an earlier change may have bound."""
    unbinds = [step for step in steps if isinstance(step, Unbind)]
    taken = {step.binding.destination for step in unbinds}
    stay = {one for step in unbinds for one in step.stay}
    given = {step.binding.destination for step in steps if isinstance(step, Bind)}
    if stay & taken:  # with three queues, an unbind also moves keys between those that stay
        every = frozenset(stay | taken)
        return {one: every - {one} for one in every}
    losers = frozenset(one for one in taken - given if isinstance(one, str))
    return {one: losers for one in (given | stay) - taken if isinstance(one, str) and losers}
