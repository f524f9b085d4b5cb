"""The change of one ring: whether there is one, which way it goes, and whether it may. Values only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from rabbit_chx.errors import Unpredictable
from rabbit_chx.movement import moved
from rabbit_chx.ring import Ring
from rabbit_chx.topology.planning.bindings import is_shard
from rabbit_chx.topology.planning.blue_green import blue_green, next_name
from rabbit_chx.topology.planning.ring_paths import Case, path_to, ring_strategies, spoiled
from rabbit_chx.topology.planning.slots import recommended_count, slots_strategy
from rabbit_chx.topology.planning.steps import RingChange, Strategy, Unbind

if TYPE_CHECKING:
    from rabbit_chx.topology.model import Exchange, Observed, Topology
    from rabbit_chx.topology.planning.steps import Step

__all__ = ["STRATEGIES", "Options", "Outcome", "all_strategies", "change_ring", "ring_of"]

STRATEGIES: Final = ("append", "in place", "remove-last", "swap", "blue/green", "slots")
"""The names of all strategies."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller allows."""

    strategy: str | None = None
    prune: bool = False
    force: bool = False
    max_moved: float = 0.5


@dataclass(slots=True)
class Outcome:
    """What comes of looking at one thing; what comes of several is added up."""

    steps: list[Step] = field(default_factory=list)
    changes: list[RingChange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def __iadd__(self, other: Outcome) -> Self:
        self.steps += other.steps
        self.changes += other.changes
        self.notes += other.notes
        self.refusals += other.refusals
        return self


def ring_of(exchange: str, observed: Observed) -> Ring:
    """The ring of an exchange with its bindings as they are listed, arguments included."""
    bindings = observed.topology.ring_bindings(exchange)
    known = observed.rings.get(exchange)
    if known is not None:
        return Ring(bindings, known.runs, observed.release, known.why_unknown)
    if len(bindings) > 1:
        return Ring(bindings, None, observed.release, "nobody read it")
    return Ring.of(bindings, release=observed.release)


def all_strategies(case: Case, exchange: Exchange, there: Topology) -> tuple[Strategy, ...]:
    """Every way with its cost, the one that ends in the file's order and changes the exchange where it is first."""
    slots = recommended_count(max(1, len(case.target)))
    strategies, walker = ring_strategies(case, sizes=(slots, sum(weight for _, weight in case.target)))
    if not case.target:
        return strategies
    over_slots = slots_strategy(case, walker)
    return (*strategies, blue_green(case, exchange, there, walker), *([over_slots] if over_slots else []))


def change_ring(case: Case, exchange: Exchange, observed: Observed, options: Options) -> Outcome:
    """The steps for one exchange with a ring, or the reason why there are none."""
    before = case.before
    try:
        before.refuse_duplicates()
    except Unpredictable as reason:
        hint = "build a new exchange under another name and switch over to it (blue/green)"
        return Outcome(refusals=[f"exchange {case.exchange!r}: {reason}; {hint}"])
    if any(is_shard(binding.destination) for binding in before.bindings):
        note = f"exchange {case.exchange!r}: the sharding plugin makes its bindings, which are left alone"
        return Outcome(notes=[note])
    twice = [destination for destination, times in Counter(d for d, _ in case.target).items() if times > 1]
    if twice:
        said = f"exchange {case.exchange!r}: the file binds {str(twice[0])!r} twice, and the broker takes only one"
        return Outcome(refusals=[f"{said}: give it one weight"])
    if before.runs == ():
        path = path_to(case.exchange, before, case.target)
        return Outcome(steps=[kind(bound) for kind, bound in path.commands])  # what led nowhere moves nothing
    listed = Counter((binding.destination, binding.weight) for binding in before.bindings)
    if listed == Counter(case.target) and not spoiled(before):
        if before.runs == case.target:
            return Outcome()
        if options.strategy != "in place":
            return Outcome(notes=[_order_note(case)])
    strategies = all_strategies(case, exchange, observed.topology)
    chosen = _chosen(strategies, options.strategy)
    if chosen is None:
        return Outcome(refusals=[_no_such_way(case.exchange, strategies, options.strategy)])
    strategies = tuple(replace(way, chosen=way is chosen) for way in strategies)
    after = before if chosen.after is None else chosen.after
    change = RingChange(case.exchange, before, after, chosen.moved, chosen.moved_between, strategies)
    outcome = Outcome(
        steps=list(chosen.steps), changes=[change], notes=list(_way_notes(case, chosen, observed))
    )
    if _too_much(chosen, options):
        outcome.refusals.append(_refusal(case, chosen, strategies, options))
    return outcome


def _order_note(case: Case) -> str:
    if case.before.runs is None:
        return (
            f"exchange {case.exchange!r} has all its bindings, but the order of its ring is unknown "
            f"({case.before.why_unknown or 'nobody read it'}): let it be read from the node, or inferred from "
            "observed messages"
        )
    share = moved(case.before, Ring.of(case.target, release=case.before.release)).share
    return (
        f"exchange {case.exchange!r} has all its bindings, in another order than the file: {share:.2%} of its keys go "
        "elsewhere than the file says. It is left alone: write the order of the broker into the file, or move them "
        "with the way 'in place'"
    )


def _chosen(strategies: tuple[Strategy, ...], name: str | None) -> Strategy | None:
    """The way of that name; where two strategies would be one and the same, it stands under one name only."""
    named = next((way for way in strategies if way.name == name), None)
    if name is None or (named is None and name in {"append", "in place"}):
        return strategies[0]
    if named is None and name == "swap":
        return min(
            (way for way in strategies if way.name in {"append", "in place"}),
            key=lambda way: way.moved or 0.0,
        )
    return named if named is not None and named.steps else None


def _no_such_way(exchange: str, strategies: tuple[Strategy, ...], name: str | None) -> str:
    possible = ", ".join(repr(way.name) for way in strategies if way.steps)
    slots = "; for slots, write them into the file under a new exchange" if name == "slots" else ""
    return f"exchange {exchange!r} cannot be changed by the way {name!r}: possible are {possible}{slots}"


def _too_much(way: Strategy, options: Options) -> bool:
    if options.force or way.name == "blue/green":
        return False
    takes_away = any(isinstance(step, Unbind) for step in way.steps)
    return takes_away and (way.moved_between is None or way.moved_between > options.max_moved)


def _refusal(case: Case, chosen: Strategy, strategies: tuple[Strategy, ...], options: Options) -> str:
    others = "; ".join(_offer(way) for way in strategies if way.name != chosen.name)
    if chosen.moved_between is None:
        return (
            f"exchange {case.exchange!r}: what this change moves cannot be told, since the order of its ring is unknown: "
            f"let it be read from the node (or inferred from observed messages), take another way, or force it. "
            f"Other strategies: {others}"
        )
    return (
        f"exchange {case.exchange!r}: to change it {chosen.name} sends {chosen.moved_between:.2%} of its keys elsewhere "
        f"at some moment, and more than {options.max_moved:.0%} is not done unasked: take another way, allow more, "
        f"or force it. Other strategies: {others or 'none'}"
    )


def _offer(way: Strategy) -> str:
    if way.moved is None or way.moved_between is None:
        cost = "cost unknown"
    else:
        cost = f"{way.moved:.2%} in the end, {way.moved_between:.2%} on the way"
    return f"{way.name} ({cost})"


def _way_notes(case: Case, way: Strategy, observed: Observed) -> list[str]:
    notes = []
    if way.order is not None:
        notes.append(f"exchange {case.exchange!r}: write this order into the file: {', '.join(way.order)}")
    if way.name == "blue/green":
        name = next_name(case.exchange, [each.name for each in observed.topology.exchanges])
        notes.append(
            f"exchange {case.exchange!r}: write {name!r} into the file in its place; the old one stays until nothing "
            f"publishes to it any more and it is deleted. {way.summary}"
        )
    if case.before.runs is None:
        notes.append(
            f"exchange {case.exchange!r}: the order of its ring is unknown, so what moves is unknown too: let it be read "
            "from the node, or inferred from observed messages"
        )
    return notes
