"""Who has to wait for whom when keys move, if each key's messages are to stay in order. Values only.

The harm is not that keys move, but that the backlog of the queue that loses them and the queue that gains them are
consumed at once. :mod:`rabbit_chx.broker.applying.handover` does the waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.movement import moved
from rabbit_chx.topology.planning.steps import Bind, Unbind

if TYPE_CHECKING:
    from rabbit_chx.ring import Destination, Ring
    from rabbit_chx.topology.planning.steps import Plan

__all__ = ["drain_first", "drain_first_in"]


def drain_first(before: Ring, after: Ring) -> dict[Destination, frozenset[Destination]]:
    """Which destinations gain keys when one ring becomes the other, each with those that lose keys to it.

    >>> from rabbit_chx import Ring
    >>> drain_first(Ring.of(["q0", "q1"]), Ring.of(["q0", "q1", "q2"])) == {"q2": frozenset({"q0", "q1"})}
    True
    """
    found: dict[Destination, set[Destination]] = {}
    for (loser, gainer), share in moved(before, after).flows.items():
        if share and loser != gainer and loser is not None and gainer is not None:
            found.setdefault(gainer, set()).add(loser)
    return {gainer: frozenset(losers) for gainer, losers in found.items()}


def drain_first_in(plan: Plan) -> dict[Destination, frozenset[Destination]]:
    """As `drain_first`, of a plan: its rings, and the slots that it points from one queue to another."""
    found: dict[Destination, frozenset[Destination]] = {}

    def add(gainer: Destination, losers: frozenset[Destination]) -> None:
        found[gainer] = found.get(gainer, frozenset()) | losers

    for change in plan.changes:
        if not (change.before.known and change.after.known):
            continue
        for gainer, losers in drain_first(change.before, change.after).items():
            add(gainer, losers)
    rings = {change.exchange for change in plan.changes}
    taken = [
        step.binding for step in plan.steps if isinstance(step, Unbind) and step.binding.source not in rings
    ]
    given = {step.binding.source: step.binding.destination for step in plan.steps if isinstance(step, Bind)}
    for bound in taken:
        to = given.get(bound.source)
        if isinstance(bound.destination, str) and isinstance(to, str) and to != bound.destination:
            add(to, frozenset({bound.destination}))
    return found
