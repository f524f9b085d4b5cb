"""Draw a ring of buckets, and the flow of keys from one ring to another, as SVG elements.

A colour is a class, ``c0`` to ``c11``, so that the light, dark and print styles can each define it. With more queues the
colours repeat, and the names distinguish the queues. Every picture has a title for screen readers.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from importlib.resources import files
from math import cos, pi, sin
from typing import Final
from xml.etree.ElementTree import Element, tostring

from rabbit_chx.base.markup import element, written
from rabbit_chx.base.text import printable
from rabbit_chx.mirror.movement import Movement
from rabbit_chx.mirror.ring import Destination, Ring
from rabbit_chx.report.flows import Column, Flow, Ribbon, laid_out

LIGHT: Final = (
    *("#3366cc", "#e07b00", "#1f9d55", "#b5179e", "#c92a2a", "#0c8599"),
    *("#7048e8", "#8a6d00", "#5c940d", "#d6336c", "#495057", "#1098ad"),
)
"""The colours of the queues, in bucket order."""
DARK: Final = (
    *("#7aa2ff", "#ffb057", "#5ad08d", "#f08be0", "#ff8787", "#4fc9dd"),
    *("#b197fc", "#e6c84f", "#a9e34b", "#faa2c1", "#adb5bd", "#66d9e8"),
)
"""The same for the dark style."""
COLOURS: Final = len(LIGHT)
REST: Final = 10
"""Grey: the colour of several queues drawn as one."""

MOST_NAMED: Final = 24
"""The most runs that are named around a ring; with more, only the table names them."""

_RADIUS: Final = 80.0
_NAME_AT: Final = 22.0
"""Distance of a name from the ring."""
_MOST_LETTERS: Final = 12
_NAME: Final = 76.0
"""Width of a name of ``_MOST_LETTERS`` letters, even wide ones."""
_LEGIBLE: Final = 9.0
"""Bars lower than this get no name; the tables list them."""


class Picture(Element):
    """An SVG element, which a notebook shows."""

    def svg(self) -> str:
        """Return it as the text of an SVG file, with its style sheet."""
        whole = element("svg", element("style", style_sheet()), *self, **self.attrib)
        whole.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "style": "background: Canvas"}
        return printable(tostring(whole, encoding="unicode"), keep="\n\t")  # XML has no control characters

    def _repr_html_(self) -> str:
        """Show it as an image, whose style sheet does not reach the notebook."""
        text = b64encode(self.svg().encode()).decode()
        return written(element("img", src=f"data:image/svg+xml;base64,{text}", alt=self[0].text))


def style_sheet() -> str:
    """Return the style sheet of a page with pictures, with the colours of the queues."""
    light, dark = (
        "".join(f" --c{number}: {colour};" for number, colour in enumerate(palette))
        for palette in (LIGHT, DARK)
    )
    classes = "".join(f".c{number} {{ --c: var(--c{number}); }}\n" for number in range(COLOURS))
    colours = f":root {{{light} }}\n@media (prefers-color-scheme: dark) {{ :root {{{dark} }} }}\n{classes}"
    return colours + files("rabbit_chx.report").joinpath("page.css").read_text(encoding="utf-8")


def colours_of(ring: Ring, *more: Destination) -> dict[Destination, int]:
    """Map each queue to the number of its colour, which is the same in every picture."""
    distinct = dict.fromkeys([*ring.destinations, *more])
    return {destination: number for number, destination in enumerate(distinct)}


def _svg(title: str, width: float, height: float, *children: Element, left: float = 0.0) -> Picture:
    box = f"{left:.0f} 0 {width:.0f} {height:.0f}"
    drawn = Picture("svg", viewBox=box, role="img", width=f"{width:.0f}")
    drawn.extend([element("title", title), *children])
    return drawn


def ring_picture(
    ring: Ring, colour_of: Mapping[Destination, int] | None = None, title: str = "The ring"
) -> Picture:
    """Draw the buckets of a ring, clockwise from the top, in the colours of their queues."""
    colour_of = colours_of(ring) if colour_of is None else colour_of
    size = 2 * (_RADIUS + _NAME_AT + _LEGIBLE)
    middle = size / 2
    runs = ring.runs or ()
    total = sum(weight for _, weight in runs) or 1
    parts: list[Element] = []
    start = 0
    for destination, weight in runs:
        parts.append(_arc(middle, start, weight, total, colour_of[destination], str(destination)))
        if len(runs) <= MOST_NAMED:
            parts.append(_name(middle, (start + weight / 2) / total, str(destination)))
        start += weight
    count = element("text", f"{start:,}", x=middle, y=middle - 2, class_="number")
    unit = element("text", "bucket" if start == 1 else "buckets", x=middle, y=middle + 14, class_="unit")
    return _svg(title, size + 2 * _NAME, size, *parts, count, unit, left=-_NAME)


def _arc(middle: float, start: int, weight: int, total: int, colour: int, name: str) -> Element:
    """Draw one run of buckets as an arc, with a small gap before the next run."""
    buckets = f"bucket {start}" if weight == 1 else f"buckets {start} to {start + weight - 1}"
    title = element("title", f"{name}: {buckets}")
    look = f"arc c{colour % COLOURS}"
    if weight == total:
        return element("circle", title, cx=f"{middle:g}", cy=f"{middle:g}", r=f"{_RADIUS:g}", class_=look)
    gap = min(0.15 * weight, total / 360)  # in buckets
    (x0, y0), (x1, y1) = (_at(middle, (bucket / total)) for bucket in (start, start + weight - gap))
    large = int(weight - gap > total / 2)
    path = f"M{x0:.2f} {y0:.2f} A{_RADIUS:g} {_RADIUS:g} 0 {large} 1 {x1:.2f} {y1:.2f}"
    return element("path", title, d=path, class_=look)


def _at(middle: float, turn: float, distance: float = _RADIUS) -> tuple[float, float]:
    """Return the point at this fraction of a turn, clockwise from the top."""
    return middle + distance * sin(2 * pi * turn), middle - distance * cos(2 * pi * turn)


def _name(middle: float, turn: float, name: str) -> Element:
    x, y = _at(middle, turn, _RADIUS + _NAME_AT)
    aside = sin(2 * pi * turn)
    anchor = "middle" if abs(aside) < 0.2 else "start" if aside > 0 else "end"
    return element(
        "text", short(name, _MOST_LETTERS), x=f"{x:.1f}", y=f"{y + 4:.1f}", text_anchor=anchor, class_="name"
    )


def short(name: str, most: int) -> str:
    """Keep only the end of a long name, where the names of queues usually differ."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


# -- flows ------------------------------------------------------------------------------------------------


_WIDTH: Final = 640.0
_COLUMN: Final = 12.0
_MARGIN: Final = 150.0
_HEIGHT: Final = 260.0


def flow_picture(
    movement: Movement,
    before: Ring,
    after: Ring,
    colour_of: Mapping[Destination, int] | None = None,
    title: str = "The change",
) -> Picture:
    """Draw where keys go when a ring changes; keys that stay are pale."""
    colour_of = colours_of(before, *after.destinations) if colour_of is None else colour_of
    flow = laid_out(movement, before, after)
    colour = {str(destination): number % COLOURS for destination, number in colour_of.items()}
    ribbons = (_shape(ribbon, colour.get(ribbon.source, REST)) for ribbon in flow.ribbons)
    columns = (*_column(flow, flow.left, colour, 0), *_column(flow, flow.right, colour, 1))
    return _svg(title, _WIDTH, _HEIGHT * flow.height, *ribbons, *columns)


def _column(flow: Flow, places: Column, colour: Mapping[str, int], side: int) -> Iterator[Element]:
    x = _WIDTH - _MARGIN if side else _MARGIN - _COLUMN
    named = flow.named(places, _LEGIBLE / _HEIGHT)
    for name, (top, bottom) in places.items():
        height = _HEIGHT * (bottom - top)
        yield element(
            "rect",
            element("title", f"{name}: {bottom - top:.3%}"),
            x=x,
            y=f"{_HEIGHT * top:.1f}",
            width=_COLUMN,
            height=f"{max(height, 1):.1f}",
            class_=f"bar c{colour.get(name, REST)}",
        )
        if name not in named:
            continue
        label_x = x + _COLUMN + 6 if side else x - 6
        anchor = "start" if side else "end"
        text = f"{short(name, 14)} {bottom - top:.1%}"
        y = f"{_HEIGHT * (top + bottom) / 2 + 4:.1f}"
        yield element("text", text, x=label_x, y=y, text_anchor=anchor, class_="name")


def _shape(ribbon: Ribbon, colour: int) -> Element:
    x0, x1 = _MARGIN, _WIDTH - _MARGIN
    half = (x0 + x1) / 2
    y0, y1, thickness = (_HEIGHT * length for length in (ribbon.at_source, ribbon.at_target, ribbon.share))
    path = (
        f"M{x0:g} {y0:.2f} C{half:g} {y0:.2f} {half:g} {y1:.2f} {x1:g} {y1:.2f} "
        f"V{y1 + thickness:.2f} C{half:g} {y1 + thickness:.2f} {half:g} {y0 + thickness:.2f} {x0:g} {y0 + thickness:.2f} Z"
    )
    look = f"band c{colour}" + " stays" * (not ribbon.moves)
    return element("path", element("title", str(ribbon)), d=path, class_=look)
