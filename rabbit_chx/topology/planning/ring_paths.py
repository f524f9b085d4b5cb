"""The commands that turn one ring into another, and the exact share of keys that each moves.

A ring is a stack, because a bind always appends. It can therefore keep the longest prefix of the wanted ring that it
already holds in the same order; everything else is unbound, last first, and bound again. A weight changes by unbinding
and binding. This module does no IO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, TypeAlias

from rabbit_chx.movement import MovementTracker, TrackedMovement, first_buckets
from rabbit_chx.ring import Destination, Ring
from rabbit_chx.topology.diff import weight_of
from rabbit_chx.topology.model import Binding, as_ring_bindings
from rabbit_chx.topology.planning.steps import Bind, Step, Strategy, Unbind
from rabbit_chx.topology.planning.tail_order import fewest_moved

_FEW: Final = 4
"""Shifted destinations are bound again too if more than this many times as many are unbound below them."""
_LONGEST_TAIL: Final = 500
"""The most destinations for which the best order is searched."""
_MOST_CELLS: Final = 1 << 23
"""The most pairs of destination and bucket that the search counts."""

_Commands: TypeAlias = "list[tuple[type[Bind | Unbind], Destination]]"

Runs: TypeAlias = "tuple[tuple[Destination, int], ...]"
"""Destinations and their weights, in ring order."""


@dataclass(frozen=True)
class Case:
    """An exchange whose ring must change."""

    exchange: str
    before: Ring
    wanted: tuple[Binding, ...]
    """The bindings in the file, in order."""
    spoiled: frozenset[Destination] = frozenset()
    """Destinations that must be unbound and bound again: dead ones, and those that are bound twice."""
    waiting: Callable[[Iterable[Destination]], int | None] = lambda _: None
    """Counts the messages in the queues behind destinations."""

    @property
    def target(self) -> Runs:
        """The ring that the file describes."""
        return tuple((each.destination, int(weight_of(each))) for each in self.wanted)


@dataclass(frozen=True, slots=True)
class Path:
    """Commands and their effect on a ring."""

    commands: tuple[tuple[type[Bind | Unbind], Binding], ...]
    changes: tuple[tuple[Destination, int] | None, ...]
    """The bound destination and its weight (0: unbound) for each command; None if the ring does not change."""
    after: Ring
    sizes: tuple[int, int]
    """The smallest and the largest number of buckets during the change."""

    @property
    def only_binds(self) -> bool:
        """Whether all commands are binds."""
        return all(kind is Bind for kind, _ in self.commands)


def path_to(case: Case, target: Runs, *, rebuild: bool = False) -> Path:
    """The fewest commands to a ring, preferring those that move the fewest keys during the change.

    In a ring of unknown order, correct bindings are kept and the others are appended, regardless of the resulting order. With
    ``rebuild``, everything is bound again.
    """
    before, bad = case.before, case.spoiled
    if before.runs is not None:
        kept = _kept(before.runs, target, bad)
        alive = [destination for destination, _ in before.runs]
    else:
        weights = {binding.destination: binding.weight for binding in before.bindings}
        kept = [] if rebuild else [d for d, weight in target if weights.get(d) == weight and d not in bad]
        alive = list(weights)
    stays = set(kept)
    add = [destination for destination, _ in target if destination not in stays]
    drop = [destination for destination in reversed(alive) if destination not in stays]
    dead = bad.intersection(each.destination for each in before.bindings) - set(alive)
    commands: _Commands = [(Unbind, destination) for destination in sorted(dead, key=str)]
    commands += _commands(drop, add, keeps=bool(kept))
    return _Simulation(case).carry_out(commands)


def _kept(runs: Runs, target: Runs, bad: frozenset[Destination]) -> list[Destination]:
    """The longest prefix of the target that the ring holds in the same order, if keeping it is worthwhile.

    Unbinding a destination in between shifts the kept destinations after it. If many must be unbound in between and
    few are kept after them, those few are unbound too, from the end, and bound again.
    """
    index = {run: place for place, run in enumerate(runs)}
    kept: list[Destination] = []
    places: list[int] = []
    for run in target:
        place = index.get(run, -1)
        if run[0] in bad or place < (places[-1] + 1 if places else 0):
            break
        places.append(place)
        kept.append(run[0])
    firm = next((i for i, place in enumerate(places) if i != place), len(kept))
    between = places[-1] + 1 - len(kept) if places else 0
    few_behind = _FEW * (len(kept) - firm) < between
    return kept[:firm] if few_behind and len(kept) < len(target) else kept


def _commands(drop: Sequence[Destination], add: Sequence[Destination], *, keeps: bool) -> _Commands:
    """Unbind from the end, then bind; if possible, the exchange always has a binding."""
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


@dataclass
class _Simulation:
    """Simulates `Ring.bind` and `Ring.unbind` in constant time per command."""

    case: Case
    _done: list[tuple[type[Bind | Unbind], Binding]] = field(default_factory=list)
    _changes: list[tuple[Destination, int] | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        ring = self.case.before
        self._bind = {each.destination: each for each in self.case.wanted}
        self._runs = None if ring.runs is None else dict(ring.runs)
        self._listed: dict[Destination, list[Binding]] = {}
        for each in ring.bindings:
            found = Binding(self.case.exchange, each.destination, each.key, dict(each.arguments))
            self._listed.setdefault(each.destination, []).append(found)
        self._size = 0 if ring.runs is None else len(ring)
        self._sizes = [self._size, self._size]

    def carry_out(self, commands: _Commands) -> Path:
        for kind, destination in commands:
            if kind is Bind:
                self._append(destination)
            else:
                self._remove(destination)
        bindings = as_ring_bindings(each for listed in self._listed.values() for each in listed)
        runs = None if self._runs is None else tuple(self._runs.items())
        before = self.case.before
        after = Ring(
            bindings, runs if bindings else (), before.release, before.why_unknown if bindings else ""
        )
        return Path(tuple(self._done), tuple(self._changes), after, (self._sizes[0], self._sizes[1]))

    def _append(self, destination: Destination) -> None:
        binding = self._bind[destination]
        self._done.append((Bind, binding))
        self._listed.setdefault(destination, []).append(binding)
        takes_effect = self._runs is not None and destination not in self._runs
        self._change(destination, int(weight_of(binding)) if takes_effect else None)

    def _remove(self, destination: Destination) -> None:
        listed = self._listed.pop(destination)
        for number, binding in enumerate(listed, start=1):
            self._done.append((Unbind, binding))
            twins = [each for each in listed[number:] if each.key == binding.key]
            spared = bool(twins) and self.case.before.release.unbind_spares_duplicates
            takes_effect = self._runs is not None and destination in self._runs and not spared
            self._change(destination, 0 if takes_effect else None)

    def _change(self, destination: Destination, weight: int | None) -> None:
        self._changes.append(None if weight is None else (destination, weight))
        if weight is None or self._runs is None:
            return
        if weight:
            self._runs[destination] = weight
            self._size += weight
        else:
            self._size -= self._runs.pop(destination)
        self._sizes = [min(self._sizes[0], self._size), max(self._sizes[1], self._size)]


def ring_strategies(
    case: Case, *, sizes: Sequence[int] = ()
) -> tuple[tuple[Strategy, ...], MovementTracker | None]:
    """The strategies that change the exchange in place; the first ends in the file's order.

    The returned tracker supports these ``sizes`` too, and is None if the current ring is unknown.
    """
    direct = path_to(case, case.target)
    if case.before.runs is None:
        rebuilt = path_to(case, case.target, rebuild=True)
        found = [_strategy(case, "append", direct, None), _strategy(case, "in place", rebuilt, None)]
        return tuple(each for each in found if each.steps), None
    paths = [("append" if direct.only_binds else "in place", direct)]
    appended = path_to(case, _appended(case))
    if appended.commands and appended.after.runs != direct.after.runs:
        paths.append(("append", appended))
    shorter = _without_last(case)
    if shorter is not None:
        paths.append(("remove-last", shorter))
    tail = _tail(case)
    tracker = _tracker(case, [path for _, path in paths], tail, sizes)
    swapped = _swapped(case, tail, tracker)
    if swapped is not None and swapped.after.runs not in [path.after.runs for _, path in paths]:
        paths.append(("swap", swapped))
    return tuple(_strategy(case, name, path, tracker.follow(path.changes)) for name, path in paths), tracker


def _appended(case: Case) -> Runs:
    """The correct destinations in their current order, followed by the new and changed ones."""
    wanted = set(case.target)
    right = [run for run in case.before.runs or () if run in wanted and run[0] not in case.spoiled]
    stays = set(right)
    return (*right, *(run for run in case.target if run not in stays))


def _without_last(case: Case) -> Path | None:
    """If the change only removes queues, the path that removes as many from the end instead."""
    runs = case.before.runs
    if runs is None or case.spoiled or not set(case.target) < set(runs):
        return None
    target = runs[: len(case.target)]
    return None if target == case.target else path_to(case, target)


@dataclass(frozen=True, slots=True)
class _Tail:
    """The part of a ring after the first destination that must be unbound."""

    head: Runs
    size: int
    """The number of buckets before the tail, which are kept."""
    starts: dict[Destination, int]
    """The current first bucket of each destination."""
    weights: dict[Destination, int]
    """The destinations to bind again, with their wanted weights."""


def _tail(case: Case) -> _Tail | None:
    """The tail of the ring, if it must change and is small enough to search for the best order."""
    runs = case.before.runs or ()
    wanted = set(case.target)
    stays = tuple(takewhile(lambda run: run in wanted and run[0] not in case.spoiled, runs))
    head, size = sum(weight for _, weight in stays), len(case.before)
    starts = first_buckets(case.before)
    weights = {d: weight for d, weight in _appended(case) if starts.get(d, size) >= head}
    end = head + sum(weights.values())
    if head == size or not weights or len(weights) > _LONGEST_TAIL or len(runs) * end > _MOST_CELLS:
        return None
    return _Tail(stays, head, starts, weights)


def _tracker(case: Case, paths: Iterable[Path], tail: _Tail | None, asked: Sequence[int]) -> MovementTracker:
    sizes = [*asked, *(size for path in paths for size in path.sizes)]
    if tail is not None:  # a swap without a head may briefly hold both the old and the new tail
        sizes += [tail.size, len(case.before) + sum(weight for _, weight in case.target)]
    return MovementTracker(case.before, min(sizes), max(sizes))


def _swapped(case: Case, tail: _Tail | None, tracker: MovementTracker) -> Path | None:
    """The path to the order that moves the fewest keys overall."""
    if tail is None:
        return None
    order = fewest_moved(tracker, tail.size, tail.weights, tail.starts)
    return path_to(case, (*tail.head, *((d, tail.weights[d]) for d in order)))


_SUMMARIES: Final = {
    "append": "bind at the end; nothing that stays is bound again",
    "in place": "exactly the order of the file",
    "remove-last": "unbind the last-bound instead; only its own keys move",
    "swap": "bind the tail again in the order that moves the fewest keys in the end",
}


def _strategy(case: Case, name: str, path: Path, journey: TrackedMovement | None) -> Strategy:
    summary = _SUMMARIES[name]
    if path.changes and path.sizes[0] == 0 and case.before.runs:
        summary += "; for a moment the exchange has no binding, and messages are lost or returned"
    order = None
    if path.after.runs is not None and path.after.runs != case.target:
        order = tuple(str(destination) for destination, _ in path.after.runs)
    return Strategy(
        name,
        summary,
        moved=None if journey is None else journey.share,
        moved_between=None if journey is None else journey.between,
        after=path.after,
        steps=tuple(_steps(case, path, journey)),
        order=order,
    )


def _steps(case: Case, path: Path, journey: TrackedMovement | None) -> Iterator[Step]:
    for i, (kind, binding) in enumerate(path.commands):
        if journey is None:
            yield kind(binding, exchange_moved=case.exchange, moved=None)
        else:
            hop = journey.hops[i]
            at_risk = case.waiting(hop.losers) if hop.losers else 0
            yield kind(binding, exchange_moved=case.exchange, moved=hop.share, at_risk=at_risk)
