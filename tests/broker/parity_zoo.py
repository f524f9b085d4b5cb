"""Many exchanges on the same destinations, changed at random on a broker and in the mirror alike.

Asking a node for a ring takes a second, so that a long history of one exchange would be slow to follow step by
step. Here all exchanges take one step each before they are asked for together.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Self

from rabbit_chx import Ring, RingBinding, ToExchange
from tests.broker.parity import close

if TYPE_CHECKING:
    from rabbit_chx.ring import Destination
    from tests.broker.parity import Lab

# Texts of weights on purpose: their order as texts is not that of their numbers.
WEIGHTS = ["1", "1", "2", "3", "5", "10", "+2", "007", "04"]
FEWEST = 10
"""Destinations that are bound to every exchange, at least, whatever goes."""


class Zoo:
    """Exchanges of ten to sixteen destinations each, and the ring that the mirror says each has."""

    def __init__(self, lab: Lab, *, seed: str, exchanges: int) -> None:
        self.lab = lab
        self.random = random.Random(seed)
        self.queues = [f"zoo.q{i}" for i in range(13)]
        self.behind = [ToExchange(f"zoo.x{i}") for i in range(3)]
        self.rings = {f"zoo.{i}": Ring(release=lab.release) for i in range(exchanges)}
        self.steps = 0

    def __enter__(self) -> Self:
        self._connect()
        for queue in self.queues:
            self._channel.queue_declare(queue, durable=True)
        for exchange in self.behind:
            self._channel.exchange_declare(exchange.name, "fanout", durable=True)
        for name in self.rings:
            self._channel.exchange_declare(name, "x-consistent-hash", durable=True)
            for destination in self.random.sample([*self.queues, *self.behind], FEWEST + 2):
                self._bind(name, destination, self.random.choice(WEIGHTS))
        return self

    def __exit__(self, *_: object) -> None:
        self.reconnect()
        with self._connection:
            for name in (*self.rings, *(exchange.name for exchange in self.behind)):
                self._channel.exchange_delete(name)
            for queue in self.queues:
                self._channel.queue_delete(queue)

    def reconnect(self) -> None:
        """Open a new connection in place of one that a restart has closed."""
        close(self._connection)
        self._connect()

    def _connect(self) -> None:
        self._connection = self.lab.broker.connection()
        self._channel = self._connection.channel()

    def step(self) -> None:
        """Change every exchange once, and now and then delete a destination from all of them at once."""
        self.steps += len(self.rings)
        for name, ring in self.rings.items():
            bound = {binding.destination for binding in ring.bindings}
            if len(bound) > FEWEST and self.random.random() < 0.5:
                # any of the listed ones: with buckets, a duplicate or dead
                self._unbind(name, self.random.choice(ring.bindings))
            elif self.random.random() < 0.7:  # a duplicate: another weight, or the very same binding
                self._bind(name, self.random.choice(sorted(bound, key=str)), self.random.choice(WEIGHTS))
            else:
                everything = [*self.queues, *self.behind]
                self._bind(name, self.random.choice(everything), self.random.choice(WEIGHTS))
        if self.random.random() < 0.2:
            self._delete(self.random.choice([*self.queues, *self.behind]))

    def make_dead(self, count: int) -> None:
        """Take the buckets of some destinations away in every ring, and leave a binding of each listed."""
        for name in self.rings:
            for destination, weight in self.random.sample(self.rings[name].runs, count):
                duplicate = RingBinding.of(destination, weight + 1)
                self._bind(name, destination, duplicate.key)
                self._unbind(name, duplicate)  # either unbind takes all of the buckets
            assert len(self.rings[name].dead) >= count

    def _bind(self, name: str, destination: Destination, key: str) -> None:
        if isinstance(destination, ToExchange):
            self._channel.exchange_bind(destination.name, name, key)
        else:
            self._channel.queue_bind(destination, name, key)
        self.rings[name] = self.rings[name].bind(destination, key)

    def _unbind(self, name: str, binding: RingBinding) -> None:
        if isinstance(binding.destination, ToExchange):
            self._channel.exchange_unbind(binding.destination.name, name, binding.key)
        else:
            self._channel.queue_unbind(binding.destination, name, binding.key)
        self.rings[name] = self.rings[name].unbind(binding.destination, binding.key)

    def _delete(self, destination: Destination) -> None:
        """The queue or exchange goes, with its bindings, and comes back without them."""
        if isinstance(destination, ToExchange):
            self._channel.exchange_delete(destination.name)
            self._channel.exchange_declare(destination.name, "fanout", durable=True)
        else:
            self._channel.queue_delete(destination)
            self._channel.queue_declare(destination, durable=True)
        for name, ring in self.rings.items():
            self.rings[name] = ring.delete(destination)

    def compare(self) -> None:
        """Hold every ring against the broker's."""
        self.lab.compare_rings(self.rings)
