"""One HTML page about one exchange: its ring, its shares, a sample of its keys, and what changes would move.

    from rabbit_chx.report import report
    from rabbit_chx.topology import load

    page = report(load("topology.yaml"), "orders", keys=keys)
    page.save("orders.html")        # one self-contained file; in a notebook, `page` displays itself

    ring_picture(ring)              # a single picture, which displays itself as well

``contents`` computes the report and ``page`` renders it; ``flows`` lays out key movements, and ``drawing`` draws SVG.
"""

from __future__ import annotations

from rabbit_chx.report.contents import report
from rabbit_chx.report.drawing import flow_picture, ring_picture

__all__ = ["flow_picture", "report", "ring_picture"]
