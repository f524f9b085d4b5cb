"""What happens to a broker behind the file's back, with real messages, and that drift names it."""

from __future__ import annotations

from collections import Counter

import pytest

from rabbit_chx import moved
from rabbit_chx.broker.applying.apply import apply
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.topology.checks.drift import drift
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue, Topology
from rabbit_chx.topology.planning.plan import plan
from tests.broker.topology_site import declare
from tests.patience import wait_until
from tests.queues import a_channel

pytestmark = [
    pytest.mark.newest_first,
    pytest.mark.broker,
    pytest.mark.proves(
        "Topology", "drift that the broker does not report", "nothing is found right after the declaration"
    ),
]

QUEUES = ("drift.a", "drift.b", "drift.c")
WANTED = Topology(
    exchanges=(Exchange("drift", "x-consistent-hash", arguments={"hash-header": "tenant"}),),
    queues=tuple(map(Queue, QUEUES)),
    bindings=tuple(Binding("drift", queue, weight) for queue, weight in zip(QUEUES, "112", strict=True)),
)


@pytest.fixture
def channel(site):
    with a_channel(site, confirms=True) as channel:
        declare(channel, WANTED)
        yield channel


@pytest.fixture
def look(site):
    """Read the broker and compare it with the file."""

    def look(wanted=WANTED):
        observed = read(site.management, site.vhost, node=site.broker)
        return observed, drift(wanted, observed)

    return look


def kinds(found) -> list[str]:
    return [one.kind for one in found]


def arrived(channel) -> Counter[str]:
    """How many of 300 messages each queue gets; they are taken out again."""
    for number in range(300):
        channel.basic_publish("drift", f"customer-{number}", b"")
    return Counter({queue: channel.queue_purge(queue).method.message_count for queue in QUEUES})


def test_nothing_has_drifted_from_what_was_just_declared(look, channel):
    assert look()[1] == ()


def test_the_black_hole_of_a_weight_that_was_bound_before_the_old_one_was_unbound(look, channel):
    channel.queue_bind("drift.c", "drift", "5")
    assert kinds(look()[1]) == ["second-binding"]
    channel.queue_unbind("drift.c", "drift", "2")
    assert kinds(look()[1]) == ["dead-binding", "ring"]
    assert arrived(channel)["drift.c"] == 0
    channel.queue_unbind("drift.c", "drift", "5")
    channel.queue_bind("drift.c", "drift", "2")
    assert look()[1] == ()


def test_a_queue_that_was_bound_again_stands_elsewhere_in_the_ring(look, channel):
    channel.queue_unbind("drift.a", "drift", "1")
    channel.queue_bind("drift.a", "drift", "1")
    observed, (one,) = look()
    assert one.kind == "ring-order"
    assert one.misrouted == moved(WANTED.ring("drift", observed.release), observed.rings["drift"]).share > 0.5


def test_hash_arguments_that_a_second_declaration_did_not_change(look, channel):
    channel.exchange_declare(
        "drift", "x-consistent-hash", durable=True, arguments={"hash-header": "customer"}
    )
    assert look()[1] == ()
    channel.exchange_delete("drift")
    channel.exchange_declare("drift", "x-consistent-hash", durable=True, arguments={"hash-header": "other"})
    declare(channel, WANTED)
    (one,) = look()[1]
    assert (one.kind, one.where) == ("arguments", "exchange 'drift'")


def test_an_import_of_definitions_binds_in_an_order_of_its_own(look, site):
    names = [f"drift.import.{number:02}" for number in range(20)]
    exchange = Exchange("drift.import", "x-consistent-hash")
    wanted = Topology(
        exchanges=(exchange,),
        queues=tuple(map(Queue, names)),
        bindings=tuple(Binding(exchange.name, name, "1") for name in names),
    )
    common = {"vhost": site.vhost, "arguments": {}}
    lasting = common | {"durable": True, "auto_delete": False}
    to_queue = common | {"source": exchange.name, "destination_type": "queue", "routing_key": "1"}
    definitions = {
        "exchanges": [lasting | {"name": exchange.name, "type": exchange.type, "internal": False}],
        "queues": [lasting | {"name": name} for name in names],
        # A broker exports bindings in no order that means anything, and imports them side by side.
        "bindings": [to_queue | {"destination": name} for name in reversed(names)],
    }
    site.management._request("POST", ["definitions"], body=definitions)
    observed, found = look(wanted)
    assert kinds(found) == ["ring-order"]
    assert observed.rings[exchange.name].bucket_map != tuple(names)
    assert found[0].misrouted == moved(wanted.ring(exchange.name), observed.rings[exchange.name]).share


def test_after_an_apply_there_is_no_drift_next_to_shards_and_what_clients_declare(site, channel):
    definition = {"shards-per-node": 2, "routing-key": "k"}
    wanted = Topology(
        site.vhost,
        exchanges=(Exchange("drift.shards", "x-modulus-hash"), Exchange("drift.topic", "topic")),
        policies=(Policy("drift.shards", "^drift[.]shards$", "exchanges", definition),),
    )
    apply(site.url(), plan(wanted, read(site.management, site.vhost)), management=site.management)
    channel.queue_declare("drift.client", auto_delete=True)
    channel.queue_bind("drift.client", "drift.topic", "#")
    channel.exchange_declare("drift.behind", "fanout", auto_delete=True)
    channel.exchange_bind("drift.behind", "drift.topic", "#")

    def with_shards():
        observed = read(site.management, site.vhost)
        return observed if len(observed.topology.bindings_from("drift.shards")) >= 2 else None

    observed = wait_until(with_shards, "the plugin makes shards")
    assert len(observed.topology.bindings_from("drift.topic")) == 2
    assert drift(wanted, observed) == ()
    ours = ("drift.shards", "drift.topic", "drift.client", "drift.behind", "sharding: drift")
    named = [str(one) for one in drift(wanted, observed, strict=True)]
    assert not [one for one in named if any(name in one for name in ours)]
    assert not plan(wanted, observed)
