"""Where the keys go when a ring changes, laid out for a picture: two columns of queues, and ribbons between them.

Lengths are shares of all keys; whoever draws scales them. Values in, values out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rabbit_chx.movement import Movement
    from rabbit_chx.ring import Ring

__all__ = ["Flow", "Ribbon", "laid_out"]

_MOST_SHOWN: Final = 12
"""So many queues a flow picture shows, those with the largest shares; the others are one."""
_MOST_CHANGED: Final = 4
"""Of those that come or go, so many are shown however small they are."""
_GAP: Final = 4 / 260
"""Between two queues."""
_OTHERS: Final = "all others"
_NOWHERE: Final = "nowhere"

Column: TypeAlias = "Mapping[str, tuple[float, float]]"
"""Queues with where each begins and ends, from the top."""


@dataclass(frozen=True, slots=True)
class Ribbon:
    """Keys that go from one queue to one queue."""

    source: str
    target: str
    moves: bool
    share: float
    at_source: float
    """Where it begins, from the top."""
    at_target: float

    def __str__(self) -> str:
        to = f"go from {self.source} to {self.target}" if self.moves else f"stay with {self.source}"
        return f"{self.share:.3%} {to}"


@dataclass(frozen=True, slots=True)
class Flow:
    """The whole picture."""

    left: Column
    right: Column
    ribbons: tuple[Ribbon, ...]
    """Those of keys that stay first: they lie below."""
    changed: frozenset[str]
    """What comes or goes."""

    @property
    def height(self) -> float:
        """Of both columns, with room for what is too small for its name."""
        return 1 + _GAP * max(len(self.left), len(self.right))

    def named(self, column: Column, line: float) -> frozenset[str]:
        """Which have room for a line of text beside them; what comes or goes needs only be clear of the last one."""
        found, last = set(), -line
        for name, (top, bottom) in column.items():
            middle = (top + bottom) / 2
            if bottom - top >= line or (name in self.changed and middle - last >= line):
                found.add(name)
                last = middle
        return frozenset(found)


def laid_out(movement: Movement, before: Ring, after: Ring) -> Flow:
    """Find a place for every queue and every ribbon; of very many queues the rest is one."""
    sums = _folded(movement, before, after)
    left, right = _names(before, sums, 0), _names(after, sums, 1)
    order = {name: place for place, name in enumerate(dict.fromkeys([*left, *right]))}
    ends = sorted(sums, key=lambda end: (order[end[0]], order[end[1]], end[2]))
    at_left, at_right = _places(left, sums, 0), _places(right, sums, 1)
    filled_left, filled_right = ({name: top for name, (top, _) in at.items()} for at in (at_left, at_right))
    ribbons = []
    for source, target, moves in ends:
        share = sums[source, target, moves]
        ribbons.append(Ribbon(source, target, moves, share, filled_left[source], filled_right[target]))
        filled_left[source] += share
        filled_right[target] += share
    ribbons.sort(key=lambda ribbon: ribbon.moves)
    return Flow(at_left, at_right, tuple(ribbons), frozenset(set(left) ^ set(right)))


_Sums: TypeAlias = "dict[tuple[str, str, bool], float]"


def _folded(movement: Movement, before: Ring, after: Ring) -> _Sums:
    """The share of keys for every pair of names that is shown, and whether they move."""
    shown = _shown(movement, before, after)
    sums: _Sums = {}
    for ends, share in movement.flows.items():
        source, target = (_NOWHERE if end is None else str(end) for end in ends)
        moves = source != target
        source, target = (name if name in shown else _OTHERS for name in (source, target))
        sums[source, target, moves] = sums.get((source, target, moves), 0.0) + share
    return {ends: share for ends, share in sums.items() if share}


def _shown(movement: Movement, before: Ring, after: Ring) -> set[str]:
    """Some of what comes or goes, and the largest."""
    left, right = (list(map(str, ring.destinations)) for ring in (before, after))
    size: dict[str, float] = {}
    for (source, target), share in movement.flows.items():
        for name in {str(source), str(target)}:
            size[name] = size.get(name, 0.0) + share
    largest = sorted(dict.fromkeys([*left, *right]), key=lambda name: -size.get(name, 0.0))
    if len(largest) <= _MOST_SHOWN:
        return {*largest, _NOWHERE}
    changed = set(left) ^ set(right)
    first = [name for name in largest if name in changed][:_MOST_CHANGED]
    return {_NOWHERE, *list(dict.fromkeys([*first, *largest]))[: _MOST_SHOWN - 1]}


def _names(ring: Ring, sums: _Sums, end: int) -> list[str]:
    """The queues of one side in the order of their buckets."""
    there = {ends[end] for ends in sums}
    return [
        name for name in dict.fromkeys([*map(str, ring.destinations), _OTHERS, _NOWHERE]) if name in there
    ]


def _places(names: Iterable[str], sums: _Sums, end: int) -> dict[str, tuple[float, float]]:
    places: dict[str, tuple[float, float]] = {}
    top = 0.0
    for name in names:
        bottom = top + sum(share for ends, share in sums.items() if ends[end] == name)
        places[name] = (top, bottom)
        top = bottom + _GAP
    return places
