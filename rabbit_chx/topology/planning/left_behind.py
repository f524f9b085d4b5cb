"""The queues that a plan leaves unbound, with the messages in them. No IO."""

from __future__ import annotations

from rabbit_chx.topology.model import Observed
from rabbit_chx.topology.planning.steps import Bind, DeleteQueue, Plan, Unbind


def left_behind(plan: Plan, observed: Observed) -> set[str]:
    """The queues that a plan unbinds from everything and keeps."""
    bound = {each.identity for each in observed.topology.bindings}
    unbound: set[str] = set()
    for step in plan.steps:
        if isinstance(step, Bind):
            bound.add(step.binding.identity)
        elif isinstance(step, Unbind):
            bound.discard(step.binding.identity)
            unbound |= {step.binding.destination} if isinstance(step.binding.destination, str) else set()
    deleted = {step.name for step in plan.steps if isinstance(step, DeleteQueue)}
    return unbound - {destination for _, destination, *_ in bound} - deleted
