"""One page about one exchange: its ring, its shares, a sample of its keys, and what changes would cost.

    from rabbit_chx import load
    from rabbit_chx.report import report

    page = report(load("topology.yaml"), "orders", keys=keys)
    page.save("orders.html")        # one file, without a network; in a notebook `page` shows itself

``contents`` computes (values only), ``drawing`` draws SVG, ``page`` writes HTML, ``axes`` draws with matplotlib.
"""

from __future__ import annotations

from rabbit_chx.report.contents import Change, Parity, Report, Uniformity, report

__all__ = ["Change", "Parity", "Report", "Uniformity", "report"]
