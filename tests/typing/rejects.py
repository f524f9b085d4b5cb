"""Mistakes that a type checker must see: a comment that turns out not to be needed is an error of its own."""

from __future__ import annotations

import spark_connector
from rabbit_chx import ConsistentHashExchange, Release, Ring, infer, moved, spread
from rabbit_chx.publishing import Publisher
from rabbit_chx.topology import load, plan

exchange = ConsistentHashExchange(["q0", "q1"])
ring = Ring.of({"q0": 1})

ConsistentHashExchange(["q0"], hash_heder="tenant")  # type: ignore[call-arg]
ConsistentHashExchange(["q0"], release=4.3)  # type: ignore[arg-type]
ConsistentHashExchange(7)  # type: ignore[arg-type]
exchange.route(42)  # type: ignore[call-overload]
exchange.route("key", headers=["tenant"])  # type: ignore[call-overload]
exchange.route("key", client="pikka")  # type: ignore[call-overload]
exchange.route("key", explain=True).upper()  # type: ignore[attr-defined]
exchange.route("key").upper()  # type: ignore[union-attr]
exchange.ring.runs.append(("q1", 1))  # type: ignore[union-attr]
ring.release = Release.parse("4.3")  # type: ignore[misc]
ring.bind(1)  # type: ignore[arg-type]
moved(ring, ["q0"])  # type: ignore[arg-type]
infer([("key", 1)], ["q0"])  # type: ignore[list-item]
spread(ring, ["key"])  # type: ignore[arg-type]
plan(load("topology.yaml"))  # type: ignore[call-arg]
Publisher("amqp://localhost", "orders", heartbeat="30")  # type: ignore[arg-type]
Publisher("amqp://localhost", "orders", properties={"priority": "high"})  # type: ignore[arg-type]
Publisher("amqp://localhost", "orders").publish({"a": 1}, "key")  # type: ignore[arg-type]
Publisher("amqp://localhost", "orders").publish_many([b"a"], contenttype="x")  # type: ignore[call-arg]
Publisher("amqp://localhost", "orders").publish_many([b"a"], priority=["high"])  # type: ignore[list-item]

spark_connector.queue_of("customer", ["q0", "q1"])  # type: ignore[arg-type]
spark_connector.spread(["a"], "customer", exchange)  # type: ignore[arg-type]
spark_connector.foreach_batch(exchange)  # type: ignore[arg-type]


def misspelled() -> None:
    """Imports of names that the packages lack: what is loaded lazily is no exception."""
    from rabbit_chx import RandomExchnage  # type: ignore[attr-defined]  # noqa: F401
    from rabbit_chx.mirror.kernel import phash3  # type: ignore[attr-defined]  # noqa: F401
    from rabbit_chx.testing import Brocker  # type: ignore[attr-defined]  # noqa: F401
    from rabbit_chx.topology import Topologie  # type: ignore[attr-defined]  # noqa: F401
    from spark_connector import sprad  # type: ignore[attr-defined]  # noqa: F401
