"""Predict where keys go, and how many another queue would move. No broker needed."""

from collections import Counter

from rabbit_chx import ConsistentHashExchange, moved

exchange = ConsistentHashExchange({"orders.0": 1, "orders.1": 1, "orders.2": 2}, release="4.3")
print(exchange.route("customer-42", explain=True))

keys = [f"customer-{number}" for number in range(100_000)]
print(Counter(exchange.destinations[index] for index in exchange.route_many(keys).tolist()))

wider = exchange.ring.bind("orders.3")
print(f"a fourth queue moves {moved(exchange.ring, wider).share:.1%} of all keys")
