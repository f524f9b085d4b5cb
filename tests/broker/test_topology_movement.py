"""What a plan promises to move is what moves: 20,000 messages before each kind of change of a ring, and after it.

The ring is known by the numbers of its binds alone, as it is to those who have no access to the node.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from rabbit_chx import Ring
from rabbit_chx.broker.applying.apply import apply
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Queue, Topology
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.steps import Bind, Unbind
from tests.broker.topology_load import KEYS, assert_share, differing, landing, said
from tests.broker.topology_site import Site, apply_one_by_one

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

SAMPLE = KEYS[:500]


class Change(NamedTuple):
    """A change of the ring by one way: what the file says then, and the ring with which that way ends."""

    way: str
    wanted: dict[str, int]
    ends: str


# Each starts from where the one before it ended.
START = {"a": 1, "b": 1, "c": 2, "d": 1, "e": 1, "f": 1}
CHANGES = [
    Change("append", START | {"g": 2}, "abccdefgg"),
    Change("in place", START | {"g": 2, "e": 3}, "abccdeeefgg"),  # another weight
    Change(
        "remove-last", {"b": 1, "c": 2, "d": 1, "e": 3, "f": 1, "g": 2}, "abccdeeef"
    ),  # g in the place of a
    Change("swap", {"a": 1, "c": 2, "d": 1, "e": 3, "f": 1}, "afccdeee"),
    Change("in place", {"f": 1, "a": 1, "c": 2, "d": 1, "e": 3}, "faccdeee"),  # the same in another order
]


def topology(vhost: str, queues: dict[str, int]) -> Topology:
    return Topology(
        vhost,
        (Exchange("orders", CONSISTENT_HASH),),
        tuple(map(Queue, queues)),
        tuple(Binding("orders", queue, str(weight)) for queue, weight in queues.items()),
    )


@pytest.fixture
def site(broker):
    with Site(broker) as site:
        apply(
            site.url(),
            plan(topology(site.vhost, START), read(site.management, site.vhost)),
            management=site.management,
        )
        yield site


class Watch:
    """Sends a sample of the keys after each step that changes the ring, and compares."""

    def __init__(self, site: Site, ring: Ring, before: list[str]) -> None:
        self.site = site
        self.ring = ring
        self.before = self.latest = before
        self.ever: set[int] = set()

    def __call__(self, step: object) -> None:
        if not isinstance(step, Bind | Unbind):
            return
        change = self.ring.bind if isinstance(step, Bind) else self.ring.unbind
        self.ring = change(step.binding.destination, step.binding.key, step.binding.arguments)
        now = landing(self.site, "orders", SAMPLE)
        assert now == said(self.ring, SAMPLE)
        assert_share(len(differing(self.latest, now)), len(SAMPLE), step.moved)
        self.latest = now
        self.ever |= differing(self.before, now)


@pytest.mark.long
def test_exactly_the_keys_move_that_the_plan_says(site) -> None:
    before = landing(site, "orders")
    for way, wanted, ends in CHANGES:
        observed = read(site.management, site.vhost)
        assert observed.ring_sources == {"orders": "record"}
        planned = plan(topology(site.vhost, wanted), observed, strategy=way, max_moved=1.0)
        (change,) = planned.changes
        assert [each.name for each in change.strategies if each.chosen] == [way]
        assert change.after.bucket_map == tuple(ends)

        watch = Watch(site, observed.rings["orders"], before[: len(SAMPLE)])
        apply_one_by_one(site, planned, watch)
        assert_share(len(watch.ever), len(SAMPLE), change.moved_between)

        after = landing(site, "orders")
        foretold = differing(said(change.before), said(change.after))
        assert differing(before, after) == foretold
        assert after == said(Ring.of({queue: ends.count(queue) for queue in ends}, release=observed.release))
        assert_share(len(foretold), len(KEYS), change.moved)
        before = after
