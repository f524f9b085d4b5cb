"""Lay out where keys go when a ring changes: two columns of queues, with ribbons between them.

Lengths are shares of all keys; the drawing code scales them. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from rabbit_chx.mirror.movement import Movement
from rabbit_chx.mirror.ring import Ring

_MOST_SHOWN: Final = 12
"""The most queues in a flow picture: those with the largest shares. The others are drawn as one."""
_MOST_CHANGED: Final = 4
"""Of the added and removed queues, this many are shown even if their shares are small."""
_GAP: Final = 4 / 260
"""The gap between two queues."""
_OTHERS: Final = "all others"
_NOWHERE: Final = "nowhere"

Column: TypeAlias = "Mapping[str, tuple[float, float]]"
"""Queues, each with the positions of its top and bottom."""


@dataclass(frozen=True, slots=True)
class Ribbon:
    """Keys that go from one queue to another, or stay in their queue."""

    source: str
    target: str
    moves: bool
    share: float
    at_source: float
    """The position of the ribbon's top in the left column; ``at_target`` is the one in the right column."""
    at_target: float

    def __str__(self) -> str:
        to = f"go from {self.source} to {self.target}" if self.moves else f"stay with {self.source}"
        return f"{self.share:.3%} {to}"


@dataclass(frozen=True, slots=True)
class Flow:
    """The layout of the whole picture."""

    left: Column
    right: Column
    ribbons: tuple[Ribbon, ...]
    """Ribbons of keys that stay come first, so that the others are drawn over them."""
    changed: frozenset[str]
    """The queues that are added or removed."""

    @property
    def height(self) -> float:
        """The height of both columns, gaps included."""
        return 1 + _GAP * max(len(self.left), len(self.right))

    def named(self, column: Column, line: float) -> frozenset[str]:
        """Return the queues to label: those as high as a line of text, and added or removed ones whose label overlaps none."""
        found, last = set(), -line
        for name, (top, bottom) in column.items():
            middle = (top + bottom) / 2
            if bottom - top >= line or (name in self.changed and middle - last >= line):
                found.add(name)
                last = middle
        return frozenset(found)


def laid_out(movement: Movement, before: Ring, after: Ring) -> Flow:
    """Position every queue and every ribbon; with very many queues, the smaller ones are combined."""
    sums = _sums(movement, before, after)
    left, right = _column(before, sums, 0), _column(after, sums, 1)
    order = {name: place for place, name in enumerate(dict.fromkeys([*left, *right]))}
    ends = sorted(sums, key=lambda end: (order[end[0]], order[end[1]], end[2]))
    filled_left, filled_right = ({name: top for name, (top, _) in at.items()} for at in (left, right))
    ribbons = []
    for source, target, moves in ends:
        share = sums[source, target, moves]
        ribbons.append(Ribbon(source, target, moves, share, filled_left[source], filled_right[target]))
        filled_left[source] += share
        filled_right[target] += share
    ribbons.sort(key=lambda ribbon: ribbon.moves)
    return Flow(left, right, tuple(ribbons), frozenset(set(left) ^ set(right)))


_Sums: TypeAlias = "dict[tuple[str, str, bool], float]"


def _sums(movement: Movement, before: Ring, after: Ring) -> _Sums:
    """Sum the shares of keys by source, target and whether they move, as far as the picture distinguishes queues."""
    shown = _shown(movement, before, after)
    sums: _Sums = {}
    for ends, share in movement.flows.items():
        source, target = (_NOWHERE if end is None else str(end) for end in ends)
        moves = source != target
        source, target = (name if name in shown else _OTHERS for name in (source, target))
        sums[source, target, moves] = sums.get((source, target, moves), 0.0) + share
    return {ends: share for ends, share in sums.items() if share}


def _shown(movement: Movement, before: Ring, after: Ring) -> set[str]:
    """Choose the queues to show: some of the added and removed ones, and the largest."""
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


def _column(ring: Ring, sums: _Sums, end: int) -> Column:
    """Position the queues of one column, in the order of their buckets."""
    places: dict[str, tuple[float, float]] = {}
    top = 0.0
    for name in dict.fromkeys([*map(str, ring.destinations), _OTHERS, _NOWHERE]):
        if height := sum(share for ends, share in sums.items() if ends[end] == name):
            places[name] = (top, top + height)
            top += height + _GAP
    return places
