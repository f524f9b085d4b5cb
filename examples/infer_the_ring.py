"""The order of the buckets, worked out from what consumers saw. No broker needed: the consumers are played."""

import random

from rabbit_chx import ConsistentHashExchange, infer

# What nobody can read from outside: the order of the bind commands.
hidden = ConsistentHashExchange({"eu": 2, "us": 3, "asia": 1})

# What consumers can write down: the key of each message, and the queue it came from.
random.seed(1)
pairs = [(key, hidden.route(key)) for key in (f"order-{random.random()}" for _ in range(200))]

# What the management UI lists, in an order that says nothing.
found = infer(pairs, {"asia": 1, "eu": 2, "us": 3})
print(found)
assert found.ring is not None
print(found.ring.bucket_map)
