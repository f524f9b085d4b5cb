"""Binds over several nodes at once, and while nodes do not hear each other: what the ring becomes, and on which node.

    RABBIT_CHX_CLUSTER_RELEASES=4.0,4.3 RABBIT_CHX_CLUSTER_ROUNDS=10 pytest tests/cluster/test_binds.py

The bindings and the ring of an exchange are two things that the broker changes one after the other, on Mnesia and on
Khepri alike. Commands about different destinations cannot tell, whoever gives them. Two that bind and unbind the same one
at the same time can: the ring may then be without a queue that is listed, or with one that is not.
"""

from __future__ import annotations

import threading
import time

import pytest
from pika.exceptions import AMQPError, ConnectionClosedByBroker

from rabbit_chx import Ring, Store, ToExchange
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.publishing import Publisher, Timeouts
from tests.cluster.conftest import ROUNDS
from tests.cluster.nodes import NAMES
from tests.faults.ledger import body, drain
from tests.faults.load import wait_until, within
from tests.proof import Check, book, dice

pytestmark = [pytest.mark.broker, pytest.mark.long]

SHORT = {
    "test_binds_over_all_nodes_make_one_ring_in_some_serial_order",
    "test_everybody_declares_the_exchange_that_it_binds_to",
}
PATIENCE = 120.0
CONNECTION_FORCED, INTERNAL_ERROR = 320, 541


def at_once(site, rounds, script) -> None:
    """In each round every node is given its commands, script(node, round), over a connection of its own."""
    barrier = threading.Barrier(len(NAMES))

    def work(member):
        place = site.cluster.members.index(member)
        with site.connection(member) as connection:
            channel = connection.channel()
            try:
                for number in range(rounds):
                    barrier.wait(PATIENCE)
                    for command in script(place, number):
                        command(channel)
            except BaseException:
                barrier.abort()
                raise

    site.cluster.on_each(work)


def settled(site):
    """The rings, when all nodes have the same ones: a follower of Khepri may be a moment late."""
    found = []

    def agree() -> bool:
        found[:] = site.each_node()
        return all(rings == found[0] for rings in found)

    wait_until(agree, "all nodes have the same rings", PATIENCE)
    return found[0]


def declare(site, exchanges, destinations) -> None:
    with site.connection(site.cluster.members[0]) as connection:
        channel = connection.channel()
        for name in exchanges:
            channel.exchange_declare(name, "x-consistent-hash", durable=True)
        for name in destinations:
            channel.exchange_declare(name, "fanout", durable=True)


def listed(site):
    """The destinations and keys of all bindings of each exchange."""
    found: dict[str, set] = {}
    for bound in site.management(site.cluster.members[0]).bindings(site.vhost):
        found.setdefault(bound.source, set()).add((bound.destination, bound.key))
    return found


def is_serial(runs, weights, scripts) -> bool:
    """Whether the binds, each connection's in the order in which it gave them, make this ring."""
    order = [destination.name for destination, _ in runs]
    in_order = ([name for name in order if name in script] == script for script in scripts)
    return [weights.get(name) for name in order] == [weight for _, weight in runs] and all(in_order)


def test_binds_over_all_nodes_make_one_ring_in_some_serial_order(site):
    rounds, started = 30 * ROUNDS, time.monotonic()
    weights = {f"d{n:02}": 1 + n % 4 for n in range(12)}
    scripts = [list(weights)[place::3] for place in range(3)]
    declare(site, [f"x{number}" for number in range(rounds)], weights)
    at_once(
        site,
        rounds,
        lambda place, number: [
            lambda channel, name=name: channel.exchange_bind(name, f"x{number}", str(weights[name]))
            for name in scripts[place]
        ],
    )
    found = [Ring.read(buckets, release=site.release).runs for buckets in settled(site).values()]
    wrong = sum(not is_serial(runs, weights, scripts) for runs in found)
    seen = sum(not is_serial([*runs[1:], runs[0]], weights, scripts) for runs in found)
    orders = len({tuple(runs) for runs in found})
    book(
        Check(
            "Ring",
            f"twelve binds over three nodes at once: a serial order of them ({orders} orders), the same on all nodes",
            site.cluster.version,
            rounds,
            wrong,
            time.monotonic() - started,
            f"the first bind at the end: {seen:,} of {rounds:,} seen",
        )
    )
    assert len(found) == seen == rounds
    assert not wrong
    assert orders > 1, "the nodes took turns, which proves nothing"


def declare_and_bind_at_once(site, rounds, names) -> set[tuple[str, str]]:
    """In each round everybody declares the same exchange and binds a queue of its own to it; which binds were refused."""
    barrier, refused = threading.Barrier(len(NAMES)), set()

    def work(member):
        try:
            for number in range(rounds):
                with site.connection(member) as connection:
                    channel = connection.channel()
                    barrier.wait(PATIENCE)
                    try:
                        channel.exchange_declare(f"y{number}", "x-consistent-hash", durable=True)
                        channel.exchange_bind(names[member], f"y{number}", "1")
                    except ConnectionClosedByBroker as error:
                        if error.reply_code != INTERNAL_ERROR:
                            raise
                        refused.add((f"y{number}", names[member]))
        except BaseException:
            barrier.abort()
            raise

    site.cluster.on_each(work)
    return refused


def test_everybody_declares_the_exchange_that_it_binds_to(site):
    """As programs do that start together: whoever is told that it has bound is in the ring.

    On 4.3.6 a bind may meet an exchange whose ring is still being made over another node. The broker then answers
    541 INTERNAL_ERROR, and the queue has to be unbound before it is bound again.
    """
    rounds = 50 * ROUNDS
    names = dict(zip(site.cluster.members, ("e0", "e1", "e2"), strict=True))
    declare(site, [], names.values())
    refused = declare_and_bind_at_once(site, rounds, names)
    rings = {name: [destination.name for destination in ring] for name, ring in settled(site).items()}
    book(
        f"cluster: three programs declare an exchange and bind at once, {site.cluster.version}: "
        f"{len(refused)} of {3 * rounds} binds answered with 541 INTERNAL_ERROR"
    )
    assert len(rings) == rounds
    for name, ring in rings.items():
        acknowledged = [one for one in names.values() if (name, one) not in refused]
        assert [one for one in sorted(ring) if (name, one) not in refused] == acknowledged, name
    with site.connection(site.cluster.members[0]) as connection:
        channel = connection.channel()
        for name, destination in sorted(refused):
            channel.exchange_unbind(destination, name, "1")
            channel.exchange_bind(destination, name, "1")
    mended = settled(site).values()
    assert all(sorted(one.name for one in ring) == list(names.values()) for ring in mended)


def interleavings(sequences):
    """Every order in which sequences can be carried out that each keep their own."""
    sequences = [each for each in sequences if each]
    if not sequences:
        yield ()
    for place, (first, *rest) in enumerate(sequences):
        others = [*sequences[:place], rest, *sequences[place + 1 :]]
        yield from ((first, *tail) for tail in interleavings(others))


def outcomes(release, scripts):
    """The listed bindings and the ring after each serial order of the commands."""
    for order in set(interleavings(scripts)):
        ring = Ring(release=release).bind(ToExchange("last"))
        for what, weight in order:
            ring = getattr(ring, what)(ToExchange("same"), weight)
        yield frozenset((binding.destination, binding.key) for binding in ring.bindings), ring.bucket_map


def test_one_queue_bound_and_unbound_at_once(site):
    """May end as no order of the commands would, and whoever reads the ring from the node is told."""
    rounds, fall = 40 * ROUNDS, dice("one queue bound and unbound at once", site.cluster.version)
    scripts = [
        [[(fall.choice(["bind", "unbind"]), fall.choice("12")) for _ in range(2)] for _ in NAMES]
        for _ in range(rounds)
    ]
    exchanges = [f"z{number}" for number in range(rounds)]
    declare(site, exchanges, ["same", "last"])
    with site.connection(site.cluster.members[0]) as connection:
        channel = connection.channel()
        for name in exchanges:
            channel.exchange_bind("last", name, "1")
    at_once(
        site,
        rounds,
        lambda place, number: [
            lambda channel, what=what, weight=weight: getattr(channel, f"exchange_{what}")(
                "same", f"z{number}", weight
            )
            for what, weight in scripts[number][place]
        ],
    )
    rings, bindings = settled(site), listed(site)
    observed = read(site.management(site.cluster.members[0]), site.vhost, node=site.cluster.members[0])
    odd = 0
    for number, name in enumerate(exchanges):
        end = frozenset(bindings[name]), tuple(rings[name])
        if end not in set(outcomes(site.release, scripts[number])):
            odd += 1
            assert not observed.rings[name].known or observed.rings[name].dead, end
    book(
        f"cluster: one queue bound and unbound over three nodes at once, {site.cluster.version}: {odd} of {rounds} rings "
        "are not what any order of the commands makes"
    )


def bind(site, member, queue, exchange) -> Exception | None:
    """Bind over one node; the error if it was refused."""

    def work():
        with site.connection(member) as connection:
            connection.channel().queue_bind(queue, exchange, "1")

    try:
        within(PATIENCE, work, f"a bind over {member}")
    except AMQPError as error:
        return error
    return None


def is_refusal(error) -> bool:
    return isinstance(error, ConnectionClosedByBroker) and error.reply_code == INTERNAL_ERROR


def is_shutdown(error) -> bool:
    return isinstance(error, ConnectionClosedByBroker) and error.reply_code == CONNECTION_FORCED


@pytest.fixture
def four(cluster, site):
    """An exchange with one queue bound, and three quorum queues to bind."""
    with site.connection(cluster.members[0]) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", "x-consistent-hash", durable=True)
        for queue in ("q0", "q1", "q2", "bound"):
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind("bound", "x", "1")
    site.rings = {"x": Ring.of(["bound"], release=site.release)}
    settled(site)
    return site


def test_binds_without_a_majority(cluster, four):
    """Khepri refuses them after half a minute, and may keep one all the same, without buckets; Mnesia acknowledges them
    and forgets most, or a node that has lost the others ends its connections instead of answering. So whoever was refused
    has to unbind before binding again, and whoever was not has to look.
    """
    for member in cluster.members:
        member.node.cut()
    numbers = dict(zip(cluster.members, ("q0", "q1", "q2"), strict=True))
    refused = cluster.on_each(lambda member: bind(four, member, numbers[member], "x"))
    for member in cluster.members:
        member.node.heal()
    cluster.run()
    cluster.reunite(trusted=cluster.members[1])

    on_khepri = four.release.store is Store.KHEPRI
    assert all(
        is_refusal(error) if on_khepri else error is None or is_shutdown(error) for error in refused
    ), refused
    ring = settled(four)["x"]
    there = {destination for destination, _ in listed(four)["x"]}
    lost, dead = set(numbers.values()) - there, there - set(ring)
    assert "bound" in ring
    assert lost
    assert not dead or on_khepri
    book(
        f"cluster: binds over three nodes without a majority, {cluster.version}: {sum(map(bool, refused))} of 3 refused, "
        f"listed afterwards {len(there) - 1}, of these dead {len(dead)}"
    )
    with four.connection(cluster.members[0]) as connection:
        channel = connection.channel()
        for queue in numbers.values():
            channel.queue_unbind(queue, "x", "1")
            channel.queue_bind(queue, "x", "1")
    assert settled(four)["x"] == ["bound", "q0", "q1", "q2"]


def test_a_node_that_does_not_hear_of_a_bind(cluster, site):
    """On Khepri it goes on by the ring that it knows, confirms and all; on Mnesia it sends its clients away."""
    apart, one, _ = cluster.members
    rows = range(20)
    for queue, home in {"old": apart, "new": one}.items():
        with site.connection(home) as connection:
            connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
    declare(site, ["x"], [])
    assert bind(site, apart, "old", "x") is None
    with (
        site.connection(one) as connection,
        Publisher(site.url(apart), "x", timeouts=Timeouts(reconnect=1)) as publisher,
    ):
        channel = connection.channel()
        apart.node.cut()
        channel.queue_bind("new", "x", "1")
        channel.queue_unbind("old", "x", "1")
        if site.release.store is Store.KHEPRI:
            assert site.on_nodes(apart)["x"] == ["old"]
            publisher.publish_many([body(row) for row in rows], "customer")
            assert publisher.flush(PATIENCE).confirmed == len(rows)
        else:
            wait_until(lambda: publisher.error is not None, "the node sends its clients away", PATIENCE)
        apart.node.heal()
    cluster.run()
    assert settled(site)["x"] == ["new"]
    if site.release.store is Store.KHEPRI:
        assert drain(site.url(one), ["old", "new"]) == [list(rows), []]
