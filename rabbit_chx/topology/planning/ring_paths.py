"""The commands that turn one ring into another, and the exact share of keys that each moves.

A ring is a stack, because a bind always appends. It can therefore keep the longest prefix of the wanted ring that it
already holds in the same order; everything else is unbound, last first, and bound again. A weight changes by unbinding
and binding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, TypeAlias

from rabbit_chx.mirror.movement import MovementTracker, TrackedMovement
from rabbit_chx.mirror.ring import Destination, Ring, changed_ring
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
    return Path(case, commands)


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
    unbinds: _Commands = [(Unbind, destination) for destination in drop]
    binds: _Commands = [(Bind, destination) for destination in add]
    if keeps or not add or not drop:
        return unbinds + binds
    first = add[0]
    anchor = next((d for d in reversed(drop) if d != first), None)
    if anchor is not None:
        unbinds.remove((Unbind, anchor))
        return [*unbinds, binds[0], (Unbind, anchor), *binds[1:]]
    if len(add) > 1:
        return [binds[1], *unbinds, binds[0], (Unbind, add[1]), *binds[1:]]
    return unbinds + binds


class Path:
    """Commands and their effect on a ring, by `Ring.bind` and `Ring.unbind` in constant time per command."""

    def __init__(self, case: Case, commands: _Commands) -> None:
        ring = case.before
        self.commands: list[tuple[type[Bind | Unbind], Binding]] = []
        self.changes: list[tuple[Destination, int] | None] = []
        """The bound destination and its weight (0: unbound) for each command; None if the ring does not change."""
        self.sizes: list[int] = [0 if ring.runs is None else len(ring)]
        """The number of buckets before the change, and after each command that changes it."""
        self._spares_duplicates = ring.release.unbind_spares_duplicates
        self._bind = {each.destination: each for each in case.wanted}
        self._runs = None if ring.runs is None else dict(ring.runs)
        self._listed: dict[Destination, list[Binding]] = {}
        for each in ring.bindings:
            found = Binding(case.exchange, each.destination, each.key, dict(each.arguments))
            self._listed.setdefault(each.destination, []).append(found)
        for kind, destination in commands:
            if kind is Bind:
                self._append(destination)
            else:
                self._remove(destination)
        bindings = as_ring_bindings(each for listed in self._listed.values() for each in listed)
        runs = None if self._runs is None else tuple(self._runs.items())
        self.after: Final = changed_ring(ring, bindings, runs)

    def _append(self, destination: Destination) -> None:
        binding = self._bind[destination]
        self.commands.append((Bind, binding))
        self._listed.setdefault(destination, []).append(binding)
        self._change(destination, int(weight_of(binding)))

    def _remove(self, destination: Destination) -> None:
        listed = self._listed.pop(destination)
        for number, binding in enumerate(listed, start=1):
            self.commands.append((Unbind, binding))
            has_twin = any(each.key == binding.key for each in listed[number:])
            self._change(destination, 0, spared=has_twin and self._spares_duplicates)

    def _change(self, destination: Destination, weight: int, *, spared: bool = False) -> None:
        # A second bind has no effect, nor has a second unbind.
        if self._runs is None or spared or (destination in self._runs) == bool(weight):
            self.changes.append(None)
            return
        self.changes.append((destination, weight))
        self.sizes.append(self.sizes[-1] + weight - self._runs.pop(destination, 0))
        if weight:
            self._runs[destination] = weight


def ring_strategies(
    case: Case, *, sizes: Sequence[int] = ()
) -> tuple[tuple[Strategy, ...], MovementTracker | None]:
    """The strategies that change the exchange in place; the first ends in the file's order.

    The returned tracker supports these ``sizes`` too, and is None if the current ring is unknown.
    """
    direct, runs = path_to(case, case.target), case.before.runs
    if runs is None:
        rebuilt = path_to(case, case.target, rebuild=True)
        found = [_strategy(case, "append", direct, None), _strategy(case, "in place", rebuilt, None)]
        return tuple(each for each in found if each.steps), None
    only_binds = all(kind is Bind for kind, _ in direct.commands)
    paths = [("append" if only_binds else "in place", direct)]
    appended = path_to(case, _appended(case))
    if appended.commands and appended.after.runs != direct.after.runs:
        paths.append(("append", appended))
    # A change that only removes queues could remove as many from the end instead.
    last_removed = runs[: len(case.target)]
    if set(case.target) < set(runs) and last_removed != case.target and not case.spoiled:
        paths.append(("remove-last", path_to(case, last_removed)))
    head, tail = _split(case)
    sizes = [*sizes, *(size for _, path in paths for size in path.sizes)]
    if tail:  # a swap without a head may briefly hold both the old and the new tail
        sizes += [_size(head), len(case.before) + _size(case.target)]
    tracker = MovementTracker(case.before, min(sizes), max(sizes))
    if tail:
        swapped = path_to(case, (*head, *fewest_moved(tracker, _size(head), tail)))
        if swapped.after.runs not in [path.after.runs for _, path in paths]:
            paths.append(("swap", swapped))
    return tuple(_strategy(case, name, path, tracker.follow(path.changes)) for name, path in paths), tracker


def _appended(case: Case) -> Runs:
    """The correct destinations in their current order, followed by the new and changed ones."""
    wanted = set(case.target)
    right = (run for run in case.before.runs or () if run in wanted and run[0] not in case.spoiled)
    return tuple(dict.fromkeys((*right, *case.target)))


def _split(case: Case) -> tuple[Runs, dict[Destination, int]]:
    """The part of the ring before the first destination that must be unbound, and what to bind after it.

    The second is empty if nothing must change there, or if it is too long to search for the best order.
    """
    runs = case.before.runs or ()
    wanted = set(case.target)
    head = tuple(takewhile(lambda run: run in wanted and run[0] not in case.spoiled, runs))
    tail = dict(_appended(case)[len(head) :])  # the destinations before are those of the head
    cells = len(runs) * (_size(head) + sum(tail.values()))
    return head, {} if head == runs or len(tail) > _LONGEST_TAIL or cells > _MOST_CELLS else tail


def _size(runs: Runs) -> int:
    return sum(weight for _, weight in runs)


_SUMMARIES: Final = {
    "append": "bind at the end; nothing that stays is bound again",
    "in place": "exactly the order of the file",
    "remove-last": "unbind the last-bound instead; only its own keys move",
    "swap": "bind the tail again in the order that moves the fewest keys in the end",
}


def _strategy(case: Case, name: str, path: Path, journey: TrackedMovement | None) -> Strategy:
    summary = _SUMMARIES[name]
    if 0 in path.sizes and case.before.runs:
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
