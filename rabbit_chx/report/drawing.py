"""Pictures as SVG: a ring of buckets, and the flow of keys from one ring to another. Elements out, nothing written.

A colour is a class, ``c0`` to ``c11``, so that light, dark and print have their own; of more queues the colours come
round again, and the names beside them tell which is which. Every picture has a title that is read aloud.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi, sin
from typing import TYPE_CHECKING, Any, Final
from xml.etree.ElementTree import Element

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rabbit_chx.movement import Movement
    from rabbit_chx.ring import Destination, Ring

__all__ = ["COLOURS", "element", "flow_picture", "ring_picture"]

COLOURS: Final = 12

_RADIUS: Final = 80.0
_MOST_NAMED: Final = 24
"""Up to so many runs are named around a ring; of more, the table beside it does."""
_MOST_FLOWING: Final = 12
"""So many queues a flow picture shows, those with the largest shares; the others are one."""
_LEGIBLE: Final = 9.0
"""What is lower than this has no room for its name beside it; the tables have it."""
_OTHERS: Final = "all others"


def element(tag: str, *children: Element | str | None, **attributes: Any) -> Element:
    """An element with children and attributes; ``class_`` is class, and underscores are hyphens.

    >>> from xml.etree.ElementTree import tostring
    >>> tostring(element("p", "1 < 2, ", element("b", "truly"), class_="x")).decode()
    '<p class="x">1 &lt; 2, <b>truly</b></p>'
    """
    made = Element(
        tag, {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    )
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            made.append(child)
            last = child
        elif child and last is None:
            made.text = (made.text or "") + child
        elif child and last is not None:
            last.tail = (last.tail or "") + child
    return made


def _svg(title: str, width: float, height: float, *children: Element) -> Element:
    box = f"0 0 {width:.0f} {height:.0f}"
    return element("svg", element("title", title), *children, viewBox=box, role="img", width=f"{width:.0f}")


def ring_picture(ring: Ring, colour_of: Mapping[Destination, int], title: str) -> Element:
    """The buckets of a ring, clockwise from the top, in the colours of their queues."""
    size = 2 * _RADIUS + 120
    middle = size / 2
    runs = ring.runs or ()
    total = sum(weight for _, weight in runs) or 1
    parts: list[Element] = []
    start = 0
    for destination, weight in runs:
        parts.append(_arc(middle, start, weight, total, colour_of[destination], str(destination)))
        if len(runs) <= _MOST_NAMED:
            parts.append(_name(middle, (start + weight / 2) / total, str(destination)))
        start += weight
    count = element("text", f"{start:,}", x=middle, y=middle - 2, class_="number")
    unit = element("text", "bucket" if start == 1 else "buckets", x=middle, y=middle + 14, class_="unit")
    return _svg(title, size, size, *parts, count, unit)


def _arc(middle: float, start: int, weight: int, total: int, colour: int, name: str) -> Element:
    """A part of the circle; where there is room, a little of it is left open towards the next."""
    buckets = f"bucket {start}" if weight == 1 else f"buckets {start} to {start + weight - 1}"
    title = element("title", f"{name}: {buckets}")
    look = f"arc c{colour % COLOURS}"
    if weight == total:
        return element("circle", title, cx=f"{middle:g}", cy=f"{middle:g}", r=f"{_RADIUS:g}", class_=look)
    gap = min(0.15 * weight, total / 360)
    (x0, y0), (x1, y1) = (_at(middle, (bucket / total)) for bucket in (start, start + weight - gap))
    large = int(weight - gap > total / 2)
    path = f"M{x0:.2f} {y0:.2f} A{_RADIUS:g} {_RADIUS:g} 0 {large} 1 {x1:.2f} {y1:.2f}"
    return element("path", title, d=path, class_=look)


def _at(middle: float, turn: float, distance: float = _RADIUS) -> tuple[float, float]:
    """The point after so much of a turn, clockwise from the top."""
    return middle + distance * sin(2 * pi * turn), middle - distance * cos(2 * pi * turn)


def _name(middle: float, turn: float, name: str) -> Element:
    x, y = _at(middle, turn, _RADIUS + 22)
    aside = sin(2 * pi * turn)
    anchor = "middle" if abs(aside) < 0.2 else "start" if aside > 0 else "end"
    return element(
        "text", _short(name, 12), x=f"{x:.1f}", y=f"{y + 4:.1f}", text_anchor=anchor, class_="name"
    )


def _short(name: str, most: int) -> str:
    """The end of a long name: names of queues differ there."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


# -- flows ------------------------------------------------------------------------------------------------


_WIDTH: Final = 640.0
_COLUMN: Final = 12.0
_MARGIN: Final = 150.0
_HEIGHT: Final = 260.0
_GAP: Final = 4.0


@dataclass(frozen=True, slots=True)
class _Band:
    source: str
    target: str
    moves: bool
    share: float


def flow_picture(
    movement: Movement, before: Ring, after: Ring, colour_of: Mapping[Destination, int], title: str
) -> Element:
    """Where keys come from and go to when a ring changes: those that move stand out, the others are pale."""
    left, right, bands = _folded(movement, before, after)
    colour = {str(destination): number % COLOURS for destination, number in colour_of.items()}
    height = _HEIGHT + _GAP * max(len(left), len(right))
    at_left, at_right = _places(left, bands, "source"), _places(right, bands, "target")
    changed = set(left) ^ set(right)
    drawn = [*_columns(at_left, colour, changed, 0), *_columns(at_right, colour, changed, 1)]
    filled_left, filled_right = dict.fromkeys(left, 0.0), dict.fromkeys(right, 0.0)
    shapes: list[Element] = []
    for band in bands:
        y0 = at_left[band.source][0] + filled_left[band.source]
        y1 = at_right[band.target][0] + filled_right[band.target]
        thickness = band.share * _HEIGHT
        filled_left[band.source] += thickness
        filled_right[band.target] += thickness
        shapes.append(_shape(band, y0, y1, thickness, colour.get(band.source, 0)))
    # What stays lies below what moves.
    shapes.sort(key=lambda shape: "stays" not in (shape.get("class") or ""))
    return _svg(title, _WIDTH, height, *shapes, *drawn)


def _folded(movement: Movement, before: Ring, after: Ring) -> tuple[list[str], list[str], list[_Band]]:
    """The names of both sides in bucket order, and the bands between them; of very many queues the rest is one."""
    left = [str(destination) for destination in before.destinations] or ["nowhere"]
    right = [str(destination) for destination in after.destinations] or ["nowhere"]
    shown = _shown(left, right, movement)
    sums: dict[tuple[str, str, bool], float] = {}
    for ends, share in movement.flows.items():
        source, target = ("nowhere" if end is None else str(end) for end in ends)
        moves = source != target
        source, target = (name if name in shown else _OTHERS for name in (source, target))
        sums[source, target, moves] = sums.get((source, target, moves), 0.0) + share
    left = [name for name in [*left, _OTHERS, "nowhere"] if any(name == source for source, _, _ in sums)]
    right = [name for name in [*right, _OTHERS, "nowhere"] if any(name == target for _, target, _ in sums)]
    order = {name: place for place, name in enumerate(dict.fromkeys([*left, *right]))}
    bands = [_Band(*ends, share) for ends, share in sums.items() if share]
    bands.sort(key=lambda band: (order[band.source], order[band.target], band.moves))
    return list(dict.fromkeys(left)), list(dict.fromkeys(right)), bands


def _shown(left: Sequence[str], right: Sequence[str], movement: Movement) -> set[str]:
    """What comes or goes, and of what is there before and after the largest."""
    changed = set(left) ^ set(right) | {"nowhere"}
    before: dict[str, float] = {}
    for (source, _), share in movement.flows.items():
        before[str(source)] = before.get(str(source), 0.0) + share
    staying = sorted((name for name in left if name not in changed), key=lambda name: -before.get(name, 0.0))
    most = max(_MOST_FLOWING - len(changed), 1)
    return changed | set(staying if len(staying) <= most + 1 else staying[:most])


def _places(names: Iterable[str], bands: Sequence[_Band], end: str) -> dict[str, tuple[float, float]]:
    """Where each name stands, from and to."""
    places: dict[str, tuple[float, float]] = {}
    y = 0.0
    for name in names:
        height = _HEIGHT * sum(band.share for band in bands if getattr(band, end) == name)
        places[name] = (y, y + height)
        y += height + _GAP
    return places


def _columns(
    places: Mapping[str, tuple[float, float]], colour: Mapping[str, int], changed: set[str], side: int
) -> Iterator[Element]:
    x = _WIDTH - _MARGIN if side else _MARGIN - _COLUMN
    for name, (top, bottom) in places.items():
        share = (bottom - top) / _HEIGHT
        yield element(
            "rect",
            element("title", f"{name}: {share:.3%}"),
            x=x,
            y=f"{top:.1f}",
            width=_COLUMN,
            height=f"{max(bottom - top, 1):.1f}",
            class_=f"bar c{colour.get(name, 0)}",
        )
        if bottom - top < _LEGIBLE and name not in changed:
            continue
        beside = x + _COLUMN + 6 if side else x - 6
        anchor = "start" if side else "end"
        text = f"{_short(name, 14)} {share:.1%}"
        yield element(
            "text", text, x=beside, y=f"{(top + bottom) / 2 + 4:.1f}", text_anchor=anchor, class_="name"
        )


def _shape(band: _Band, y0: float, y1: float, thickness: float, colour: int) -> Element:
    x0, x1 = _MARGIN, _WIDTH - _MARGIN
    half = (x0 + x1) / 2
    path = (
        f"M{x0:g} {y0:.2f} C{half:g} {y0:.2f} {half:g} {y1:.2f} {x1:g} {y1:.2f} "
        f"V{y1 + thickness:.2f} C{half:g} {y1 + thickness:.2f} {half:g} {y0 + thickness:.2f} {x0:g} {y0 + thickness:.2f} Z"
    )
    to = f"go from {band.source} to {band.target}" if band.moves else f"stay with {band.source}"
    what = f"{band.share:.3%} {to}"
    return element(
        "path", element("title", what), d=path, class_=f"band c{colour}" + " stays" * (not band.moves)
    )
