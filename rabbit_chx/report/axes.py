"""Draw the report's pictures on matplotlib axes, for notebooks and papers.

Each function draws on the given axes, or on pyplot's current axes, and returns them. It does not save or show the figure,
and it sets a title only where the title reports a number. Names are drawn outside the axes; ``layout="constrained"``
leaves space for them. Needs the extra ``plot``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, cos, pi, sin
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import MissingDependency
from rabbit_chx.movement import moved, shares
from rabbit_chx.report.drawing import COLOURS, LIGHT, MOST_NAMED, REST, colours_of, gap_after, short
from rabbit_chx.report.flows import Column, Flow, Ribbon, laid_out
from rabbit_chx.ring import Ring
from rabbit_chx.skew import Spread
from rabbit_chx.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_LINE: Final = 11.0
"""Height of a name, in points."""
_COLUMN: Final = 0.025
_AS_IT_IS: Final[dict[str, Any]] = {"fontsize": "small", "parse_math": False}
"""Text options for names: a dollar sign must not start a formula."""


def draw_ring(ring: Ring, ax: Axes | None = None) -> Axes:
    """Draw the buckets of a ring, clockwise from the top, in the colours of their queues."""
    ax = _axes(ax)
    from matplotlib.patches import Wedge

    colour_of, start, total = colours_of(ring), 0, max(len(ring), 1)
    runs = ring.runs or ()
    for destination, weight in runs:
        gap = 0 if weight == total else gap_after(weight, total)
        end, begin = (90 - 360 * bucket / total for bucket in (start + weight - gap, start))
        ax.add_patch(Wedge((0, 0), 1, end, begin, width=0.3, color=_colour(colour_of[destination])))
        if len(runs) <= MOST_NAMED:
            turn = 2 * pi * (start + weight / 2) / total
            aside = "center" if abs(sin(turn)) < 0.2 else "left" if sin(turn) > 0 else "right"
            name = short(str(destination), 12)
            ax.text(1.12 * sin(turn), 1.12 * cos(turn), name, ha=aside, va="center", **_AS_IT_IS)
        start += weight
    ax.text(0, 0, f"{start:,}", ha="center", va="bottom", fontsize="xx-large", fontweight="bold")
    ax.text(0, 0, "bucket" if start == 1 else "buckets", ha="center", va="top", fontsize="small")
    ax.set(aspect="equal", xlim=(-1.25, 1.25), ylim=(-1.25, 1.25))
    ax.set_axis_off()
    return ax


def draw_shares(ring: Ring, ax: Axes | None = None) -> Axes:
    """Draw the exact share of all keys that each queue gets."""
    exact = shares(ring)
    ax = _bars(_axes(ax), [str(destination) for destination in exact], list(exact.values()))
    ax.set_xlabel("share of all keys, exact")
    return ax


def draw_spread(found: Spread, ax: Axes | None = None) -> Axes:
    """Draw the share of a sample that each queue gets, with a line at its exact share."""
    queues = found.queues
    ax = _bars(_axes(ax), [one.queue for one in queues], [one.share for one in queues])
    from matplotlib import rcParams

    exact = [one.exact for one in queues]
    tops, bottoms = ([place + half for place in range(len(queues))] for half in (-0.4, 0.4))
    ax.vlines(exact, tops, bottoms, colors=rcParams["text.color"], linewidth=2)
    ax.set_xlim(0, 1.05 * max([*exact, *(one.share for one in queues)], default=1.0))
    ax.set_xlabel("share of the rows\n(line: exact share)")
    ax.set_title(f"{counted(found.rows, 'row')}; max/mean {found.skew:.2f}", fontsize="medium")
    return ax


def draw_movement(before: Ring, after: Ring, ax: Axes | None = None) -> Axes:
    """Draw where keys go when a ring changes: before on the left, after on the right; keys that stay are pale."""
    ax = _axes(ax)
    movement = moved(before, after)
    flow = laid_out(movement, before, after)
    colour_of = {str(one): number for one, number in colours_of(before, *after.destinations).items()}
    for ribbon in flow.ribbons:
        _add_ribbon(ax, ribbon, _colour(colour_of.get(ribbon.source, REST)))
    for side, places in enumerate((flow.left, flow.right)):
        _add_column(ax, flow, places, colour_of, side)
    ax.set(xlim=(0, 1), ylim=(flow.height, 0))
    ax.set_title(f"{movement.share:.2%} of the keys move", fontsize="medium")
    ax.set_axis_off()
    return ax


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingDependency("drawing on axes needs matplotlib: pip install 'rabbit-chx[plot]'") from error
    return plt.gca()


def _colour(number: int) -> str:
    return LIGHT[number % COLOURS]


def _height(ax: Axes) -> float:
    """Return the current height of the axes, in points."""
    return float(ax.get_window_extent().height) / ax.figure.dpi * 72


def _bars(ax: Axes, names: Sequence[str], lengths: Sequence[float]) -> Axes:
    """Draw a bar for each queue, the first on top; where space is short, label only every second or third bar."""
    from matplotlib.ticker import PercentFormatter

    places = range(len(names))
    ax.barh(places, lengths, color=[_colour(number) for number in places])
    every = ceil(len(names) * _LINE / _height(ax)) or 1
    labels = [f"{short(name, 14)} {length:.1%}" for name, length in zip(names, lengths, strict=True)]
    ax.set_yticks(places[::every], labels[::every], **_AS_IT_IS)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.xaxis.set_major_formatter(PercentFormatter(xmax=1))
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _add_ribbon(ax: Axes, ribbon: Ribbon, colour: str) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    (x0, x1), (y0, y1), thickness = (_COLUMN, 1 - _COLUMN), (ribbon.at_source, ribbon.at_target), ribbon.share
    there = [(x0, y0), (0.5, y0), (0.5, y1), (x1, y1)]
    back = [(x1, y1 + thickness), (0.5, y1 + thickness), (0.5, y0 + thickness), (x0, y0 + thickness)]
    kinds = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    shape = Path([*there, *back, (x0, y0)], kinds)
    ax.add_patch(PathPatch(shape, facecolor=colour, alpha=0.75 if ribbon.moves else 0.16, linewidth=0))


def _add_column(ax: Axes, flow: Flow, places: Column, colour_of: dict[str, int], side: int) -> None:
    from matplotlib.patches import Rectangle

    named = flow.named(places, _LINE * flow.height / _height(ax))
    for name, (top, bottom) in places.items():
        corner = (1 - _COLUMN if side else 0, top)
        ax.add_patch(
            Rectangle(corner, _COLUMN, bottom - top, color=_colour(colour_of.get(name, REST)), linewidth=0)
        )
        if name not in named:
            continue
        ax.annotate(
            f"{short(name, 14)} {bottom - top:.1%}",
            (side, (top + bottom) / 2),
            (4 if side else -4, 0),
            textcoords="offset points",
            ha="left" if side else "right",
            va="center",
            annotation_clip=False,
            **_AS_IT_IS,
        )
