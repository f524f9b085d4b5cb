"""What users write, and the types that come of it: mypy and pyright read this file, and nothing runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import numpy as np

import rabbit_chx.report as pictures
from rabbit_chx import (
    AnyOf,
    ConsistentHashExchange,
    DeliveryMonitor,
    Explanation,
    Inference,
    ModulusHashExchange,
    Movement,
    RandomExchange,
    Release,
    Ring,
    RingBinding,
    Spread,
    SuperStream,
    ToExchange,
    infer,
    moved,
    shares,
    spread,
)
from rabbit_chx.broker import Management, read
from rabbit_chx.mirror.kernel import jump_consistent_hash, phash2
from rabbit_chx.mirror.skew import QueueShare
from rabbit_chx.publishing import Failure, Publisher, Totals
from rabbit_chx.streams import (
    AsyncStreamGroup,
    StreamGroup,
    StreamMessage,
    StreamPublisher,
    StreamReader,
    connect,
)
from rabbit_chx.topology import Observed, Plan, Topology, drift, lint, load, plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

# --- routing: weights as a mapping or pairs, names alone, exchanges among them, bindings ----------------------

weights: dict[str, int] = {"q0": 1, "q1": 2}
named: list[str] = ["q0", "q1"]
pairs: list[tuple[str, int]] = [("q0", 1)]
exchange = ConsistentHashExchange(weights, release="4.3.6")
ConsistentHashExchange(named, release=Release.parse("4.0", store="khepri"))
ConsistentHashExchange(pairs, hash_header="tenant")
ConsistentHashExchange([ToExchange("archive"), "q0", ("q1", "2"), RingBinding.of("q2", 3)])
ConsistentHashExchange(Ring.of(weights), hash_property="message_id")

assert_type(exchange.route("customer-42"), str | ToExchange)
assert_type(exchange.route(headers={"tenant": "acme"}, client="pika"), str | ToExchange)
assert_type(exchange.route(b"customer-42", explain=True), Explanation)
assert_type(exchange.route(message_id="m-1", explain=True).destination, str | ToExchange)
assert_type(exchange.route(timestamp=1_700_000_000), str | ToExchange)
assert_type(exchange.destinations, tuple[str | ToExchange, ...])
indices: NDArray[Any] = exchange.route_many(["a", "b"])

assert_type(ModulusHashExchange(named).route("a"), str | ToExchange)
assert_type(RandomExchange(named).route(), AnyOf)
assert_type(SuperStream(named).route("a"), str)
assert_type(jump_consistent_hash(phash2(b"a"), 8), int)

# --- rings --------------------------------------------------------------------------------------------------

ring = Ring.of(weights)
assert_type(ring.bind("q2", "5").unbind("q0").delete("q1").after_restart(), Ring)
assert_type(ring.bucket_map, tuple[str | ToExchange, ...])
assert_type(shares(ring), dict[str | ToExchange, float])
assert_type(moved(ring, ring.bind("q2")), Movement)
assert_type(moved(ring, ring.bind("q2")).between("q0", None), float)
assert_type(infer([("a", "q0")], weights), Inference)

observer = DeliveryMonitor(exchange, name="orders")
assert_type(observer.drifted, int)

found = spread(exchange, ["a", "b"])
assert_type(found, Spread)
assert_type(found.queues, tuple[QueueShare, ...])
assert_type(found.p_value, float)

# --- topology -----------------------------------------------------------------------------------------------

topology = load("topology.yaml")
assert_type(topology, Topology)
observed = read(Management("http://localhost:15672"), "/")
assert_type(observed, Observed)
assert_type(plan(topology, observed, prune=True), Plan)
assert_type([str(finding) for finding in lint(topology)], list[str])
assert_type([str(each) for each in drift(topology, observed, strict=True)], list[str])
assert_type(plan(topology, observed).slot_moves.get("orders"), float | None)

# --- publishing ---------------------------------------------------------------------------------------------


def keep(failure: Failure) -> None:
    """Any callable will do for failures."""


with Publisher("amqp://localhost", "orders", properties={"app_id": "shop", "headers": {"n": 1}}) as publisher:
    publisher.publish(b"body", "customer-42", timeout=5)
    assert_type(publisher.publish_many([b"one", b"two"], ["a", "b"]), Totals)
    kinds, sizes = ["created", "paid"], [1, 2]
    publisher.publish_many([b"one", b"two"], type=kinds, priority=sizes, content_type="text/plain")
    publisher.publish_many([b"one", b"two"], type=np.array(kinds), headers=[{"size": size} for size in sizes])
    assert_type(publisher.submit(b"body", "customer-42").result(), None)
    with publisher.bulk(on_failure=keep) as bulk:
        assert_type(bulk.add(b"body", "customer-42"), int)
        assert_type(bulk.add_many([b"one", b"two"], ["a", "b"]), range)
        assert_type(bulk.flush(), Totals)

# --- streams ------------------------------------------------------------------------------------------------

with StreamPublisher("rabbitmq-stream://localhost", "events", name="job") as streamed:
    assert_type(streamed.publish_many([b"one", b"two"], ["a", "b"], ids=range(1, 3)), Totals)
    assert_type(streamed.submit(b"three", "c", publishing_id=3).result(), None)
    with streamed.bulk() as streamed_bulk:
        assert_type(streamed_bulk.add_many([b"four"]), range)

with StreamReader("rabbitmq-stream://localhost", "events") as reader:
    assert_type(reader.bounds().end, int)
    for message in reader.messages(0, 10):
        assert_type(message, StreamMessage)
    for message in reader.follow(0):
        assert_type(message.offset, int)

with connect("rabbitmq-stream://localhost", stream="events") as connection:
    assert_type(connection.partitions("orders"), list[str])
    assert_type(connection.query_offset("billing", "events"), int | None)


async def start(stream: str) -> int | None:
    """Only a group of the event loop awaits it, as its other callbacks."""
    return len(stream) or None


AsyncStreamGroup("rabbitmq-stream://localhost", stream="events", name="g", start=start, on_assigned=start)
StreamGroup("rabbitmq-stream://localhost", stream="events", name="g", start=len, on_assigned=print)

# --- pictures -----------------------------------------------------------------------------------------------

assert_type(pictures.ring_picture(ring).svg(), str)
assert_type(pictures.flow_picture(moved(ring, ring.bind("q2")), ring, ring.bind("q2")).svg(), str)
page = pictures.report(topology, "orders", sample=found, add=1)
assert_type(page.to_html(), str)
