"""Which streams are read for keys, and which exchanges are refused."""

from __future__ import annotations

from rabbit_chx import Ring
from rabbit_chx.topology import Binding, Exchange, Observed, Queue, ToExchange, Topology
from spark_connector.reading.stream_access import streams_of_keys
from tests.unit.complaints import complaint

STREAMS = tuple(Queue(name, "stream") for name in ("q0", "q1", "q2"))
WEIGHTS = {"q0": 1, "q1": 1, "q2": 2}


def observed(*exchanges: Exchange, rings=None) -> Observed:
    """A top exchange, bound to one that hashes."""
    bindings = [Binding("hash", queue, str(weight)) for queue, weight in WEIGHTS.items()]
    top = Exchange("top", "fanout")
    return Observed(
        topology=Topology(
            exchanges=(top, *exchanges),
            queues=STREAMS,
            bindings=(Binding("top", ToExchange("hash")), *bindings),
        ),
        rings=rings or {},
    )


HASH = Exchange("hash", "x-consistent-hash")


def test_the_ring_determines_the_stream_of_a_key() -> None:
    found = observed(HASH, rings={"hash": Ring.of(WEIGHTS)})
    # A broker routed this key to q0: it is the README's first route.
    assert streams_of_keys(["customer-42"], found, "hash") == {"q0"}
    assert streams_of_keys(["customer-42"], found, "top") == {"q0"}


def test_routes_that_depend_on_more_than_the_key_are_refused() -> None:
    unknown = Ring((), None, "4.3", "the broker was not asked")
    by_tenant = Exchange("hash", "x-consistent-hash", arguments={"hash-header": "tenant"})
    for found, words in [
        (observed(HASH, rings={"hash": unknown}), "the broker was not asked"),
        (
            observed(by_tenant, rings={"hash": Ring.of(WEIGHTS)}),
            "Exchange 'hash' does not route by the routing key",
        ),
        (observed(Exchange("hash", "headers")), "Exchange 'hash' does not route by the routing key"),
    ]:
        error = complaint(lambda found=found: streams_of_keys(["a", "b"], found, "top"))
        assert words in error.hint
        assert "where(\"routing_key in ('a', 'b')\")" in error.hint
