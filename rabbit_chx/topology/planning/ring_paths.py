"""The ways from one ring to another, command by command, and exactly what each of them moves.

A ring is a stack: the only place to bind is its end. So a ring can keep the longest beginning of the wanted one
that it already holds in that order; everything else is unbound, the last first, and what is wanted is bound again.
A weight changes by unbinding and binding. Nothing here knows a whole topology, and nothing is sent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from rabbit_chx.movement import MovementTracker, TrackedMovement
from rabbit_chx.topology.model import BIND_SEQUENCE, Binding
from rabbit_chx.topology.planning.steps import Bind, Strategy, Unbind
from rabbit_chx.topology.planning.tail_order import fewest_moved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rabbit_chx.ring import Destination, Ring, RingBinding
    from rabbit_chx.topology.planning.steps import Step

__all__ = ["Case", "Path", "Target", "path_to", "ring_strategies", "spoiled"]

_FEW: Final = 4
"""How many times more must be unbound under a destination before it is bound anew as well."""

_Commands: TypeAlias = "list[tuple[type[Bind | Unbind], Destination]]"

Target: TypeAlias = "tuple[tuple[Destination, int], ...]"
"""Destinations and their weights, in the order in which they should stand."""


@dataclass(frozen=True, slots=True)
class Case:
    """One exchange whose ring has to change."""

    exchange: str
    before: Ring
    """As it is, with every listed binding as the broker lists it."""
    target: Target
    """As the file has it."""
    waiting: Callable[[Iterable[Destination]], int | None] = lambda _: None
    """The messages that wait behind destinations."""


@dataclass(frozen=True, slots=True)
class Path:
    """Commands, and the ring after each of them."""

    commands: tuple[tuple[type[Bind | Unbind], Binding], ...]
    rings: tuple[Ring, ...]

    @property
    def only_binds(self) -> bool:
        """Whether nothing is taken away."""
        return all(kind is Bind for kind, _ in self.commands)

    @property
    def runs_empty(self) -> bool:
        """Whether there is a moment at which the exchange leads nowhere."""
        return any(ring.runs == () for ring in self.rings[:-1])


def spoiled(ring: Ring) -> frozenset[Destination]:
    """Destinations bound twice, or bound without having buckets: only binding them anew makes them right."""
    listed = Counter(binding.destination for binding in ring.bindings)
    alive = None if ring.runs is None else {destination for destination, _ in ring.runs}
    return frozenset(
        destination
        for destination, times in listed.items()
        if times > 1 or (alive is not None and destination not in alive)
    )


def path_to(exchange: str, before: Ring, target: Target, *, rebuild: bool = False) -> Path:
    """The fewest commands to a ring, and among those the ones that disturb the fewest keys on the way.

    Of a ring of unknown order the bindings that are right stay and the others come behind them, in whatever
    order that ends; with ``rebuild`` everything is bound anew.
    """
    bad = spoiled(before)
    if before.runs is not None:
        kept = _kept(before.runs, target, bad)
        alive = [destination for destination, _ in before.runs]
    else:
        weights = {binding.destination: binding.weight for binding in before.bindings}
        kept = [] if rebuild else [d for d, weight in target if weights.get(d) == weight and d not in bad]
        alive = list(weights)
    add = [destination for destination, _ in target if destination not in kept]
    drop = [destination for destination in reversed(alive) if destination not in kept]
    dead = [destination for destination in bad if destination not in alive]
    commands: _Commands = [(Unbind, destination) for destination in sorted(dead, key=str)]
    commands += _commands(drop, add, keeps=bool(kept))
    return _walked(exchange, before, dict(target), commands)


def _kept(runs: Target, target: Target, bad: frozenset[Destination]) -> list[Destination]:
    """The longest beginning of the target that stands in the ring in that order, where that is of use.

    What lies between is unbound from under those behind it, which shifts them every time: where it is much and
    they are few, they are unbound too, from the end, and bound again.
    """
    kept: list[Destination] = []
    places: list[int] = []
    for run in target:
        place = places[-1] + 1 if places else 0
        if run[0] in bad or run not in runs[place:]:
            break
        places.append(runs.index(run, place))
        kept.append(run[0])
    firm = next((i for i, place in enumerate(places) if i != place), len(kept))
    between = places[-1] + 1 - len(kept) if places else 0
    few_behind = _FEW * (len(kept) - firm) < between
    return kept[:firm] if few_behind and len(kept) < len(target) else kept


def _commands(drop: Sequence[Destination], add: Sequence[Destination], *, keeps: bool) -> _Commands:
    """Unbinds from the end, then binds; something stays bound throughout wherever that can be had."""
    if keeps or not add or not drop:
        unbinds: _Commands = [(Unbind, destination) for destination in drop]
        return unbinds + _binds(add)
    first = add[0]
    anchor = next((d for d in reversed(drop) if d != first), None)
    if anchor is not None:
        rest: _Commands = [(Unbind, destination) for destination in drop if destination != anchor]
        return [*rest, (Bind, first), (Unbind, anchor), *_binds(add[1:])]
    if len(add) > 1:
        anchor = add[1]
        return [(Bind, anchor), (Unbind, first), (Bind, first), (Unbind, anchor), *_binds(add[1:])]
    return [(Unbind, first), (Bind, first)]


def _binds(destinations: Iterable[Destination]) -> _Commands:
    return [(Bind, destination) for destination in destinations]


def _walked(
    exchange: str,
    before: Ring,
    weights: dict[Destination, int],
    commands: _Commands,
) -> Path:
    number = 1 + max((_number(binding) for binding in before.bindings), default=0)
    done: list[tuple[type[Bind | Unbind], Binding]] = []
    rings: list[Ring] = []
    ring = before
    for kind, destination in commands:
        if kind is Bind:
            arguments = {BIND_SEQUENCE: number}
            bounds = [Binding(exchange, destination, str(weights[destination]), arguments)]
            number += 1
        else:
            listed = [binding for binding in ring.bindings if binding.destination == destination]
            bounds = [Binding(exchange, destination, each.key, dict(each.arguments)) for each in listed]
        for bound in bounds:
            change = ring.bind if kind is Bind else ring.unbind
            ring = change(destination, bound.key, bound.arguments)
            done.append((kind, bound))
            rings.append(ring)
    return Path(tuple(done), tuple(rings))


def _number(binding: RingBinding) -> int:
    return Binding("", binding.destination, binding.key, dict(binding.arguments)).sequence or 0


def ring_strategies(
    case: Case, *, sizes: Sequence[int] = ()
) -> tuple[tuple[Strategy, ...], MovementTracker | None]:
    """The ways that change the exchange where it is, that of the file's own order first.

    Args:
        case: what is, and what should be.
        sizes: numbers of buckets that the caller wants to ask the walker about, which is returned for that.
    """
    direct = path_to(case.exchange, case.before, case.target)
    if case.before.runs is None:
        rebuilt = path_to(case.exchange, case.before, case.target, rebuild=True)
        ways = [_way(case, "append", direct, None), _way(case, "in place", rebuilt, None)]
        return tuple(way for way in ways if way.steps), None
    paths = [("append" if direct.only_binds else "in place", direct)]
    appended = path_to(case.exchange, case.before, _appended(case))
    if appended.commands and _order(appended) != _order(direct):
        paths.append(("append", appended))
    shorter = _without_last(case)
    if shorter is not None:
        paths.append(("remove-last", shorter))
    walker = _walker(case, [path for _, path in paths], sizes)
    swapped = _swapped(case, walker)
    if swapped is not None and _order(swapped) not in [_order(path) for _, path in paths]:
        paths.append(("swap", swapped))
    return tuple(_way(case, name, path, walker.along(path.rings)) for name, path in paths), walker


def _order(path: Path) -> object:
    return path.rings[-1].runs if path.rings else None


def _appended(case: Case) -> Target:
    """What is right stays in the order it has; what is new or changed comes behind it."""
    bad = spoiled(case.before)
    if case.before.runs is None:
        return case.target
    right = [run for run in case.before.runs if run in case.target and run[0] not in bad]
    return (*right, *(run for run in case.target if run not in right))


def _without_last(case: Case) -> Path | None:
    """Where all that is wanted is fewer: as many of the last ones gone instead."""
    runs = case.before.runs
    if runs is None or spoiled(case.before) or not set(case.target) < set(runs):
        return None
    target = runs[: len(case.target)]
    return None if target == case.target else path_to(case.exchange, case.before, target)


def _walker(case: Case, paths: Iterable[Path], asked: Sequence[int]) -> MovementTracker:
    head = _head(case)
    sizes = [*asked, *(len(ring) for path in paths for ring in path.rings)]
    total = len(case.before) + sum(weight for _, weight in case.target)
    # A swap never goes below the head; one without a head may hold old and new for a moment.
    highest = max(sizes if head else [total, *sizes], default=1)
    return MovementTracker(case.before, min([head, *sizes]), highest)


def _head(case: Case) -> int:
    """The buckets before the first destination that has to go, which no way but the file's own need touch."""
    bad = spoiled(case.before)
    size = 0
    for run in case.before.runs or ():
        if run not in case.target or run[0] in bad:
            break
        size += run[1]
    return size


def _swapped(case: Case, walker: MovementTracker) -> Path | None:
    """The path to the order that moves the fewest keys in the end, where one has to go from the middle."""
    head = _head(case)
    runs = case.before.runs or ()
    if head == len(case.before):
        return None  # nothing has to go: binding at the end moves no more than it must
    starts: dict[Destination, int] = {}
    size = 0
    for destination, weight in runs:
        starts[destination] = size
        size += weight
    tail = {d: weight for d, weight in _appended(case) if starts.get(d, size) >= head}
    if not tail:
        return None
    weights = dict(case.target)
    stay = tuple(run for run in runs if starts[run[0]] < head)
    order = fewest_moved(walker, head, tail, starts)
    return path_to(case.exchange, case.before, (*stay, *((d, weights[d]) for d in order)))


_SUMMARIES = {
    "append": "bind at the end: nothing that stays is bound again",
    "in place": "to exactly the order of the file",
    "remove-last": "let the last bound go instead: only its own keys move",
    "swap": "bind the tail again in the order in which the fewest keys move in the end",
}


def _way(case: Case, name: str, path: Path, journey: TrackedMovement | None) -> Strategy:
    summary = _SUMMARIES[name]
    if path.runs_empty and case.before.bindings:
        summary += "; the exchange leads nowhere for a moment, and messages are lost or returned"
    after = path.rings[-1] if path.rings else case.before
    order = None
    if after.runs is not None and after.runs != case.target:
        order = tuple(str(destination) for destination, _ in after.runs)
    return Strategy(
        name,
        summary,
        moved=None if journey is None else journey.share,
        moved_between=None if journey is None else journey.between,
        after=after,
        steps=tuple(_steps(case, path, journey)),
        order=order,
    )


def _steps(case: Case, path: Path, journey: TrackedMovement | None) -> Iterator[Step]:
    for i, (kind, bound) in enumerate(path.commands):
        if journey is None:
            yield kind(bound, exchange_moved=case.exchange, moved=None)
        else:
            hop = journey.hops[i]
            at_risk = case.waiting(hop.losers) if hop.losers else 0
            yield kind(bound, exchange_moved=case.exchange, moved=hop.share, at_risk=at_risk)
