"""The recorded order of rings on real brokers, next to applications that declare and bind for themselves."""

from __future__ import annotations

import pytest

from rabbit_chx.broker.reading.order_record import ORDER_EXCHANGE
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Queue
from rabbit_chx.topology.planning.steps import Bind, DeclareExchange, DeclareQueue, Unbind
from tests.broker.topology_site import CLIENTS
from tests.patience import wait_until
from tests.queues import a_channel, bind_ring

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

WEIGHTS = {"c": "2", "a": "1", "d": "3", "b": "1"}
RING = [queue for queue, weight in WEIGHTS.items() for _ in range(int(weight))]
DECLARE = (
    DeclareExchange(Exchange("orders", CONSISTENT_HASH)),
    *(DeclareQueue(Queue(name)) for name in WEIGHTS),
)
BINDINGS = [Binding("orders", queue, weight) for queue, weight in WEIGHTS.items()]


def start(site) -> None:
    """What an application does when it starts."""
    with a_channel(site) as channel:
        bind_ring(channel, "orders", WEIGHTS)


def order(site) -> tuple[list, str]:
    """The ring as it is read without a node, which must be the node's, and how it is known."""
    observed = read(site.management, site.vhost)
    ring = observed.rings["orders"]
    if ring.known:
        assert list(ring.bucket_map) == site.broker.ring("orders", site.vhost)
    return list(ring.bucket_map) if ring.known else [], observed.ring_sources["orders"]


def test_an_application_that_binds_at_each_start_changes_nothing(site, applied) -> None:
    start(site)
    result = applied(site.url(), site.plan(*DECLARE, *map(Bind, BINDINGS)), management=site.management)
    assert result.skipped == tuple(map(Bind, BINDINGS))
    for _ in range(2):
        start(site)
    assert sorted(site.management.bindings_from(site.vhost, "orders"), key=str) == sorted(BINDINGS, key=str)
    assert site.broker.ring("orders", site.vhost) == RING
    topology = read(site.management, site.vhost).topology
    assert [exchange.name for exchange in topology.exchanges] == ["orders"]
    assert {binding.source for binding in topology.bindings} == {"orders"}


def test_the_order_is_known_without_a_node_and_survives_what_applications_do(site, applied) -> None:
    applied(site.url(), site.plan(*DECLARE, *map(Bind, BINDINGS)), management=site.management)
    assert order(site) == (RING, "record")
    start(site)
    assert order(site) == (RING, "record")
    with site.connection() as connection:  # the plain unbind of any client finds the binding
        connection.channel().queue_unbind("a", "orders", "1")
    assert order(site) == (["c", "c", "d", "d", "d", "b"], "record")


@pytest.mark.parametrize("first", ["unbind", "bind"])
def test_a_binding_replaced_by_one_with_other_arguments_makes_the_order_unknown(site, applied, first) -> None:
    """Where the queue has its buckets then depends on the release and on which command came first."""
    applied(site.url(), site.plan(*DECLARE, *map(Bind, BINDINGS)), management=site.management)
    other = Binding("orders", "a", "1", {"note": "2"})
    with a_channel(site) as channel:
        if first == "bind":
            channel.queue_bind("a", "orders", "1", dict(other.arguments))
            assert order(site) == (RING, "record")
        channel.queue_unbind("a", "orders", "1")
        channel.queue_bind("a", "orders", "1", dict(other.arguments))
    assert order(site) == ([], "unknown")
    # Bound by a plan, the other binding is recorded with its arguments.
    applied(site.url(), site.plan(Unbind(other)), management=site.management)
    assert order(site) == (["c", "c", "d", "d", "d", "b"], "record")
    applied(site.url(), site.plan(Bind(other)), management=site.management)
    assert order(site) == (["c", "c", "d", "d", "d", "b", "a"], "record")
    with a_channel(site) as channel:
        channel.queue_unbind("a", "orders", "1", dict(other.arguments))
        channel.queue_bind("a", "orders", "1")
    assert order(site) == ([], "unknown")


def test_what_is_deleted_and_declared_again_takes_its_entry_along(site, applied) -> None:
    applied(site.url(), site.plan(*DECLARE, *map(Bind, BINDINGS)), management=site.management)
    with a_channel(site) as channel:
        channel.queue_delete("a")
        assert order(site) == (["c", "c", "d", "d", "d", "b"], "record")
        channel.queue_declare("a", durable=True)
        channel.queue_bind("a", "orders", "1")
        assert order(site) == ([], "unknown")
        applied(site.url(), site.plan(Unbind(BINDINGS[1])), management=site.management)
        assert order(site) == (["c", "c", "d", "d", "d", "b"], "record")
        channel.exchange_delete("orders")
        channel.exchange_declare("orders", CONSISTENT_HASH, durable=True)
        for queue in "bcd":
            channel.queue_bind(queue, "orders", WEIGHTS[queue])
    assert order(site) == ([], "unknown")


@pytest.mark.long
def test_a_restart_keeps_the_record_exactly_where_it_keeps_the_ring(site) -> None:
    if site.broker.source.kind == "external":
        pytest.skip("a broker of somebody else is not restarted")
    CLIENTS[0](site.url(), site.plan(*DECLARE, *map(Bind, BINDINGS)), management=site.management)
    site.broker.restart_app()
    wait_until(lambda: site.management.exchanges(site.vhost), "the exchanges are listed")
    kept = site.broker.store == "khepri"
    assert order(site) == ((RING, "record") if kept else ([], "unknown"))
    # The node tells the order; with the next change it is recorded again.
    observed = read(site.management, site.vhost, node=site.broker)
    before = observed.rings["orders"]
    steps = (DeclareQueue(Queue("e")), Bind(Binding("orders", "e", "1")))
    CLIENTS[0](site.url(), site.plan(*steps, to_record={"orders": before}), management=site.management)
    assert order(site) == ([*before.bucket_map, "e"], "record")


def test_nothing_is_written_where_the_record_is_turned_off(site, applied) -> None:
    seen = []

    def look(_: object) -> None:
        seen.extend(
            queue.arguments for queue, *_ in site.management.queues(site.vhost) if "lock" in queue.name
        )

    options = {"management": site.management, "record": False, "holder": "", "on_step": look}
    applied(site.url(), site.plan(*DECLARE, *map(Bind, BINDINGS)), **options)
    assert seen
    assert all(set(arguments) == {"x-max-length"} for arguments in seen)
    applied(site.url(), site.plan(Unbind(BINDINGS[0])), **options)
    assert ORDER_EXCHANGE not in {each.name for each in site.management.exchanges(site.vhost)}
    assert order(site) == ([], "unknown")
