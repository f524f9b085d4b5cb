"""Connect to a broker, and move keys from queue to queue without breaking their order (a handover).

    from rabbit_chx.broker import connect, drain_in_order

    with connect("amqp://user:password@host/vhost") as connection:
        drain_in_order(connection, drain_first_in(plan), release)

Reading a topology, planning and applying are in `rabbit_chx.topology`. A name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rabbit_chx.base.urls import BrokerUrl as BrokerUrl
    from rabbit_chx.broker.amqp import connect as connect, server_version as server_version
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
    from rabbit_chx.errors import BrokerUnavailable as BrokerUnavailable, InvalidValue as InvalidValue

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rabbit_chx.broker.applying.handover": "NotDrained drain drain_async drain_in_order drain_in_order_async pass_marker pass_marker_async",
            "rabbit_chx.broker.amqp": "connect server_version",
            "rabbit_chx.broker.credentials": "Credentials",
            "rabbit_chx.errors": "BrokerUnavailable InvalidValue",
            "rabbit_chx.base.urls": "BrokerUrl",
        },
    )
