"""Watch a running hash exchange: compare what each queue receives with its exact share, and detect drift of the ring.

    management = Management("http://user:password@host:15672")
    for interval in watch(Observer(management, "/", "orders")):
        for row in interval.rows:
            print(row.queue, row.exact, row.observed, row.marks)

An `Interval` is what happened between two polls of the broker, as a value. Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rabbit_chx.base.urls import BrokerUrl as BrokerUrl
    from rabbit_chx.broker import (
        Credentials as Credentials,
        Management as Management,
        NodeAccess as NodeAccess,
    )
    from rabbit_chx.errors import BrokerUnavailable as BrokerUnavailable, InvalidValue as InvalidValue
    from rabbit_chx.topology import Observed as Observed, Topology as Topology
    from rabbit_chx.watch.interval import Interval as Interval
    from rabbit_chx.watch.loop import watch as watch
    from rabbit_chx.watch.observer import Observer as Observer

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rabbit_chx.broker": "Credentials Management NodeAccess",
            "rabbit_chx.errors": "BrokerUnavailable InvalidValue",
            "rabbit_chx.topology": "Observed Topology",
            "rabbit_chx.base.urls": "BrokerUrl",
            "rabbit_chx.watch.interval": "Interval",
            "rabbit_chx.watch.loop": "watch",
            "rabbit_chx.watch.observer": "Observer",
        },
    )
