"""Going straight to the queues: every message lands where the exchange would have put it, or its row is named."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from decimal import Decimal

import pika
import pytest

from rabbit_chx import Publisher, Ring
from rabbit_chx.broker.claims import LEASE_PREFIX
from rabbit_chx.broker.management import Management
from rabbit_chx.errors import InvalidValue, Unpredictable
from rabbit_chx.publishing.direct_watch import POLL_SECONDS
from rabbit_chx.publishing.direct_wire import KEY_HEADER
from tests.broker.direct_topology import Topology, topology_on

pytestmark = [
    pytest.mark.broker,
    pytest.mark.one_release,
    pytest.mark.proves(
        "Publisher", "straight to the queues, or refused", "a queue bound behind its back is noticed"
    ),
]

KEYS = [f"customer-{number}".encode() for number in range(1_500)]
UNEVEN = [b"", "é🐇".encode(), b"x" * 255, b"\xff\x00", *KEYS]


@pytest.fixture
def topology(broker):
    with topology_on(broker) as topology:
        yield topology


@pytest.fixture
def slots(topology):
    """64 slots over four queues."""
    return topology.slots(64, [topology.queue(f"q{number}") for number in range(4)])


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def repoint(topology: Topology, slot: str, old: str, new: str) -> None:
    topology.channel.queue_bind(new, slot, "1")
    topology.channel.queue_unbind(old, slot, "1")


def through_exchange(topology: Topology, keys: list[bytes]) -> dict[bytes, str]:
    """Where the broker itself puts each key; the topology is as it was before."""
    with topology.publisher() as publisher:
        publisher.publish_many(keys, keys)
    return topology.landed()


# -- where messages land ---------------------------------------------------------------------------


def test_every_key_lands_where_the_exchange_puts_it(topology, slots) -> None:
    keys = list(dict.fromkeys(UNEVEN))
    expected = through_exchange(topology, keys)
    assert set(expected.values()) == set(topology.queues)
    with topology.straight(properties={"content_type": "text/plain"}) as publisher:
        publisher.publish_many(keys, keys, headers={"a": "b"})
        for key in keys[:20]:
            publisher.publish(b"single" + key, key)
    assert publisher.direct.reason == ""
    assert not publisher.direct.suspect
    assert publisher.totals.confirmed == len(keys) + 20
    found = topology.drain()
    assert {body: [place[0] for place in places] for body, places in found.items()} == {
        **{key: [expected[key]] for key in keys},
        **{b"single" + key: [expected[key]] for key in keys[:20]},
    }
    for key in keys:
        (queue, exchange, routing_key, original) = found[key][0]
        assert (exchange, routing_key, original) == ("", queue, key)


def test_queues_right_under_the_modulus_need_no_slots(topology) -> None:
    topology.exchange(topology.top, "x-modulus-hash")
    for number, key in enumerate(("b", "a", "a", "c", "")):
        topology.channel.queue_bind(topology.queue(f"q{number}"), topology.top, key)
    topology.channel.queue_bind(topology.queues[0], topology.top, "twice")
    expected = through_exchange(topology, KEYS)
    with topology.straight() as publisher:
        publisher.publish_many(KEYS, KEYS)
    assert topology.landed() == expected


def test_a_ring_that_is_read_from_the_node(broker, topology) -> None:
    topology.exchange(topology.top, "x-consistent-hash")
    for number, weight in enumerate("31214"):
        topology.channel.queue_bind(topology.queue(f"q{number}"), topology.top, weight)
    expected = through_exchange(topology, KEYS)

    def ring() -> Ring:
        return Ring.read(broker.ring(topology.top), release=broker.version)

    with topology.straight(ring=ring) as publisher:
        publisher.publish_many(KEYS, KEYS)
        publisher.flush()
        assert topology.landed() == expected
        # The bindings are the same afterwards, and the ring is not.
        topology.channel.queue_unbind(topology.queues[0], topology.top, "3")
        topology.channel.queue_bind(topology.queues[0], topology.top, "3")
        publisher.publish_many(KEYS, KEYS)
        publisher.flush()
        assert not publisher.direct.active
        assert publisher.direct.suspect == range(len(KEYS), 2 * len(KEYS))


HEADERS = [
    *({"tenant": f"tenant-{number}"} for number in range(200)),
    *({"tenant": number} for number in (*range(-50, 50), 2**31, 2**40)),
    *({"tenant": pika.compat.long(number)} for number in range(30)),
    *({"before": ["x"], "tenant": one.encode()} for one in "abcdefgh"),
    *({"tenant": Decimal(f"{number}.5")} for number in range(8)),
    *({"tenant": datetime(2024, 5, day, tzinfo=UTC)} for day in range(1, 9)),
    *({"tenant": one} for one in (True, False, None, "", "é🐇", [1, "a"], ["a", 1], {"k": "v"}, {"k": [5]})),
    *({"other": "x"}, {}),
]


@pytest.mark.parametrize(
    ("argument", "columns"),
    [
        ("hash_header", {"headers": HEADERS}),
        (
            "hash_property",
            {"message_id": [None, "", "é", *(f"m{number}" for number in range(len(HEADERS) - 3))]},
        ),
    ],
)
def test_a_header_or_property_of_any_type_that_is_hashed(broker, topology, argument, columns) -> None:
    hashed = {"hash_header": "tenant", "hash_property": "message_id"}[argument]
    topology.exchange(topology.top, "x-consistent-hash", **{argument: hashed})
    for number, weight in enumerate("3121421"):
        topology.channel.queue_bind(topology.queue(f"q{number}"), topology.top, weight)
    bodies = numbered(len(HEADERS))
    with topology.publisher() as publisher:
        publisher.publish_many(bodies, "key", **columns)
    expected = topology.landed()
    assert len(set(expected.values())) == 7
    # The ring as of the default release: what is hashed is that of the broker's.
    with topology.straight(ring=lambda: Ring.read(broker.ring(topology.top))) as publisher:
        publisher.publish_many(bodies, "key", **columns)
        for row, body in enumerate(bodies):
            (one,) = ({name: column[row]} for name, column in columns.items())
            publisher.publish(b"single " + body, "key", **one)
    assert not publisher.direct.suspect
    found = topology.drain()
    assert {body: [(place[0], place[1]) for place in places] for body, places in found.items()} == {
        **{body: [(queue, "")] for body, queue in expected.items()},
        **{b"single " + body: [(queue, "")] for body, queue in expected.items()},
    }


def test_messages_for_another_exchange_go_there(topology, slots) -> None:
    other = topology.exchange(f"{topology.top}.other", "fanout")
    topology.channel.queue_bind(topology.queues[0], other)
    with topology.straight() as publisher:
        publisher.publish(b"there", "key", exchange=other)
    assert topology.drain() == {b"there": [(topology.queues[0], other, "key", None)]}


# -- what changes while it runs --------------------------------------------------------------------


def test_a_slot_that_is_pointed_elsewhere_is_noticed_and_its_rows_are_named(topology, slots) -> None:
    keys = KEYS[:200]
    before = through_exchange(topology, keys)
    new = topology.queue("new")
    with topology.straight() as publisher:
        publisher.publish_many(numbered(200), keys)
        publisher.flush()
        old = topology.queues[0]
        repoint(topology, slots[0], old, new)
        changed, rows = time.monotonic(), 200
        while publisher.direct.active and time.monotonic() < changed + 30:
            publisher.publish_many(numbered(200, rows), keys)
            rows += 200
            time.sleep(0.05)
        assert time.monotonic() - changed < POLL_SECONDS + 3
        publisher.publish_many(numbered(200, rows), keys)
        totals = publisher.flush()
    assert totals.confirmed == rows + 200
    assert "has changed" in publisher.direct.reason
    landed = topology.landed()
    assert landed.keys() == set(numbered(rows + 200))  # nothing is lost, nothing is there twice
    after = through_exchange(topology, keys)
    moved = {key for key in keys if before[key] != after[key]}
    assert moved
    assert {after[key] for key in moved} == {new}
    suspect = publisher.direct.suspect
    wrong = [row for row in range(200, rows + 200) if landed[b"%d" % row] != after[keys[row % 200]]]
    assert wrong
    assert set(wrong) <= set(suspect)
    assert suspect.start >= 200
    assert suspect.stop <= rows
    assert all(landed[b"%d" % row] == before[keys[row]] for row in range(200))


def test_a_change_in_the_last_seconds_is_noticed_by_the_end(topology, slots) -> None:
    new = topology.queue("new")
    with topology.straight() as publisher:
        publisher.publish_many(numbered(100), KEYS[:100])
        publisher.flush()
        repoint(topology, slots[0], topology.queues[0], new)
        publisher.publish_many(numbered(100, 100), KEYS[:100])
    assert publisher.direct.suspect == range(100, 200)
    assert publisher.totals.confirmed == 200


def test_what_a_deleted_queue_gives_back_goes_through_the_exchange_at_once(topology, slots) -> None:
    old, new = topology.queue("old"), topology.queue("new")
    for slot, queue in ((slots[0], topology.queues[0]), (slots[1], topology.queues[1])):
        repoint(topology, slot, queue, old)
    with topology.straight() as publisher:
        for slot in slots[:2]:
            topology.channel.queue_bind(new, slot, "1")
        topology.channel.queue_delete(old)
        topology.queues.remove(old)
        began = time.monotonic()
        publisher.publish_many(KEYS, KEYS)
        totals = publisher.flush()
        assert time.monotonic() - began < POLL_SECONDS
    assert totals.confirmed == len(KEYS)
    assert totals.resent > 0
    assert not publisher.direct.active
    landed = topology.landed()
    assert landed == through_exchange(topology, KEYS)
    assert new in landed.values()


@pytest.mark.parametrize("by", ["argument", "policy"])
def test_what_a_deleted_queue_gives_back_reaches_the_alternate_exchange_of_its_slot(topology, by) -> None:
    unrouted = topology.queue("unrouted")
    fallback = topology.exchange(f"{topology.top}.fallback", "fanout")
    topology.channel.queue_bind(unrouted, fallback)
    gone, stays = topology.queue("gone"), topology.queue("stays")
    if by == "argument":
        topology.slots(8, [gone, stays], alternate_exchange=fallback)
    else:
        topology.slots(8, [gone, stays])
        topology.policy(rf"^{topology.top}\.slot", f'{{"alternate-exchange": "{fallback}"}}', "exchanges")
    before = through_exchange(topology, KEYS)
    assert set(before.values()) == {gone, stays}  # a slot with a queue has no use for its alternate
    with topology.straight() as publisher:
        publisher.publish_many(KEYS, KEYS)
        publisher.flush()
        assert publisher.direct.active
        assert topology.landed() == before
        topology.channel.queue_delete(gone)
        topology.queues.remove(gone)
        publisher.publish_many(KEYS, KEYS)
        totals = publisher.flush()
    assert totals.confirmed == 2 * len(KEYS)
    assert totals.resent > 0
    assert not publisher.direct.active
    landed = topology.landed()
    assert landed == {key: unrouted if queue == gone else stays for key, queue in before.items()}
    assert landed == through_exchange(topology, KEYS)


def test_without_its_lease_a_publisher_goes_through_the_exchange(broker, topology, slots) -> None:
    with topology.straight(name=topology.top) as publisher:
        connections = broker.ctl("list_connections", "pid", "client_properties").splitlines()
        (lease,) = [line for line in connections if f"{topology.top} (lease)" in line]
        broker.ctl("close_connection", lease.split()[0], "by the test")
        eventually(lambda: not publisher.direct.active)
        assert "lease" in publisher.direct.reason
        publisher.publish(b"body", "key")
    assert [place[1:] for place in topology.drain()[b"body"]] == [(topology.top, "key", None)]


def test_over_a_restart_of_the_broker_nothing_is_lost_and_nothing_lands_elsewhere(
    broker, topology, slots
) -> None:
    expected = through_exchange(topology, KEYS)
    with topology.straight() as publisher:
        publisher.publish_many(KEYS, KEYS)
        restart = threading.Thread(target=broker.restart)
        restart.start()
        rounds = 1
        while restart.is_alive() or rounds < 3:
            publisher.publish_many([b"%d %s" % (rounds, key) for key in KEYS], KEYS)
            rounds += 1
            restart.join(0.5)
        totals = publisher.flush()
    assert totals.confirmed == totals.published == rounds * len(KEYS)
    assert totals.connections == 2
    assert not publisher.direct.active
    with broker.connection() as again:
        topology.channel = again.channel()
        found = topology.drain()
    for round_ in range(rounds):
        for key in KEYS:
            places = found.pop(b"%d %s" % (round_, key) if round_ else key)
            assert {place[0] for place in places} == {expected[key]}
    assert not found


# -- refusals --------------------------------------------------------------------------------------

REFUSALS = {
    "alternate exchange": lambda t: _over_a_queue(t, "x-modulus-hash", alternate_exchange="amq.fanout"),
    "no binding": lambda t: t.exchange(t.top, "x-modulus-hash"),
    "of type topic": lambda t: _over_a_queue(t, "topic"),
    "has to read it": lambda t: _over_a_queue(t, "x-consistent-hash"),
    "hashes 'timestamp'": lambda t: _over_a_queue(t, "x-consistent-hash", hash_property="timestamp"),
    "of type fanout": lambda t: t.channel.exchange_bind(
        t.exchange(f"{t.top}.f", "fanout"), t.exchange(t.top, "x-modulus-hash"), "1"
    ),
    "2 bindings": lambda t: t.channel.queue_bind(t.queue("second"), t.slots(2, [t.queue("q")])[0], "1"),
    "the policy": lambda t: (
        t.slots(2, [t.queue("q")]),
        t.policy(f"^{t.top}$", '{"alternate-exchange": "amq.fanout"}', "exchanges"),
    ),
    "has .* a dead-letter exchange": lambda t: t.slots(2, [t.queue("q", dead_letter_exchange="amq.fanout")]),
    "a policy may give it": lambda t: (
        t.slots(2, [t.queue("q")]),
        t.policy(f"^{t.top}.q", '{"dead-letter-exchange": "amq.fanout"}', "queues"),
    ),
    "leads to exchange": lambda t: t.channel.exchange_bind("amq.fanout", _empty_slot(t), "1"),
}


def _over_a_queue(topology: Topology, kind: str, **arguments) -> None:
    topology.exchange(topology.top, kind, **arguments)
    topology.channel.queue_bind(topology.queue("q"), topology.top, "1")


def _empty_slot(topology: Topology) -> str:
    topology.exchange(topology.top, "x-modulus-hash")
    slot = topology.exchange(f"{topology.top}.slot", "x-consistent-hash")
    topology.channel.exchange_bind(slot, topology.top, "1")
    return slot


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_is_not_wholly_known_is_refused_before_anything_leaves(topology, reason) -> None:
    REFUSALS[reason](topology)
    with pytest.raises(Unpredictable, match=reason), topology.straight():
        pytest.fail("it was opened")
    eventually(lambda: not topology.leases())


def test_dead_letters_under_a_key_of_their_own_are_fine(topology) -> None:
    queue = topology.queue("q", dead_letter_exchange="amq.fanout", dead_letter_routing_key="dead")
    topology.slots(2, [queue])
    with topology.straight() as publisher:
        publisher.publish(b"body", "key")
    assert not publisher.direct.suspect
    assert topology.drain()[b"body"][0][0] == queue


@pytest.mark.parametrize("headers", [{"CC": ["a"]}, {"BCC": ["a"]}, {KEY_HEADER: "mine"}])
def test_headers_that_route_are_refused_with_their_row(topology, slots, headers) -> None:
    with topology.straight() as publisher:
        publisher.publish(b"first", "key")
        with pytest.raises(InvalidValue, match="row 2"):
            publisher.publish_many([b"a", b"b"], "key", headers=[{"x": "y"}, headers])
    assert publisher.totals.published == 1


def test_the_options_go_together(broker) -> None:
    with pytest.raises(InvalidValue, match="management_url"):
        Publisher(broker.url, "x", via="queues")
    with pytest.raises(InvalidValue, match="via"):
        Publisher(broker.url, "x", management_url=broker.management_url)
    with pytest.raises(InvalidValue, match="via"):
        Publisher(broker.url, "x", via="the queues")
    with pytest.raises(InvalidValue, match="exchange"):
        Publisher(broker.url, via="queues", management_url=broker.management_url)


# -- the lease -------------------------------------------------------------------------------------


def test_leases_are_there_for_all_to_see_and_gone_with_their_publishers(broker, topology, slots) -> None:
    with topology.straight() as one, topology.straight() as other:
        assert sorted(topology.leases()) == sorted([one.direct.lease, other.direct.lease])
        user = f"{broker.username}:{broker.password}@"
        management = Management(broker.management_url.replace("://", f"://{user}"))
        names = management.queue_names("/", f"^{LEASE_PREFIX}{topology.top}".replace(".", "\\."))
        assert sorted(names) == sorted(topology.leases())
    eventually(lambda: not topology.leases())


def eventually(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
