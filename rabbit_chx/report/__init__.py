"""One page about one exchange: its ring, its shares, a sample of its keys, and what changes would cost.

    from rabbit_chx import load
    from rabbit_chx.report import report

    page = report(load("topology.yaml"), "orders", keys=keys)
    page.save("orders.html")        # one file, without a network; in a notebook `page` shows itself

    draw_ring(ring, ax)             # a single picture, on matplotlib axes

``contents`` computes and ``flows`` lays out (values only), ``drawing`` draws SVG, ``page`` writes HTML, ``axes`` draws with
matplotlib.
"""

from __future__ import annotations

from rabbit_chx.report.axes import draw_movement, draw_ring, draw_shares, draw_spread
from rabbit_chx.report.contents import Change, Parity, Report, Uniformity, report

__all__ = [
    "Change",
    "Parity",
    "Report",
    "Uniformity",
    "draw_movement",
    "draw_ring",
    "draw_shares",
    "draw_spread",
    "report",
]
