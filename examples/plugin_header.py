"""Use an exchange that hashes a header: predict the queues of 100,000 messages, then count them on the broker."""

import os
from collections import Counter

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.broker import connect, server_version
from rabbit_chx.publishing import Publisher

url = os.environ["AMQP_URL"]
name = os.environ.get("EXCHANGE", "example.by-header")
count = int(os.environ.get("COUNT", "100000"))
weights = {f"{name}.q1": 1, f"{name}.q2": 1, f"{name}.q3": 2, f"{name}.q4": 2}

with connect(url) as connection:
    release = server_version(connection)
    channel = connection.channel()
    channel.exchange_declare(name, "x-consistent-hash", durable=True, arguments={"hash-header": "tenant"})
    for queue, weight in weights.items():  # the order of the binds decides where keys go
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, name, str(weight))

values = [f"customer-{number}" for number in range(count)]
bodies = [b"hello"] * count
with Publisher(url, exchange=name) as publisher:
    publisher.publish_many(bodies, headers=[{"tenant": value} for value in values])
print(f"{publisher.totals.confirmed:,} confirmed")

exchange = ConsistentHashExchange(weights, release=release, hash_header="tenant")
predicted = Counter(exchange.destinations[index] for index in exchange.route_many(values).tolist())
with connect(url) as connection:
    channel = connection.channel()
    arrived = {queue: channel.queue_delete(queue).method.message_count for queue in weights}
    channel.exchange_delete(name)

print(f"{'queue':<40} {'weight':>6} {'predicted':>10} {'arrived':>10}")
for queue, weight in weights.items():
    print(f"{queue:<40} {weight:>6} {predicted[queue]:>10,} {arrived[queue]:>10,}")
if arrived != predicted:
    raise SystemExit("the broker and its mirror disagree")
