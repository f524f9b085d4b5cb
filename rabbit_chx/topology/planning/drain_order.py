"""Which queues must be drained before which others may be consumed, so that every key keeps its order.

If the new queue of a key is consumed while its old queue still holds messages, newer messages overtake older ones. A
change of several steps may move a key several times: when two queues are bound in turn, the first gains keys that the
second then takes over, so the first must be drained too. No order is possible for some plans. :mod:`rabbit_chx.broker` drains
queues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.text import listed
from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.mirror.movement import moved
from rabbit_chx.mirror.ring import Destination, Ring
from rabbit_chx.topology.model import Binding
from rabbit_chx.topology.planning.steps import Bind, Plan, RingChange, Unbind, ring_after

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
    own = _steps_by_source(plan)
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


def _steps_by_source(plan: Plan) -> dict[str, list[Bind | Unbind]]:
    found: dict[str, list[Bind | Unbind]] = {}
    for step in plan.steps:
        if isinstance(step, (Bind, Unbind)):
            found.setdefault(step.binding.source, []).append(step)
    return found


def _of_ring(
    change: RingChange, steps: Sequence[Bind | Unbind]
) -> Mapping[Destination, frozenset[Destination]]:
    if len(steps) <= _MOST_RINGS:
        rings = list(accumulate(steps, ring_after, initial=change.before))
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


# ---- plans whose queues can be held

_ALTERNATIVES: Final = (
    "On a ring, append queues at its end or remove the last-bound ones; with slots, any queue can be added or removed. "
    "`rabbit-chx plan` shows the alternatives"
)


def held_queues(plan: Plan, alternatives: str = _ALTERNATIVES) -> dict[str, frozenset[str]]:
    """The queues that gain keys through a plan, each with the queues to drain first; ``alternatives`` is what to do if there is no order.

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
            Unquoted(f"{listed(mutual)}, which gain keys from each other"),
            "a change that can keep keys in order",
            alternatives,
        )
    return {str(gainer): frozenset(map(str, losers)) for gainer, losers in drain_first.items()}


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


def check_current(plan: Plan, bindings: Iterable[Binding], reordered: Collection[str] = ()) -> None:
    """Raise if the broker's ``bindings`` of an exchange match no point of the plan: before, between or after its steps.

    The steps would then lead to another ring than planned, and move keys between other queues than those that are held and
    drained. ``reordered`` are exchanges with the same bindings, but perhaps in another order than before the plan.
    """
    before = {
        change.exchange: {each.destination for each in change.before.bindings} for change in plan.changes
    }
    now: dict[str, set[Destination]] = {}
    for each in bindings:
        now.setdefault(each.source, set()).add(each.destination)
    for source, steps in _steps_by_source(plan).items():
        own = [step for step in steps if step.exchange_moved]  # repairs move no keys
        start = before.get(source, _before_in_slot(own))
        if not own or start is None:
            continue
        if source in reordered or now.get(source, set()) not in accumulate(own, _after, initial=start):
            raise InvalidValue(
                f"change of exchange {source!r}",
                Unquoted("bindings that have changed since it was planned"),
                "the bindings it was planned for",
                "Another command or program has changed them. Plan again, for example by running the same command again",
            )


def _after(now: set[Destination], step: Bind | Unbind) -> set[Destination]:
    one = {step.binding.destination}
    return now | one if isinstance(step, Bind) else now - one


def _before_in_slot(steps: Sequence[Bind | Unbind]) -> set[Destination] | None:
    """The destinations of a slot before its steps; None if they are not known, or if it has none."""
    found: set[Destination] | None = None
    for step in reversed(steps):
        if found is None and isinstance(step, Unbind) and step.stay:
            found = {*step.stay}
        if found is not None:
            one = {step.binding.destination}
            found = found - one if isinstance(step, Bind) else found | one
    return found
