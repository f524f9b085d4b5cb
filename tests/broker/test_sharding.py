"""The sharding plugin: the shards that its policy makes, where messages land, and what a smaller policy leaves behind."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from rabbit_chx.broker.management import Management
from rabbit_chx.topology.model import Exchange, Topology
from rabbit_chx.topology.sharding import Sharding, sharding_of
from tests.inbox import emptied

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

KEYS = [f"customer-{number}" for number in range(1_000)]


@pytest.fixture
def management(broker):
    return Management(broker.management_url, credentials=lambda: (broker.username, broker.password))


@pytest.fixture
def channel(broker):
    with broker.connection() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


@pytest.fixture(params=["x-modulus-hash", "x-consistent-hash"])
def sharded(request, broker, management, channel):
    """An exchange in four shards on the only node."""
    node = broker.eval("node().").strip("'")
    sharding = Sharding(f"test.{request.param}", 4, "2", (node,))
    exchange = Exchange(sharding.exchange, request.param)
    channel.exchange_declare(exchange.name, exchange.type, durable=True)
    management.put_policy("/", sharding.policy("test.shards"))
    yield exchange, sharding
    management.delete_policy("/", "test.shards")
    channel.exchange_delete(exchange.name)
    for shard in sharding.shards:
        channel.queue_delete(shard)


def wait_for(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def land(channel, sharding) -> list[str]:
    """Publish every key, and tell which shard each landed on."""
    for number, key in enumerate(KEYS):
        channel.basic_publish(sharding.exchange, key, str(number).encode())
    landed = {int(one.body): shard for shard in sharding.shards for one in emptied(channel, shard)}
    return [landed[number] for number in range(len(KEYS))]


def observed(management, exchange) -> Topology:
    return Topology(
        exchanges=(exchange,),
        bindings=tuple(management.bindings_from("/", exchange.name)),
        policies=tuple(management.policies("/")),
    )


def test_shards_and_routes_are_those_of_the_policy(lab, management, channel, sharded):
    exchange, sharding = sharded
    wait_for(lambda: len(observed(management, exchange).bindings) == 4)
    topology = observed(management, exchange)
    assert sharding_of(topology, exchange.name, sharding.nodes) == sharding
    assert {(bound.destination, bound.key) for bound in topology.bindings} == {
        (shard, "2") for shard in sharding.shards
    }
    mirror = sharding.mirror(exchange.type, release=lab.release)
    assert land(channel, sharding) == [mirror.route(key) for key in KEYS]


def test_a_smaller_policy_leaves_shards_behind_that_fill_up_and_that_no_consumer_is_led_to(
    lab, management, channel, sharded
):
    exchange, before = sharded
    wait_for(lambda: len(observed(management, exchange).bindings) == 4)
    after = Sharding(before.exchange, 2, "2", before.nodes)
    assert before.left_behind(observed(management, exchange)) == ()
    management.put_policy("/", after.policy("test.shards"))
    left = after.left_behind(observed(management, exchange))
    assert sorted(left) == list(before.shards[2:])
    mirror = before.mirror(exchange.type, release=lab.release)
    predicted = Counter(mirror.route(key) for key in KEYS)
    for key in KEYS:
        channel.basic_publish(exchange.name, key, b"")
    consumed: Counter[str] = Counter()
    for _ in range(4):
        channel.basic_consume(
            exchange.name, lambda _, method, *__: consumed.update([method.consumer_tag]), auto_ack=True
        )
    reachable = sum(predicted[shard] for shard in after.shards)
    deadline = time.monotonic() + 30
    while consumed.total() < reachable and time.monotonic() < deadline:
        channel.connection.process_data_events(time_limit=0.1)
    assert consumed.total() == reachable
    waiting = {shard: channel.queue_declare(shard, passive=True).method.message_count for shard in left}
    assert waiting == {shard: predicted[shard] for shard in left}
    assert all(waiting.values())
