"""The rings after nodes of a cluster stop and start: one by one, and all of them."""

from __future__ import annotations

import pytest

from rabbit_chx import Ring, Store, ToExchange
from rabbit_chx.errors import RingUnknown
from tests.cluster.nodes import NAMES
from tests.patience import wait_until
from tests.proof import record_result

pytestmark = [pytest.mark.broker, pytest.mark.long]

MANY = "many"
# In no order: neither that of the names nor of the weights, nor of the nodes of the queues.
BINDINGS = [
    *(("of-3.b", "2"), ("of-2.a", "1"), ("of-1.b", "3"), (ToExchange("fan.c"), "1"), ("of-2.c", "1")),
    *(("of-1.a", "10"), ("of-3.a", "1"), (ToExchange("fan.a"), "1"), (ToExchange("fan.b"), "2"), ("of-3.c", "1")),
]  # fmt: skip
DEAD = [("of-1.b", "3", "4"), (ToExchange("fan.a"), "1", "5")]
"""Destinations that are bound a second time, and lose all buckets when the first binding is removed."""


@pytest.fixture
def rings(cluster, site):
    """A site with both topologies, and a ring over classic queues of all nodes and exchanges, with two dead bindings."""
    site.build(cluster.members[0])
    for number, member in enumerate(cluster.members, 1):
        with site.channel(member) as channel:
            for letter in "abc":
                classic = {"x-queue-type": "classic"}
                channel.queue_declare(f"of-{number}.{letter}", durable=True, arguments=classic)
                channel.exchange_declare(f"fan.{letter}", "fanout", durable=True)
    wanted = {f"of-{number}.{letter}" for number in (1, 2, 3) for letter in "abc"}
    wait_until(
        lambda: (
            wanted <= {queue.name for queue, *_ in site.management(cluster.members[0]).queues(site.vhost)}
        ),
        "the first node has the queues of the others: a follower of Khepri may be a moment late",
    )
    commands = [("bind", destination, weight) for destination, weight in BINDINGS]
    for destination, first, second in DEAD:
        commands += [("bind", destination, second), ("unbind", destination, first)]
    ring = Ring(release=site.release)
    with site.channel(cluster.members[0]) as channel:
        channel.exchange_declare(MANY, "x-consistent-hash", durable=True)
        for what, destination, weight in commands:
            command(channel, what, destination, weight)
            ring = getattr(ring, what)(destination, weight)
    site.rings[MANY] = ring
    site.check_rings()
    return site


def command(channel, what, destination, weight):
    kind = "exchange" if isinstance(destination, ToExchange) else "queue"
    getattr(channel, f"{kind}_{what}")(str(getattr(destination, "name", destination)), MANY, weight)


def revived(ring: Ring) -> Ring:
    """The ring with its dead bindings at the end, in sorted order."""
    assert len(ring.dead) == len(DEAD)
    dead = sorted(ring.dead, key=lambda binding: binding._sort_key)
    buckets = [*ring.bucket_map, *(binding.destination for binding in dead for _ in range(binding.weight))]
    return Ring.read(buckets, bindings=ring.bindings, release=ring.release)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_single_node_changes_no_ring_and_revives_dead_bindings(cluster, rings, how):
    """On Mnesia, too, since the other nodes keep the rings."""
    alive = revived(rings.rings[MANY])
    for number, member in enumerate(cluster.members):
        (member.node.halt if how == "stopped" else member.kill)()
        rings.check_rings(*cluster.others(member))
        cluster.boot(member)
        if number == 0:
            rings.rings[MANY] = alive
        rings.check_rings()
        rings.check_recorded(member, "record")
        cluster.whole()
    rings.check_landing()


def test_all_nodes_stop_and_start(cluster, rings):
    before = dict(rings.rings)
    for member in cluster.members:
        member.node.halt()
    cluster.boot(*cluster.members)

    if rings.release.store is Store.KHEPRI:
        rings.rings = {name: ring.after_restart() for name, ring in before.items()}
        rings.check_rings()
    else:
        after_mnesia(rings, before)
    for member in cluster.members:
        rings.check_recorded(member, "record" if rings.release.store is Store.KHEPRI else "unknown")
    cluster.whole()
    rings.check_landing()


def after_mnesia(rings, before):
    """The rings are rebuilt from the bindings, and are the same on all nodes.

    Each node adds its own classic queues, and the first node all other destinations. So even a single worker sorts a ring
    only if all its destinations are quorum queues and exchanges.
    """
    on_nodes = rings.on_nodes()
    for name, ring in before.items():
        predicted = ring.after_restart(worker_pool_size=1)
        rings.rings[name] = Ring.read(on_nodes[name], bindings=ring.bindings, release=rings.release)
        assert not rings.rings[name].dead
        if name != MANY:
            assert rings.rings[name].runs == predicted.runs
        else:
            assert set(rings.rings[name].runs) == set(predicted.runs)
            order = "sorted" if rings.rings[name].runs == predicted.runs else "not sorted"
            names = ", ".join(str(destination) for destination in rings.rings[name].destinations)
            record_result(
                f"cluster: full stop on Mnesia, one worker, classic queues on three nodes: {order}: {names}"
            )
    with pytest.raises(RingUnknown):
        before[MANY].after_restart().bucket_map  # noqa: B018 - reading it is the test


def test_every_node_reports_the_name_of_the_cluster(cluster):
    """Numbered binds are trusted in the cluster that made them, and by default each node gives it another name."""
    assert len(cluster.members) == len(NAMES)
    assert {member.eval("rabbit_nodes:cluster_name().") for member in cluster.members} == {
        '<<"rabbit-chx tests">>'
    }
