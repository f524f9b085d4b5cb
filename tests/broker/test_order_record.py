"""The recorded order of rings on real brokers, next to applications that declare and bind for themselves."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest

from rabbit_chx.broker.applying.apply import apply
from rabbit_chx.broker.reading.order_record import ORDER_EXCHANGE
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.topology import drift, plan
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Queue, Topology
from rabbit_chx.topology.planning.steps import Bind, DeclareExchange, DeclareQueue, DeleteQueue, Unbind
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


def bind_with_pika(site) -> None:
    with site.connection() as connection:
        bind_ring(connection.channel(), "orders", WEIGHTS)


def bind_with_aio_pika(site) -> None:
    async def bind() -> None:
        async with await aio_pika.connect(site.url()) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange("orders", CONSISTENT_HASH, durable=True)
            for name, weight in WEIGHTS.items():
                await (await channel.declare_queue(name, durable=True)).bind(exchange, weight)

    asyncio.run(bind())


APPLICATIONS = [bind_with_pika, pytest.param(bind_with_aio_pika, marks=pytest.mark.long)]


def order(site, exchange: str = "orders") -> tuple[list, str]:
    """The ring as it is read without a node, which must be the node's, and how it is known."""
    observed = read(site.management, site.vhost)
    ring = observed.rings[exchange]
    if ring.known:
        assert list(ring.bucket_map) == site.broker.ring(exchange, site.vhost)
    return list(ring.bucket_map) if ring.known else [], observed.ring_sources[exchange]


@pytest.mark.parametrize("start", APPLICATIONS)
def test_an_application_that_binds_at_each_start_changes_nothing(site, applied, start) -> None:
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


@pytest.mark.parametrize("start", APPLICATIONS)
def test_plan_and_drift_are_empty_whenever_the_application_starts(site, start) -> None:
    queues = tuple(Queue(name) for name in WEIGHTS)
    wanted = Topology(site.vhost, (Exchange("orders", CONSISTENT_HASH),), queues, tuple(BINDINGS))
    for first in (lambda: None, lambda: start(site)):
        first()
        apply(site.url(), plan(wanted, read(site.management, site.vhost)), management=site.management)
        observed = read(site.management, site.vhost)
        assert not plan(wanted, observed).steps
        assert not drift(wanted, observed)
    assert order(site) == (RING, "record")


@pytest.mark.parametrize("start", APPLICATIONS)
def test_the_order_is_known_without_a_node_and_survives_what_applications_do(site, applied, start) -> None:
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


def test_each_client_undoes_what_the_other_recorded(site) -> None:
    one, two = CLIENTS
    one(site.url(), site.plan(*DECLARE, *map(Bind, BINDINGS)), management=site.management)
    lighter = Binding("orders", "d", "1")
    two(site.url(), site.plan(Unbind(BINDINGS[2]), Bind(lighter)), management=site.management)
    assert order(site) == (["c", "c", "a", "b", "d"], "record")
    two(site.url(), site.plan(Unbind(BINDINGS[1])), management=site.management)
    one(site.url(), site.plan(Unbind(lighter), DeleteQueue("a")), management=site.management)
    assert order(site) == (["c", "c", "b"], "record")
    entries = site.management.bindings_from(site.vhost, ORDER_EXCHANGE)
    assert sorted(str(each.destination) for each in entries) == ["b", "c", "exchange orders"]


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


def test_an_unbind_without_a_record_voids_that_of_its_ring_alone(site, applied) -> None:
    other = [Binding("events", queue, weight) for queue, weight in WEIGHTS.items()]
    made = (*DECLARE, DeclareExchange(Exchange("events", CONSISTENT_HASH)), *map(Bind, [*BINDINGS, *other]))
    applied(site.url(), site.plan(*made), management=site.management)
    changes = site.plan(Unbind(BINDINGS[0]), Bind(BINDINGS[0]))
    applied(site.url(), changes, management=site.management, record=False)
    assert order(site) == ([], "unknown")
    assert order(site, "events") == (RING, "record")
