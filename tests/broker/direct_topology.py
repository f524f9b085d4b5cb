"""Exchanges with slots, queues and rings of their own, for the tests that go straight to the queues."""

from __future__ import annotations

import uuid
from contextlib import contextmanager, suppress

from pika.exceptions import AMQPError

from rabbit_chx import Publisher
from rabbit_chx.broker.claims import is_lease_of
from rabbit_chx.publishing.direct_wire import KEY_HEADER
from tests.inbox import emptied


class Topology:
    """An exchange under a name of its own, and what leads away from it; all of it is gone with the block."""

    def __init__(self, broker, channel) -> None:
        self.broker, self.channel = broker, channel
        self.top = f"direct.{uuid.uuid4().hex[:8]}"
        self.queues: list[str] = []
        self.exchanges: list[str] = []
        self.policies: list[str] = []

    def exchange(self, name: str, kind: str, **arguments) -> str:
        arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.channel.exchange_declare(name, kind, durable=True, arguments=arguments)
        self.exchanges.append(name)
        return name

    def queue(self, name: str, **arguments) -> str:
        full = f"{self.top}.{name}"
        arguments = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        self.channel.queue_declare(full, durable=True, arguments=arguments)
        self.queues.append(full)
        return full

    def slots(self, count: int, queues: list[str], **arguments) -> list[str]:
        """An x-modulus-hash over slots, each with one of the queues."""
        self.exchange(self.top, "x-modulus-hash")
        slots = [
            self.exchange(f"{self.top}.slot{number}", "x-consistent-hash", **arguments)
            for number in range(count)
        ]
        for number, slot in enumerate(slots):
            self.channel.exchange_bind(slot, self.top, "1")
            self.channel.queue_bind(queues[number % len(queues)], slot, "1")
        return slots

    def policy(self, pattern: str, definition: str, kind: str) -> None:
        name = f"{self.top}.policy{len(self.policies)}"
        self.broker.ctl("set_policy", name, pattern, definition, "--apply-to", kind)
        self.policies.append(name)

    def publisher(self, **options) -> Publisher:
        return Publisher(self.broker.url, self.top, **options)

    def straight(self, **options) -> Publisher:
        options = {"management_url": self.broker.management_url} | options
        return self.publisher(via="queues", **options)

    def drain(self) -> dict[bytes, list[tuple[str, str, str, bytes | None]]]:
        """For each body the queue, exchange, routing key and original key of every message that holds it."""
        found: dict[bytes, list] = {}
        for queue in self.queues:
            for exchange, routing_key, properties, body in emptied(self.channel, queue):
                key = (properties.headers or {}).get(KEY_HEADER)
                key = key.encode() if isinstance(key, str) else key
                found.setdefault(body, []).append((queue, exchange, routing_key, key))
        return found

    def landed(self) -> dict[bytes, str]:
        """For each body its queue; a body that lies there twice is an error."""
        found = self.drain()
        assert all(len(places) == 1 for places in found.values())
        return {body: places[0][0] for body, places in found.items()}

    def leases(self) -> list[str]:
        names = self.broker.ctl("list_queues", "name").split()
        return [name for name in names if is_lease_of(name, self.top)]


@contextmanager
def topology_on(broker):
    connection = broker.connection()
    topology = Topology(broker, connection.channel())
    try:
        yield topology
    finally:
        with suppress(AMQPError):  # the broker may have been restarted meanwhile
            connection.close()
        for policy in topology.policies:
            broker.ctl("clear_policy", policy)
        with broker.connection() as another:
            channel = another.channel()
            for queue in topology.queues:
                channel.queue_delete(queue)
            for exchange in topology.exchanges:
                channel.exchange_delete(exchange)
