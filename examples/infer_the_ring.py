"""Infer the order of the buckets from what consumers received. The consumers are simulated, so no broker is needed."""

import random

from rabbit_chx import ConsistentHashExchange, infer

# The order of the bind commands, which the broker does not reveal.
hidden = ConsistentHashExchange({"eu": 2, "us": 3, "asia": 1})

# What consumers can record: the key of each message, and the queue it came from.
random.seed(1)
pairs = [(key, hidden.route(key)) for key in (f"order-{random.random()}" for _ in range(200))]

# What the management UI lists, in an unrelated order.
found = infer(pairs, {"asia": 1, "eu": 2, "us": 3})
print(found)
assert found.ring is not None
print(found.ring.bucket_map)
