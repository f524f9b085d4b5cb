"""A second exchange with the wanted ring, and a switch upstream while messages flow: it is as the plan says."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest

from rabbit_chx import ConsistentHashExchange, ModulusHashExchange, ToExchange
from rabbit_chx.broker.applying.apply import apply
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Binding, Exchange, Queue, Topology
from rabbit_chx.topology.planning.plan import plan
from tests.broker.topology_load import KEYS, Load, assert_share, differing, drained, landing, said
from tests.broker.topology_site import Site, apply_one_by_one

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

OLD, NEW = {"a": 1, "b": 1, "c": 1}, {"c": 2, "a": 1, "d": 1}


class Switch:
    """An exchange over a hash exchange, which gives way to a second one while messages flow."""

    def __init__(self, site: Site, upstream: str, keys, bound_with=("1",)) -> None:
        self.site, self.upstream, self.keys, self.bound_with = site, upstream, keys, bound_with
        apply(site.url(), self.plan(OLD), management=site.management)

    def plan(self, queues: dict[str, int], **options):
        orders = [Binding("orders", queue, str(weight)) for queue, weight in queues.items()]
        front = [Binding("front", ToExchange("orders"), key) for key in self.bound_with]
        exchanges = (Exchange("front", self.upstream), Exchange("orders", CONSISTENT_HASH))
        wanted = Topology(self.site.vhost, exchanges, tuple(map(Queue, queues)), (*orders, *front))
        return plan(wanted, read(self.site.management, self.site.vhost), **options)

    def under_load(self) -> dict[int, list[str]]:
        """Where each message was that was sent meanwhile; none was lost, none came back."""
        self.planned = self.plan(NEW, strategy="blue/green")
        assert all(step.binding.source == "front" for step in self.planned.destructive)
        with Load(self.site, "front", self.keys) as self.load:
            apply_one_by_one(self.site, self.planned, self.load.flows)
        found = drained(self.site)
        self.load.check_none_was_lost_or_came_back(found)
        return found

    @property
    def notes(self) -> str:
        return " ".join(self.planned.notes)


@pytest.mark.parametrize("upstream", [CONSISTENT_HASH, MODULUS_HASH])
def test_under_a_hash_exchange_with_one_destination_no_message_is_lost_or_duplicated(site, upstream) -> None:
    few, many = KEYS[:500], KEYS[:5_000]
    switch = Switch(site, upstream, few)
    before = landing(site, "front", many)
    assert before == said(OLD, many)

    found = switch.under_load()
    assert "no message is lost or duplicated" in switch.notes
    assert all(len(places) == 1 for places in found.values())
    moved = switch.load.check_each_key_moved_at_most_once(found)
    assert moved == {few[place] for place in differing(said(OLD, few), said(NEW, few))}

    after = landing(site, "front", many)
    assert after == said(NEW, many)
    (change,) = switch.planned.changes
    assert_share(len(differing(before, after)), len(many), change.moved)

    # Between the two steps the front has two destinations, and a part of the keys has gone over already.
    both = [ToExchange("orders"), ToExchange("orders.v2")]
    front = ConsistentHashExchange(both) if upstream == CONSISTENT_HASH else ModulusHashExchange(both)
    early = {place for place, key in enumerate(few) if front.route(key) == both[1]}
    first, second = (differing(*pair) for pair in pairwise(switch.load.after_each_step(found)[-3:]))
    assert first == differing(said(OLD, few), said(NEW, few)) & early
    assert second == differing(said(OLD, few), said(NEW, few)) - early
    for step, moved in zip(switch.planned.steps[-2:], (first, second), strict=True):
        assert_share(len(moved), len(few), step.moved)


@pytest.mark.long
@pytest.mark.parametrize(
    ("upstream", "keys", "bound_with"), [("fanout", KEYS[:200], ("",)), ("direct", KEYS[:8], KEYS[:8])]
)
def test_under_an_exchange_that_copies_messages_arrive_twice_while_both_are_bound(
    site, upstream, keys, bound_with
) -> None:
    switch = Switch(site, upstream, keys, bound_with)
    found = switch.under_load()
    assert "messages go to both while both are bound" in switch.notes
    twice = 0
    for place, (old, new) in enumerate(zip(said(OLD, keys), said(NEW, keys), strict=True)):
        own = [sorted(found[number]) for number in range(place, switch.load.sent, len(keys))]
        # A queue gets one copy, by however many ways: of a key that stays nothing is to be seen.
        phases = [queues for queues, _ in groupby(own)]
        assert phases == ([[old]] if old == new else [[old], sorted([old, new]), [new]])
        twice += old != new
    assert twice > 0
    assert landing(site, "front", keys) == said(NEW, keys)
