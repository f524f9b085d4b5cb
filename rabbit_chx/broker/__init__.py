"""Connect to a broker, read its topology, apply a plan, and move keys from queue to queue without breaking their order.

    from rabbit_chx.broker import Management, apply, connect, drain_in_order, read
    from rabbit_chx.topology import load, plan

    url = "amqp://user:password@host"
    apply(url, plan(load("topology.yaml"), read(Management("http://user:password@host:15672"), "/")))

A name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rabbit_chx.base.urls import BrokerUrl as BrokerUrl
    from rabbit_chx.broker.amqp import connect as connect, server_version as server_version
    from rabbit_chx.broker.applying.apply import apply as apply, apply_async as apply_async
    from rabbit_chx.broker.applying.handover import (
        NotDrained as NotDrained,
        drain as drain,
        drain_async as drain_async,
        drain_in_order as drain_in_order,
        drain_in_order_async as drain_in_order_async,
        pass_marker as pass_marker,
        pass_marker_async as pass_marker_async,
    )
    from rabbit_chx.broker.credentials import Credentials as Credentials
    from rabbit_chx.broker.management import Management as Management
    from rabbit_chx.broker.reading.node import NodeAccess as NodeAccess, NodeCommand as NodeCommand
    from rabbit_chx.broker.reading.reader import read as read
    from rabbit_chx.errors import (
        ApplyStopped as ApplyStopped,
        BrokerUnavailable as BrokerUnavailable,
        InvalidValue as InvalidValue,
    )

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rabbit_chx.broker.applying.apply": "apply apply_async",
            "rabbit_chx.broker.applying.handover": "NotDrained drain drain_async drain_in_order drain_in_order_async pass_marker pass_marker_async",
            "rabbit_chx.broker.amqp": "connect server_version",
            "rabbit_chx.broker.credentials": "Credentials",
            "rabbit_chx.broker.management": "Management",
            "rabbit_chx.broker.reading.node": "NodeAccess NodeCommand",
            "rabbit_chx.broker.reading.reader": "read",
            "rabbit_chx.errors": "ApplyStopped BrokerUnavailable InvalidValue",
            "rabbit_chx.base.urls": "BrokerUrl",
        },
    )
