"""The sharding plugin: the queues that its policy creates, and where messages land."""

from __future__ import annotations

from collections import Counter

import pytest

from rabbit_chx import ConsistentHashExchange, ModulusHashExchange
from rabbit_chx.topology import Policy
from tests.inbox import emptied
from tests.patience import wait_until
from tests.queues import a_channel, delete_exchange, message_count

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

KEYS = [f"customer-{number}" for number in range(1_000)]


@pytest.fixture
def channel(broker):
    with a_channel(broker, confirms=True) as channel:
        yield channel


def policy(exchange: str, per_node: int) -> Policy:
    definition = {"shards-per-node": per_node, "routing-key": "2"}
    return Policy("test.shards", f"^{exchange}$", "exchanges", definition)


@pytest.fixture(
    params=[("x-modulus-hash", ModulusHashExchange), ("x-consistent-hash", ConsistentHashExchange)]
)
def sharded(request, broker, management, channel, lab):
    """An exchange with four shards on the only node: its name, the shards and the mirror."""
    kind, mirror = request.param
    name, node = f"test.{kind}", broker.eval("node().").strip("'")
    shards = [f"sharding: {name} - {node} - {number}" for number in range(4)]
    channel.exchange_declare(name, kind, durable=True)
    management.put_policy("/", policy(name, 4))
    wait_until(
        lambda: bound_to(management, name) == {(shard, "2") for shard in shards}, "the shards are bound"
    )
    yield name, shards, mirror([(shard, "2") for shard in shards], release=lab.release)
    management.delete_policy("/", "test.shards")
    delete_exchange(channel, name, shards)


def bound_to(management, exchange) -> set[tuple[str, str]]:
    return {(binding.destination, binding.key) for binding in management.bindings_from("/", exchange)}


def test_messages_land_on_the_shards_that_the_mirror_predicts(channel, sharded):
    exchange, shards, mirror = sharded
    for number, key in enumerate(KEYS):
        channel.basic_publish(exchange, key, str(number).encode())
    landed = {int(one.body): shard for shard in shards for one in emptied(channel, shard)}
    assert [landed[number] for number in range(len(KEYS))] == [mirror.route(key) for key in KEYS]


def test_a_smaller_policy_leaves_shards_bound_that_no_consumer_is_attached_to(management, channel, sharded):
    """rabbit_sharding_shard:maybe_update_shards/2 adds queues and deletes none."""
    exchange, shards, mirror = sharded
    management.put_policy("/", policy(exchange, 2))
    predicted = Counter(mirror.route(key) for key in KEYS)
    for key in KEYS:
        channel.basic_publish(exchange, key, b"")
    consumed: Counter[str] = Counter()
    for _ in range(4):
        channel.basic_consume(
            exchange, lambda _, method, *__: consumed.update([method.consumer_tag]), auto_ack=True
        )
    reachable = sum(predicted[shard] for shard in shards[:2])
    wait_until(
        lambda: channel.connection.process_data_events(0.1) or consumed.total() >= reachable,
        lambda: f"{reachable} messages, and not {consumed}",
        pause=0,
    )
    assert consumed.total() == reachable
    left = {shard: message_count(channel, shard) for shard in shards[2:]}
    assert left == {shard: predicted[shard] for shard in shards[2:]}
    assert all(left.values())
