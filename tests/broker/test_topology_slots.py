"""64 slots over four queues grow to six and shrink to five while messages flow; restarts move nothing.

The mirror of the top says which slot a key goes to, and the bindings of the slots say where that one leads: so it is
known of every single message where it must lie.
"""

from __future__ import annotations

import pytest

from rabbit_chx import ModulusHashExchange, ToExchange
from rabbit_chx.broker.applying.apply import apply
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.topology.model import MODULUS_HASH, Exchange, Queue, Slots, Topology
from rabbit_chx.topology.planning.plan import plan
from tests.broker.topology_load import KEYS, Load, assert_share, differing, drained, landing
from tests.broker.topology_site import Site
from tests.proof import LONG

pytestmark = [
    pytest.mark.newest_first,
    pytest.mark.broker,
    pytest.mark.proves(
        "Topology",
        "slots grown, shrunk and restarted under load",
        "keys of re-pointed slots do move, and are counted",
    ),
]

SLOTS = tuple(f"orders.slot.{number:02}" for number in range(64))
FOUR, SIX, FIVE = ("a", "b", "c", "d"), ("a", "b", "c", "d", "e", "f"), ("a", "c", "d", "e", "f")
FEW = KEYS[:500]

# How many slots have to be pointed elsewhere at least. Of four queues each has 16; of six four get 11 and two 10,
# so the two new ones take 20; and when one with 11 goes, the other five take just these.
GROWN, SHRUNK = 20, 11


def topology(vhost: str, queues: tuple[str, ...]) -> Topology:
    return Topology(
        vhost,
        (Exchange("orders", MODULUS_HASH),),
        tuple(map(Queue, queues)),
        slots=(Slots("orders", len(SLOTS), dict.fromkeys(queues, 1)),),
    )


def planned(site: Site, queues: tuple[str, ...]):
    return plan(topology(site.vhost, queues), read(site.management, site.vhost))


@pytest.fixture(scope="module")
def site(broker):
    with Site(broker) as site:
        apply(site.url(), planned(site, FOUR), management=site.management)
        yield site


@pytest.fixture
def top(site) -> ModulusHashExchange:
    return ModulusHashExchange(map(ToExchange, SLOTS), release=read(site.management, site.vhost).release)


def pointing(site: Site) -> dict[str, str]:
    """The queue of each slot, of which none has two."""
    bounds = [bound for bound in site.management.bindings(site.vhost) if bound.source in SLOTS]
    assert len(bounds) == len(SLOTS)
    return {bound.source: bound.destination for bound in bounds}


def through(top: ModulusHashExchange, queue_of: dict[str, str], keys=KEYS) -> list[str]:
    return [queue_of[top.destinations[index].name] for index in top.route_many(keys)]


def change_under_load(
    site: Site, top: ModulusHashExchange, queues: tuple[str, ...]
) -> tuple[set[str], float]:
    """Apply while messages flow, and hold each of these against the mirror: the slots that it re-pointed, and the
    share of keys that it promised to move."""
    before = pointing(site)
    change = planned(site, queues)
    with Load(site, "orders", FEW) as load:
        apply(site.url(), change, management=site.management, on_step=load.flows)
    after = pointing(site)

    found = drained(site)
    load.check_none_was_lost_or_came_back(found)
    assert all(len(places) == 1 for places in found.values())
    moved = load.check_each_key_moved_at_most_once(found)
    old, new = through(top, before, FEW), through(top, after, FEW)
    assert moved == {FEW[place] for place in differing(old, new)}
    for number, (queue,) in found.items():
        assert queue in {old[number % len(FEW)], new[number % len(FEW)]}
    return {slot for slot in SLOTS if before[slot] != after[slot]}, change.slot_moves["orders"]


@pytest.mark.one_release
@pytest.mark.long
def test_slots_grow_and_shrink_under_load_and_move_their_own_keys_only(site, top) -> None:
    before = landing(site, "orders")
    assert before == through(top, pointing(site))
    for queues, least in ((SIX, GROWN), (FIVE, SHRUNK)):
        slots, share = change_under_load(site, top, queues)
        assert len(slots) == least
        assert share == pytest.approx(least / len(SLOTS), abs=1e-6)  # 2^27 hashes, whose number 64 divides

        after = landing(site, "orders")
        assert after == through(top, pointing(site))
        moved = differing(before, after)
        assert moved == {place for place, key in enumerate(KEYS) if top.route(key).name in slots}
        assert_share(len(moved), len(KEYS), share)
        assert set(after) == set(queues)
        assert not planned(site, queues).steps
        before = after


@pytest.mark.long
def test_restarts_move_nothing(site, top) -> None:
    broker = site.broker
    if broker.source.kind == "external":
        pytest.skip("the broker of RABBIT_CHX_BROKER_URL is not ours to restart")
    before = through(top, pointing(site), FEW)
    broker.kill()
    for restart in [broker.restart, *[broker.restart_app] * (8 if LONG else 1)]:
        restart()
        drained(site)  # what the killed broker had not yet noted as taken from it is back
        assert landing(site, "orders", FEW) == before
