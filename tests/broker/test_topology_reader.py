"""A virtual host is read back as it was made, and its rings as the node has them, whatever the way."""

from __future__ import annotations

import pytest

from rabbit_chx import ToExchange
from rabbit_chx.broker import management as management_module
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.management_rows import User
from rabbit_chx.broker.reading.order_record import anchor, as_recorded, entry, order_exchange
from rabbit_chx.broker.reading.probe import probe
from rabbit_chx.broker.reading.reader import read, read_existence
from rabbit_chx.broker.reading.ring_order import learn
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue, Topology
from tests.broker.topology_site import Site, declare
from tests.patience import wait_until
from tests.queues import message_count
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

ODD = "a/b c%2F#ü"


@pytest.fixture
def site(broker):
    """A virtual host with a name that has to be escaped."""
    with Site(broker, "v/ü %2F") as site:
        yield site


@pytest.fixture
def vhost(site) -> str:
    return site.vhost


def ring(weights, **arguments) -> Topology:
    """An exchange with a ring, bound in this order."""
    exchange = Exchange(ODD, "x-consistent-hash", arguments=arguments)
    bindings = tuple(Binding(ODD, queue, str(weight)) for queue, weight in weights.items())
    return Topology(exchanges=(exchange,), queues=tuple(map(Queue, weights)), bindings=bindings)


PAIR = ring({"q": 1, "r": 1})
SHUFFLED = {"q7": 2, ODD: 1, "q10": 3, "q2": 1, "q1": 10, "z": 1, "a": 1}


def test_a_topology_is_read_back_as_it_was_made(broker, management, vhost, channel, monkeypatch) -> None:
    exchanges = (
        Exchange(
            ODD, "x-consistent-hash", arguments={"hash-header": "h ü", "alternate-exchange": "un routed"}
        ),
        Exchange("feed/1", "topic", auto_delete=True),
        Exchange("un routed", "fanout", internal=True, policy="p/1 ü"),
    )
    queues = (
        Queue(ODD, arguments={"x-max-length": 5, "x-dead-letter-exchange": ""}),
        Queue("kept", "quorum", arguments={"x-single-active-consumer": True}),
        Queue("log", "stream"),
    )
    bindings = (
        Binding(ODD, "kept", "2"),
        Binding(ODD, ODD, "1", {"note": 7}),
        Binding("amq.topic", ToExchange("feed/1"), "a.*"),
        Binding("feed/1", "log", "#", {"x": "y"}),
        Binding("feed/1", ToExchange(ODD), "k/%"),
    )
    policy = Policy("p/1 ü", "^un", "exchanges", {"alternate-exchange": "amq.fanout"}, priority=3)
    declare(channel, Topology(vhost, (*exchanges, order_exchange("c")), queues, bindings))
    channel.queue_declare("mine", exclusive=True)
    channel.queue_bind("mine", "feed/1", "m")
    management.put_policy(vhost, policy)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "kept", b"")
    monkeypatch.setattr(management_module, "_PAGE_SIZE", 2)

    observed = read(management, vhost, node=broker)

    amq_topic = Exchange("amq.topic", "topic")
    by_name = sorted((*exchanges, amq_topic), key=lambda exchange: exchange.name)
    assert observed.topology == Topology(vhost, tuple(by_name), queues, bindings, (policy,))
    assert observed.topology.exchange("un routed").policy == "p/1 ü"
    assert (str(observed.release), observed.release.store.value) == (broker.version, broker.store)
    assert observed.rings[ODD].bucket_map == ("kept", "kept", ODD)
    assert {"x-consistent-hash", "topic", "x-modulus-hash"} <= observed.exchange_types
    assert observed.worker_pool_size >= 1
    wait_until(lambda: read(management, vhost).backlog == {ODD: 0, "kept": 3}, "the messages count")
    management.delete_policy(vhost, policy.name)
    assert read(management, vhost).topology.policies == ()


def test_an_exclusive_queue_counts_where_it_has_buckets(broker, management, vhost, channel) -> None:
    declare(channel, ring({"q": 1}))
    channel.queue_declare("mine", exclusive=True)
    channel.queue_bind("mine", ODD, "2")
    observed = read(management, vhost, node=broker)
    assert observed.topology.queue("mine").exclusive
    assert observed.rings[ODD].bucket_map == ("q", "mine", "mine")


@pytest.mark.parametrize("hashed", [{}, {"hash-header": "h"}, {"hash-property": "timestamp"}], ids=str)
def test_probes_work_out_a_ring_and_leave_nothing_behind(broker, management, vhost, channel, hashed) -> None:
    declare(channel, ring(SHUFFLED, **hashed))
    slot = Exchange("slot", "x-consistent-hash")
    bindings = Binding(ODD, ToExchange("slot"), "2"), Binding("slot", "behind", "1")
    declare(channel, Topology(exchanges=(slot,), queues=(Queue("behind"),), bindings=bindings))
    observed = read(management, vhost)
    assert observed.ring_sources[ODD] == "unknown"
    learnt = learn(observed, probe(channel.connection, observed, ODD))
    assert learnt.ring_sources[ODD] == "inference"
    assert list(learnt.rings[ODD].bucket_map) == broker.ring(ODD, vhost)
    left = {queue: message_count(channel, queue) for queue in SHUFFLED}
    assert not any(left.values())


def test_probes_stay_away_from_a_queue_in_use(management, vhost, channel) -> None:
    declare(channel, PAIR)
    observed = read(management, vhost)
    channel.basic_consume("r", lambda *_: None)
    with pytest.raises(InvalidValue, match=r"queue 'r' .*got '0 messages and 1 consumer'"):
        probe(channel.connection, observed, ODD)


def test_a_user_with_few_rights_sees_the_topology_and_is_told_the_rest(
    broker, management, vhost, channel
) -> None:
    declare(channel, PAIR)
    with a_user(broker, "^c", "^w", ".*", vhost=vhost, tags="management") as user:
        restricted = user.management
        recorded = [entry(ODD, as_recorded(bound), number) for number, bound in enumerate(PAIR.bindings)]
        record = order_exchange(restricted.overview().cluster)
        declare(channel, Topology(exchanges=(record,), bindings=(anchor(ODD), *recorded)))
        observed = read(restricted, vhost)
        assert observed.topology.queue("q")
        # On 3.10 it matters whether it is a lone node, which only a user with the tag monitoring sees.
        source = "unknown" if broker.version.startswith("3.10") else "record"
        assert observed.ring_sources[ODD] == source
        assert not observed.unseen
        assert restricted.whoami() == User(user.name, frozenset({"management"}))
        with pytest.raises(BrokerUnavailable, match=r"needs the tag monitoring"):
            restricted.nodes()
        with pytest.raises(BrokerUnavailable, match=r"may not change policies .* needs the tag policymaker"):
            restricted.put_policy(vhost, Policy("p", "x", definition={"max-length": 1}))
    # The first statistics of a node are five seconds old.
    wait_until(lambda: all(node.uptime for node in management.nodes().values()), "the node is measured")
    assert all(node.running and not node.alarms for node in management.nodes().values())
    assert "administrator" in management.whoami().tags


def test_over_amqp_alone_existence_is_seen_and_the_rest_is_named(vhost, channel) -> None:
    declare(channel, PAIR)
    channel.basic_publish("", "q", b"")
    wait_until(lambda: message_count(channel, "q") == 1, "it counts")
    wanted = Topology(
        vhost,
        (Exchange(ODD, "x-consistent-hash"), Exchange("none", "topic")),
        (Queue("q"), Queue("missing", "quorum")),
        (Binding(ODD, "q", "1"),),
    )
    observed = read_existence(channel.connection, wanted)
    assert observed.topology == Topology(vhost, wanted.exchanges[:1], wanted.queues[:1])
    assert observed.backlog == {"q": 1}
    assert not observed.rings[ODD].known
    assert "management API" in observed.rings[ODD].why_unknown
    assert any("bindings" in unseen for unseen in observed.unseen)


def test_a_wrong_password_is_named(broker) -> None:
    wrong = Management(broker.management_url, credentials=lambda: (broker.username, "wrong"))
    with pytest.raises(BrokerUnavailable, match="or the password"):
        wrong.overview()
