"""The change of one ring: its strategy, the keys that it moves, and whether it is allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Final, Self

from rabbit_chx.base.advice import Advice
from rabbit_chx.errors import InvalidValue, Unpredictable
from rabbit_chx.mirror.movement import moved
from rabbit_chx.mirror.ring import Destination, Ring, ToExchange, named
from rabbit_chx.topology.diff import DestinationDifference, RingDifference
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import Exchange, Observed, Topology
from rabbit_chx.topology.planning.blue_green import blue_green
from rabbit_chx.topology.planning.ring_paths import Case, path_to, ring_strategies
from rabbit_chx.topology.planning.slots import slots_strategy
from rabbit_chx.topology.planning.steps import Bind, RingChange, Step, Strategy, Unbind, ring_after
from rabbit_chx.topology.slots.slot_division import recommended_count

STRATEGIES: Final = ("append", "in place", "remove-last", "swap", "blue/green", "slots")
"""The names of all strategies."""
_UNKNOWN: Final = f"the order of its ring is unknown, so what moves is unknown too: {Advice.LEARN_ORDER}"


@dataclass(frozen=True)
class Request:
    """The arguments of one call of `plan`, and values derived from them."""

    wanted: Topology
    observed: Observed
    strategy: str | None = None
    prune: bool = False
    force: bool = False
    max_moved: float = 0.5

    def __post_init__(self) -> None:
        if self.strategy is not None and self.strategy not in STRATEGIES:
            raise InvalidValue("strategy", self.strategy, "one of " + ", ".join(STRATEGIES))
        if not isinstance(self.max_moved, (int, float)) or not 0 <= self.max_moved <= 1:
            raise InvalidValue("max_moved", self.max_moved, "a share from 0 to 1")

    @cached_property
    def whole(self) -> Topology:
        """The wanted topology with its slots listed."""
        return self.wanted.expanded()

    @cached_property
    def waiting(self) -> Callable[[Iterable[Destination]], int | None]:
        """A function that counts the messages in queues, and in queues behind exchanges; None if any count is unknown."""
        there, backlog = self.observed.topology, self.observed.backlog
        unknown = {queue.name for queue in there.queues} - backlog.keys()
        filled = {name: count for name, count in backlog.items() if count}
        chained = any(isinstance(each.destination, ToExchange) for each in there.bindings)

        def waiting(destinations: Iterable[Destination]) -> int | None:
            # A plan of thousands of steps asks for thousands of queues each time, and most queues are empty.
            listed = reachable(there, destinations) if chained else set(destinations)
            return (
                sum(filled[name] for name in filled.keys() & listed) if unknown.isdisjoint(listed) else None
            )

        return waiting

    def exceeds(self, share: float | None) -> bool:
        """Whether a change that moves this share needs the caller's consent."""
        return not self.force and (share is None or share > self.max_moved)


@dataclass(slots=True)
class Part:
    """The part of a plan that one difference requires."""

    steps: list[Step] = field(default_factory=list)
    changes: list[RingChange] = field(default_factory=list)
    slot_moves: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def __iadd__(self, other: Part) -> Self:
        self.steps += other.steps
        self.changes += other.changes
        self.slot_moves |= other.slot_moves
        self.notes += other.notes
        self.left_alone += other.left_alone
        self.refusals += other.refusals
        return self


def repairs(difference: RingDifference) -> tuple[Bind | Unbind, ...]:
    """The steps that remove duplicate bindings without moving keys."""
    steps: list[Bind | Unbind] = []
    for each in difference.destinations:
        if each.keep is not None:
            listed = {binding._identity for binding in each.found}
            steps += [] if each.keep._identity in listed else [Bind(each.keep)]
            steps += [Unbind(found) for found in each.found if found._identity != each.keep._identity]
    return tuple(steps)


def case_of(difference: RingDifference, waiting: Callable[[Iterable[Destination]], int | None]) -> Case:
    """The ring after the repairs, and the changes that remain."""
    ring = reduce(ring_after, repairs(difference), difference.ring)
    spoiled = frozenset(
        each.destination
        for each in difference.destinations
        if each.keep is None
        and (
            each.kind in {"duplicate", "dead", "arguments"} or (each.kind == "extra" and len(each.found) > 1)
        )
    )
    dead = {binding.destination for binding in ring.dead} if ring.known else set()
    return Case(difference.exchange, ring, difference.wanted, spoiled | dead, waiting)


def strategies(case: Case, exchange: Exchange, there: Topology) -> tuple[Strategy, ...]:
    """All strategies with their costs; the first changes the exchange in place to the file's order."""
    slots = recommended_count(len(case.target))
    found, tracker = ring_strategies(case, sizes=(slots, sum(weight for _, weight in case.target)))
    if not case.target:
        return found
    over_slots = slots_strategy(case, tracker)
    return (*found, blue_green(case, exchange, there, tracker), *([over_slots] if over_slots else []))


def change_ring(difference: RingDifference, exchange: Exchange, request: Request) -> Part:
    """The steps for one ring, or the reason why there are none."""
    spare = [each for each in difference.destinations if each.is_spare]
    if request.prune or request.strategy or not spare:
        return _change(difference, exchange, request)
    others = tuple(each for each in difference.destinations if not each.is_spare)
    part = _change(replace(difference, destinations=others), exchange, request)
    touched = {step.binding.destination for step in part.steps if isinstance(step, Bind | Unbind)}
    if not touched.isdisjoint(each.destination for each in spare):
        # Unbinding one of several bindings removes the buckets of all.
        return _change(difference, exchange, request)
    part.notes += [_second_note(difference.exchange, each) for each in spare]
    return part


def _change(difference: RingDifference, exchange: Exchange, request: Request) -> Part:
    name, case = difference.exchange, case_of(difference, request.waiting)
    try:
        difference.ring._refuse_duplicates()
    except Unpredictable as reason:
        return Part(
            refusals=[f"exchange {name!r}: {reason}; build a new exchange under another name (blue/green)"]
        )
    twice = [destination for destination, times in Counter(d for d, _ in case.target).items() if times > 1]
    if twice:
        return Part(
            refusals=[f"exchange {name!r}: the file binds {str(twice[0])!r} twice: give it one weight"]
        )
    if case.before.runs == ():
        # An empty exchange has no keys to move.
        return Part([kind(binding) for kind, binding in path_to(case, case.target).commands])
    part = Part(steps=list(repairs(difference)))
    if all(each.keep for each in difference.destinations):
        if case.before.runs == case.target and not difference.why_unknown:
            return part
        if request.strategy != "in place" or difference.why_unknown:
            part.left_alone.append(_order_note(case, difference.why_unknown))
            return part
    found = strategies(case, exchange, request.observed.topology)
    chosen = _chosen(found, request.strategy)
    if chosen is None:
        return Part(refusals=[_no_such_strategy(name, found, request.strategy)])
    found = tuple(replace(each, chosen=each is chosen) for each in found)
    after = case.before if chosen.after is None else chosen.after
    part.steps += chosen.steps
    part.changes.append(RingChange(name, case.before, after, chosen.moved, chosen.moved_between, found))
    part.notes += _notes(case, chosen)
    unbinds = any(isinstance(step, Unbind) for step in chosen.steps)
    if unbinds and chosen.name != "blue/green" and request.exceeds(chosen.moved_between):
        part.refusals.append(_refusal(name, chosen, found, request.max_moved))
    return part


def _second_note(exchange: str, difference: DestinationDifference) -> str:
    return (
        f"exchange {exchange!r}: {named(difference.destination)} is bound {len(difference.found)} times, and the binding of the "
        "file has its buckets, as far as is known. The others are left alone; only a plan with prune removes them"
    )


def _order_note(case: Case, why_unknown: str) -> str:
    if why_unknown:
        return (
            f"exchange {case.exchange!r} has all its bindings, but the order of its ring is unknown ({why_unknown}): "
            f"{Advice.LEARN_ORDER}"
        )
    share = moved(case.before, Ring.of(case.target, release=case.before.release)).share
    return (
        f"exchange {case.exchange!r} has all its bindings, in another order than the file: {share:.2%} of its keys go "
        "elsewhere than the file says. It is left alone: write the order of the broker into the file, or reorder it "
        "with the strategy 'in place'"
    )


def _chosen(found: tuple[Strategy, ...], name: str | None) -> Strategy | None:
    """The strategy with this name, or an equivalent one, since only one of several equal strategies is listed."""
    named = next((each for each in found if each.name == name), None)
    if name is None or (named is None and name in {"append", "in place"}):
        return found[0]
    if named is None and name == "swap":
        in_place = [each for each in found if each.name in {"append", "in place"}]
        return min(in_place, key=lambda each: each.moved or 0.0)
    return named if named is not None and named.steps else None


def _no_such_strategy(exchange: str, found: tuple[Strategy, ...], name: str | None) -> str:
    possible = ", ".join(repr(each.name) for each in found if each.steps)
    slots = ". For slots, write them into the file under a new exchange" if name == "slots" else ""
    return f"exchange {exchange!r}: invalid strategy {name!r}: expected one of {possible}{slots}"


def _refusal(exchange: str, chosen: Strategy, found: tuple[Strategy, ...], most: float) -> str:
    if chosen.moved_between is None:  # of the others, only blue/green is not refused, too
        is_offered = any(each.name == "blue/green" for each in found)
        other = f"choose the strategy 'blue/green' {Advice.STRATEGY}, or " * is_offered
        return f"exchange {exchange!r}: {_UNKNOWN}; or {other}{Advice.FORCE}"
    others = "; ".join(_offer(each) for each in found if each.name != chosen.name) or "none"
    return (
        f"exchange {exchange!r}: changing it {chosen.name} sends {chosen.moved_between:.2%} of its keys elsewhere at "
        f"some moment, which exceeds the limit of {most:.0%}: choose another strategy {Advice.STRATEGY}, "
        f"{Advice.RAISE_LIMIT}, or {Advice.FORCE}. Other strategies: {others}"
    )


def _offer(strategy: Strategy) -> str:
    if strategy.moved is None or strategy.moved_between is None:
        return f"{strategy.name} (cost unknown)"
    return f"{strategy.name} ({strategy.moved:.2%} in the end, {strategy.moved_between:.2%} on the way)"


def _notes(case: Case, chosen: Strategy) -> list[str]:
    notes = []
    if chosen.order is not None:
        notes.append(f"exchange {case.exchange!r}: write this order into the file: {', '.join(chosen.order)}")
    if chosen.name == "blue/green":
        notes.append(
            f"exchange {case.exchange!r}: replace it with the new one in the file; the old exchange stays until nothing "
            f"publishes to it and you delete it. {chosen.summary[:1].upper()}{chosen.summary[1:]}"
        )
    if case.before.runs is None:
        notes.append(f"exchange {case.exchange!r}: {_UNKNOWN}")
    return notes
