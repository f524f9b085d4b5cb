"""Plan to abandon a change that has begun: back to the bindings before it. This module does no IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.model import Binding, Observed, Queue, Slots, Topology
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.slot_changes import plan_moves
from rabbit_chx.topology.planning.steps import DeclareQueue, Plan

Bound: TypeAlias = Mapping[str, tuple[tuple[str, str], ...]]
"""For each exchange, its queues and their keys in bind order."""
FINISH: Final = "Run the command that began the change again: it finishes the change"


def plan_back(before: Bound | None, removed: Iterable[Queue], wanted: Topology, observed: Observed) -> Plan:
    """The plan that restores the bindings before a change, and the queues that it removed; the slots are those of ``wanted``.

    Raises:
        InvalidValue: the state before is not known, because it could not be recorded or is gone.
    """
    if before is None:
        raise InvalidValue(
            "change",
            "bindings that the broker has no record of",
            "a change whose state before is recorded",
            FINISH,
        )
    slots = {name: each for each in wanted.slots for name in each.names}
    rings = {source: listed for source, listed in before.items() if source not in slots}
    made = _rings_back(rings, wanted.vhost, observed)
    for each in wanted.slots:
        found = _slots_back(each, wanted, before, observed)
        made = replace(
            made,
            steps=(*made.steps, *found.steps),
            slot_moves={**made.slot_moves, **found.slot_moves},
            refusals=(*made.refusals, *found.refusals),
        )
    bound = {queue for listed in before.values() for queue, _ in listed}
    missing = sorted(bound - {queue.name for queue in observed.topology.queues})
    known = {queue.name: queue for queue in removed}
    if unknown := [name for name in missing if name not in known]:
        raise InvalidValue(
            "change", f"deleted queues ({', '.join(unknown)})", "queues that still exist", FINISH
        )
    return replace(made, steps=(*(DeclareQueue(known[name]) for name in missing), *made.steps))


def _rings_back(rings: Bound, vhost: str, observed: Observed) -> Plan:
    unknown = sorted(name for name in rings if observed.topology.exchange(name) is None)
    if unknown:
        raise InvalidValue(
            "change", f"exchange {unknown[0]!r}, which is gone", "an exchange that exists", FINISH
        )
    exchanges = tuple(each for each in observed.topology.exchanges if each.name in rings)
    # A record has no arguments. Those of bindings that stay are still there, and a change of others is not recorded.
    there = {(each.source, each.destination, each.key): each.arguments for each in observed.topology.bindings}
    bindings = tuple(
        Binding(source, queue, key, there.get((source, queue, key), {}))
        for source, listed in rings.items()
        for queue, key in listed
    )
    return plan(Topology(vhost, exchanges, bindings=bindings), observed, max_moved=1.0)


def _slots_back(slots: Slots, wanted: Topology, before: Bound, observed: Observed) -> Plan:
    """The plan for the slots of one exchange."""
    division = {slot: before[slot][0][0] for slot in slots.names if len(before.get(slot, ())) == 1}
    if len(division) < len(before.keys() & set(slots.names)):
        raise InvalidValue(
            "change", f"a slot of {slots.exchange!r} without one queue", "one queue a slot", FINISH
        )
    if not division:
        return Plan(wanted.vhost)
    every = replace(slots, queues={**dict.fromkeys(division.values(), 1), **slots.queues})
    return plan_moves(replace(wanted, slots=(every,)), slots.exchange, division, observed)
