"""One HTML page about one exchange: its ring, its shares, a sample of its keys, and what changes would move.

    from rabbit_chx.report import report
    from rabbit_chx.topology import load

    page = report(load("topology.yaml"), "orders", keys=keys)
    page.save("orders.html")        # one self-contained file; in a notebook, `page` displays itself

    draw_ring(ring, ax)             # a single picture, on matplotlib axes
    ring_picture(ring, colours_of(ring), "The ring")      # or as an SVG element, in the colours of `style_sheet()`

``contents`` computes the report and ``page`` renders it; ``flows`` lays out key movements, ``drawing`` draws SVG and ``axes``
draws with matplotlib.
"""

from __future__ import annotations

from rabbit_chx.report.axes import draw_movement, draw_ring, draw_shares, draw_spread
from rabbit_chx.report.contents import report
from rabbit_chx.report.drawing import colours_of, flow_picture, ring_picture
from rabbit_chx.report.page import Change, Parity, Report, Uniformity, style_sheet

__all__ = [
    "Change",
    "Parity",
    "Report",
    "Uniformity",
    "colours_of",
    "draw_movement",
    "draw_ring",
    "draw_shares",
    "draw_spread",
    "flow_picture",
    "report",
    "ring_picture",
    "style_sheet",
]
