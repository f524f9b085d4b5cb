"""A second exchange with the wanted ring, and a switch upstream while messages flow: it is as the plan says."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rabbit_chx import ConsistentHashExchange, ModulusHashExchange, ToExchange
from rabbit_chx.broker.applying.apply import apply
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Binding, Exchange, Queue, Topology
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.steps import Plan
from tests.broker.topology_load import KEYS, Load, assert_share, differing, drained, landing, said
from tests.broker.topology_site import Site

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

OLD, NEW = {"a": 1, "b": 1, "c": 1}, {"c": 2, "a": 1, "d": 1}


def planned(site: Site, upstream: str, queues: dict[str, int], **options) -> Plan:
    """An exchange of this type over a hash exchange over queues."""
    orders = [Binding("orders", queue, str(weight)) for queue, weight in queues.items()]
    front = Binding("front", ToExchange("orders"), "1")
    exchanges = (Exchange("front", upstream), Exchange("orders", CONSISTENT_HASH))
    wanted = Topology(site.vhost, exchanges, tuple(map(Queue, queues)), (*orders, front))
    return plan(wanted, read(site.management, site.vhost), **options)


@pytest.mark.parametrize("upstream", [CONSISTENT_HASH, MODULUS_HASH])
def test_under_a_hash_exchange_with_one_destination_no_message_is_lost_or_duplicated(site, upstream) -> None:
    few, many = KEYS[:500], KEYS[:5_000]
    apply(site.url(), planned(site, upstream, OLD), management=site.management)
    before = landing(site, "front", many)
    assert before == said(OLD, many)

    switch = planned(site, upstream, NEW, strategy="blue/green")
    assert all(step.binding.source == "front" for step in switch.destructive)
    with Load(site, "front", few) as load:
        for step in switch.steps:  # one by one, because `apply` sends those of one kind together
            apply(site.url(), site.plan(step), management=site.management, on_step=load.flows)
    found = drained(site)
    load.check_none_was_lost_or_came_back(found)
    assert "no message is lost or duplicated" in " ".join(switch.notes)
    assert all(len(places) == 1 for places in found.values())
    moved = load.check_each_key_moved_at_most_once(found)
    assert moved == {few[place] for place in differing(said(OLD, few), said(NEW, few))}

    after = landing(site, "front", many)
    assert after == said(NEW, many)
    (change,) = switch.changes
    assert_share(len(differing(before, after)), len(many), change.moved)

    # Between the two steps the front has two destinations, and a part of the keys has gone over already.
    both = [ToExchange("orders"), ToExchange("orders.v2")]
    front = ConsistentHashExchange(both) if upstream == CONSISTENT_HASH else ModulusHashExchange(both)
    early = {place for place, key in enumerate(few) if front.route(key) == both[1]}
    first, second = (differing(*pair) for pair in pairwise(load.after_each_step(found)[-3:]))
    assert first == differing(said(OLD, few), said(NEW, few)) & early
    assert second == differing(said(OLD, few), said(NEW, few)) - early
    for step, moved in zip(switch.steps[-2:], (first, second), strict=True):
        assert_share(len(moved), len(few), step.moved)
