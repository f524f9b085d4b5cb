"""The queues that a plan must hold until others are drained, and the plans that cannot keep order. No IO."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from rabbit_chx.advice import Advice
from rabbit_chx.broker.applying.handover import stages
from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.topology.planning.drain_order import drain_first_in, drain_stages
from rabbit_chx.topology.planning.steps import Bind, Plan, Unbind


def held_queues(plan: Plan) -> dict[str, frozenset[str]]:
    """The queues that gain keys through a plan, each with the queues to drain first.

    Raises:
        InvalidValue: no order of draining keeps all keys in order, or a ring is unknown; the hint suggests a fix.
    """
    for exchange, flaw, hint in _flaws(plan):
        raise InvalidValue(
            f"change of exchange {exchange!r}", flaw, "a change that can keep keys in order", hint
        )
    drain_first = drain_first_in(plan)
    named = {one for gainer, losers in drain_first.items() for one in (gainer, *losers)}
    behind = sorted(str(one) for one in named if not isinstance(one, str))
    if behind:
        raise InvalidValue(
            "change",
            f"keys that move between exchanges ({', '.join(behind)})",
            "keys that move between queues",
            "Only queues can be held and drained, not exchanges",
        )
    if moving := sorted(str(one) for one in named if one in plan.streams):
        raise InvalidValue(
            "change",
            Unquoted(f"keys that move between streams: {', '.join(moving)}"),
            "keys that move between queues",
            "A stream keeps its messages, so it cannot be drained, and their order across a change is up to its readers: use "
            "`rabbit-chx apply`",
        )
    if drain_stages(drain_first) is None:
        mutual = sorted(str(one) for one in drain_first.keys() & set().union(*drain_first.values()))
        raise InvalidValue(
            "change",
            f"queues that gain keys from each other ({', '.join(mutual)})",
            "a change that can keep keys in order",
            "On a ring, append queues at its end or remove the last-bound ones; with slots, any queue can be added or "
            "removed. `rabbit-chx plan` shows the alternatives",
        )
    return {str(gainer): frozenset(map(str, losers)) for gainer, losers in drain_first.items()}


def groups_of_held(
    drain_first: Mapping[str, Collection[str]], consumed: Mapping[str, Collection[str]]
) -> dict[str, set[str]]:
    """The groups that consume each queue that gains keys; ``consumed`` are the queues that each group consumes now.

    A queue that no group consumes yet goes to the groups of the queues that it gains keys from.
    """
    named = {*drain_first, *chain.from_iterable(drain_first.values())}
    groups = {name: {group for group, queues in consumed.items() if name in queues} for name in named}
    for _, gaining in stages(dict(drain_first.items())):
        for gainer in gaining:
            groups[gainer] = groups[gainer] or set().union(*map(groups.__getitem__, drain_first[gainer]))
    return {gainer: groups[gainer] for gainer in drain_first}


def _flaws(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """The exchanges with an unknown set of moving keys, each with the reason and a hint."""
    rings = {change.exchange for change in plan.changes}
    for change in plan.changes:
        if change.before.bindings and not (change.before.known and change.after.known):
            why = f"a ring of unknown order ({change.before.why_unknown})"
            yield change.exchange, why, f"To know the order, {Advice.LEARN_ORDER}"
    for step in plan.steps:
        if isinstance(step, (Bind, Unbind)) and step.moved != 0 and step.binding.source not in rings:
            source = step.binding.source
            if step.exchange_moved == source:  # otherwise it is a slot
                yield (
                    source,
                    "a different number of queues of an x-modulus-hash exchange, which moves keys between all of them",
                    "Give it slots under a new name, so that only the keys of new queues move",
                )
