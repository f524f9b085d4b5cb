"""Binds through several nodes at the same time, and through nodes that are cut off: the ring, and the node that has it.

    RABBIT_CHX_CLUSTER_RELEASES=4.0,4.3 RABBIT_CHX_CLUSTER_ROUNDS=10 pytest tests/cluster/test_binds.py

The broker changes the bindings and the ring of an exchange one after the other, on Mnesia and on Khepri alike. Commands
about different destinations do not interfere. Two that bind and unbind the same destination at the same time do: the ring
may then lack a queue that is listed, or have one that is not.
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
from tests.faults.load import within
from tests.patience import PATIENCE, wait_until
from tests.proof import Check, dice, record_result

pytestmark = [pytest.mark.broker, pytest.mark.long]

SHORT = {"test_binds_through_all_nodes_make_one_ring_in_some_serial_order"}
CONNECTION_FORCED, INTERNAL_ERROR = 320, 541


def at_once(site, rounds, work) -> set[tuple[int, int]]:
    """In each round call ``work(channel, round, node's place)`` through all nodes at the same time.

    Return the rounds and places of the calls that the broker ended with INTERNAL_ERROR.
    """
    barrier, refused = threading.Barrier(len(NAMES)), set()

    def run(member):
        place = site.cluster.members.index(member)
        try:
            for number in range(rounds):
                try:
                    with site.channel(member) as channel:
                        barrier.wait(PATIENCE)
                        work(channel, number, place)
                except ConnectionClosedByBroker as error:
                    if error.reply_code != INTERNAL_ERROR:
                        raise
                    refused.add((number, place))
        except BaseException:
            barrier.abort()
            raise

    site.cluster.on_each(run)
    return refused


def settled(site):
    """The rings, when all nodes have the same: a follower of Khepri may be a moment late."""
    found = []

    def agree() -> bool:
        found[:] = site.each_node()
        return all(rings == found[0] for rings in found)

    wait_until(agree, "all nodes have the same rings")
    return found[0]


def declare(site, exchanges, destinations) -> None:
    """Declare exchanges, and return when all nodes have them: a follower of Khepri may be a moment late."""
    with site.channel(site.cluster.members[0]) as channel:
        for name in exchanges:
            channel.exchange_declare(name, "x-consistent-hash", durable=True)
        for name in destinations:
            channel.exchange_declare(name, "fanout", durable=True)

    def there(member) -> bool:
        listed = {each.name for each in site.management(member).exchanges(site.vhost)}
        return listed >= {*exchanges, *destinations}

    wait_until(lambda: all(map(there, site.cluster.members)), "all nodes have the exchanges")


def listed(site):
    found: dict[str, set] = {}
    for bound in site.management(site.cluster.members[0]).bindings(site.vhost):
        found.setdefault(bound.source, set()).add((bound.destination, bound.key))
    return found


def is_serial(runs, weights, scripts) -> bool:
    """Whether a serial order of the binds, in which each script keeps its own order, makes this ring."""
    order = [destination.name for destination, _ in runs]
    in_order = ([name for name in order if name in script] == script for script in scripts)
    return [weights.get(name) for name in order] == [weight for _, weight in runs] and all(in_order)


def test_binds_through_all_nodes_make_one_ring_in_some_serial_order(site):
    rounds, started = 30 * ROUNDS, time.monotonic()
    weights = {f"d{n:02}": 1 + n % 4 for n in range(12)}
    scripts = [list(weights)[place::3] for place in range(3)]
    declare(site, [f"x{number}" for number in range(rounds)], weights)

    def bind_four(channel, number, place):
        for name in scripts[place]:
            channel.exchange_bind(name, f"x{number}", str(weights[name]))

    assert not at_once(site, rounds, bind_four)
    found = [Ring.read(buckets, release=site.release).runs for buckets in settled(site).values()]
    wrong = sum(not is_serial(runs, weights, scripts) for runs in found)
    seen = sum(not is_serial([*runs[1:], runs[0]], weights, scripts) for runs in found)
    orders = len({tuple(runs) for runs in found})
    what = f"twelve binds over three nodes at once: the ring of a serial order ({orders} seen), the same on all nodes"
    control = f"the first bind at the end: {seen:,} of {rounds:,} seen"
    record_result(
        Check("Ring", what, site.cluster.version, rounds, wrong, time.monotonic() - started, control)
    )
    assert len(found) == seen == rounds
    assert not wrong
    assert orders > 1, "the nodes took turns, so the test proves nothing"


def test_three_programs_declare_and_bind_at_once(site):
    """Programs that start together all declare the exchange. Every bind that succeeds is in the ring.

    On 4.3.6 a bind may meet an exchange whose ring is still being made through another node. The broker then answers
    541 INTERNAL_ERROR, and the queue must be unbound before it is bound again.
    """
    rounds, names = 50 * ROUNDS, ["e0", "e1", "e2"]
    declare(site, [], names)

    def declare_and_bind(channel, number, place):
        channel.exchange_declare(f"y{number}", "x-consistent-hash", durable=True)
        channel.exchange_bind(names[place], f"y{number}", "1")

    refused = at_once(site, rounds, declare_and_bind)
    rings = {name: [destination.name for destination in ring] for name, ring in settled(site).items()}
    record_result(
        f"cluster: three programs declare an exchange and bind at once, {site.cluster.version}: "
        f"{len(refused)} of {3 * rounds} binds answered with 541 INTERNAL_ERROR"
    )
    assert len(rings) == rounds
    for number in range(rounds):
        acknowledged = [name for place, name in enumerate(names) if (number, place) not in refused]
        assert [name for name in sorted(rings[f"y{number}"]) if name in acknowledged] == acknowledged
    with site.channel(site.cluster.members[0]) as channel:
        for number, place in sorted(refused):
            channel.exchange_unbind(names[place], f"y{number}", "1")
            channel.exchange_bind(names[place], f"y{number}", "1")
    assert all(sorted(one.name for one in ring) == names for ring in settled(site).values())


def interleavings(sequences):
    """All orders of the commands in which each sequence keeps its own order."""
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
    """The result may be one that no order of the commands has; then reading the ring from the node shows that."""
    rounds, random = 40 * ROUNDS, dice("one queue bound and unbound at once", site.cluster.version)
    scripts = [
        [[(random.choice(["bind", "unbind"]), random.choice("12")) for _ in range(2)] for _ in NAMES]
        for _ in range(rounds)
    ]
    exchanges, first = [f"z{number}" for number in range(rounds)], site.cluster.members[0]
    declare(site, exchanges, ["same", "last"])
    with site.channel(first) as channel:
        for name in exchanges:
            channel.exchange_bind("last", name, "1")

    def run_script(channel, number, place):
        for what, weight in scripts[number][place]:
            getattr(channel, f"exchange_{what}")("same", exchanges[number], weight)

    assert not at_once(site, rounds, run_script)
    rings, bindings = settled(site), listed(site)
    observed = read(site.management(first), site.vhost, node=first)
    odd = 0
    for number, name in enumerate(exchanges):
        end = frozenset(bindings[name]), tuple(rings[name])
        if end not in set(outcomes(site.release, scripts[number])):
            odd += 1
            assert not observed.rings[name].known or observed.rings[name].dead, end
    record_result(
        f"cluster: one queue bound and unbound over three nodes at once, {site.cluster.version}: {odd} of {rounds} rings "
        "match no order of the commands"
    )


def bind(site, member, queue, exchange) -> Exception | None:
    """Bind through one node; return the error if the bind failed."""

    def work():
        with site.channel(member) as channel:
            channel.queue_bind(queue, exchange, "1")

    try:
        within(PATIENCE, work, f"a bind through {member}")
    except AMQPError as error:
        return error
    return None


def is_closed(error, code) -> bool:
    return isinstance(error, ConnectionClosedByBroker) and error.reply_code == code


@pytest.fixture
def four(cluster, site):
    """An exchange with one queue bound, and three quorum queues to bind."""
    with site.channel(cluster.members[0]) as channel:
        channel.exchange_declare("x", "x-consistent-hash", durable=True)
        for queue in ("q0", "q1", "q2", "bound"):
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind("bound", "x", "1")
    site.rings = {"x": Ring.of(["bound"], release=site.release)}
    settled(site)
    return site


def test_binds_without_a_majority(cluster, four):
    """Khepri refuses them after half a minute, and may keep one all the same, without buckets. Mnesia acknowledges them
    and forgets most, or a node that has lost the others closes its connections. So a program must unbind before it binds
    again after an error, and check the bindings after none.
    """
    for member in cluster.members:
        member.node.cut()
    queues = dict(zip(cluster.members, ("q0", "q1", "q2"), strict=True))
    errors = cluster.on_each(lambda member: bind(four, member, queues[member], "x"))
    for member in cluster.members:
        member.node.heal()
    cluster.run()
    cluster.reunite(trusted=cluster.members[1])

    on_khepri = four.release.store is Store.KHEPRI
    for error in errors:
        if on_khepri:
            assert is_closed(error, INTERNAL_ERROR), errors
        else:
            assert error is None or is_closed(error, CONNECTION_FORCED), errors
    ring = settled(four)["x"]
    there = {destination for destination, _ in listed(four)["x"]}
    lost, dead = set(queues.values()) - there, there - set(ring)
    assert "bound" in ring
    assert lost
    assert not dead or on_khepri
    record_result(
        f"cluster: binds over three nodes without a majority, {cluster.version}: {sum(map(bool, errors))} of 3 refused, "
        f"listed afterwards {len(there) - 1}, of these dead {len(dead)}"
    )
    with four.channel(cluster.members[0]) as channel:
        for queue in queues.values():
            channel.queue_unbind(queue, "x", "1")
            channel.queue_bind(queue, "x", "1")
    assert settled(four)["x"] == ["bound", "q0", "q1", "q2"]


def test_a_node_that_does_not_hear_of_a_bind(cluster, site):
    """On Khepri it routes by the ring that it knows, and confirms; on Mnesia it closes its connections."""
    apart, one, _ = cluster.members
    rows = range(20)
    for queue, home in {"old": apart, "new": one}.items():
        with site.channel(home) as channel:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
    declare(site, ["x"], [])
    assert bind(site, apart, "old", "x") is None
    with (
        site.channel(one) as channel,
        Publisher(site.url(apart), "x", timeouts=Timeouts(reconnect=1)) as publisher,
    ):
        apart.node.cut()
        channel.queue_bind("new", "x", "1")
        channel.queue_unbind("old", "x", "1")
        if site.release.store is Store.KHEPRI:
            assert site.on_nodes(apart)["x"] == ["old"]
            totals = publisher.publish_many([body(row) for row in rows], "customer", timeout=PATIENCE)
            assert totals.confirmed == len(rows)
        else:
            wait_until(lambda: publisher.error is not None, "the node closes its connections")
        apart.node.heal()
    cluster.run()
    assert settled(site)["x"] == ["new"]
    if site.release.store is Store.KHEPRI:
        assert drain(site.url(one), ["old", "new"]) == [list(rows), []]
