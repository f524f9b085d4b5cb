"""Use the sharding plugin: a policy creates the queues, the mirror predicts where keys go, consumers name the exchange."""

import os
import re
import time
from collections import Counter

import pika

from rabbit_chx import ModulusHashExchange
from rabbit_chx.broker import Management
from rabbit_chx.publishing import Publisher
from rabbit_chx.topology import Policy

PER_NODE = 4
url, name = os.environ["AMQP_URL"], os.environ.get("EXCHANGE", "example.shards")
management = Management(os.environ["RABBITMQ_MANAGEMENT_URL"])
nodes = [node for node, running in management.nodes().items() if running]
shards = [f"sharding: {name} - {node} - {number}" for node in nodes for number in range(PER_NODE)]
definition = {"shards-per-node": PER_NODE, "routing-key": "1234"}
policy = Policy(f"shards of {name}", f"^{re.escape(name)}$", "exchanges", definition)

with pika.BlockingConnection(pika.URLParameters(url)) as connection:
    channel = connection.channel()
    channel.exchange_declare(name, "x-modulus-hash", durable=True)
    management.put_policy("/", policy)
    deadline = time.monotonic() + 30
    while {bound.destination for bound in management.bindings_from("/", name)} != set(shards):
        if time.monotonic() > deadline:
            raise SystemExit("the policy made no shards: is the plugin rabbitmq_sharding enabled?")
        time.sleep(0.1)

    keys = [f"customer-{number}" for number in range(5_000)]
    with Publisher(url, exchange=name) as publisher:
        publisher.publish_many([b"hello"] * len(keys), keys)
    print(f"{publisher.totals.confirmed:,} confirmed")

    release = management.overview().release
    exchange = ModulusHashExchange(
        [(shard, "1234") for shard in shards], release=release, store=management.store(release)
    )
    predicted = Counter(exchange.destinations[index] for index in exchange.route_many(keys).tolist())
    arrived = {shard: channel.queue_declare(shard, passive=True).method.message_count for shard in shards}
    for shard, messages in arrived.items():
        print(f"{shard:<60} predicted {predicted[shard]:>6,} arrived {messages:>6,}")

    # Four consumers of one name: each gets the shard on its node with the fewest consumers.
    consumed: Counter[str] = Counter()
    for _ in range(PER_NODE):
        channel.basic_consume(
            name, lambda _, method, *__: consumed.update([method.consumer_tag]), auto_ack=True
        )
    local = [
        messages for shard, messages in arrived.items() if shard.startswith(f"sharding: {name} - {nodes[0]}")
    ]
    deadline = time.monotonic() + 30
    while consumed.total() < sum(local) and time.monotonic() < deadline:
        connection.process_data_events(time_limit=0.1)
    print(f"{consumed.total():,} consumed by {len(consumed)} consumers of {name!r}")

    management.delete_policy("/", policy.name)
    for shard in shards:
        channel.queue_delete(shard)
    channel.exchange_delete(name)
if arrived != predicted or sorted(consumed.values()) != sorted(local):
    raise SystemExit("the broker and its mirror disagree")
