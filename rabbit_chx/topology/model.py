"""What stands on a broker or should: exchanges, queues, bindings, policies, in RabbitMQ's own words.

A file, a ``definitions.json`` and a live broker all become a :class:`Topology`; what only a live broker has (the
order of its rings, its backlogs, its release) is in :class:`Observed`. Values only: nothing here is read or written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from rabbit_chx.errors import InvalidValue
from rabbit_chx.releases import Release
from rabbit_chx.ring import Ring, RingBinding, ToExchange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rabbit_chx.ring import Destination

__all__ = [
    "BIND_SEQUENCE",
    "CONSISTENT_HASH",
    "MODULUS_HASH",
    "Binding",
    "Exchange",
    "Observed",
    "Policy",
    "Queue",
    "QueueType",
    "RingSource",
    "Slots",
    "Topology",
]

CONSISTENT_HASH: Final = "x-consistent-hash"
MODULUS_HASH: Final = "x-modulus-hash"

_POLICIES_OF: Final = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}

BIND_SEQUENCE: Final = "x-bind-seq"
"""The argument that our own binds to a consistent-hash exchange carry: the order in which they were issued."""

QueueType: TypeAlias = Literal["classic", "quorum", "stream"]
RingSource: TypeAlias = Literal["trivial", "node", "record", "x-bind-seq", "inference", "unknown"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange as it is declared."""

    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    policy: str | None = field(default=None, compare=False)
    """The policy that applies to it, where it was read from a broker."""

    @property
    def hash_header(self) -> Any:
        """The header that it hashes, as the argument stands; None where it hashes something else."""
        return self.arguments.get("hash-header")

    @property
    def hash_property(self) -> Any:
        """The property that it hashes, as the argument stands; None where it hashes something else."""
        return self.arguments.get("hash-property")

    @property
    def alternate(self) -> str | None:
        """Where what it cannot route goes."""
        return self.arguments.get("alternate-exchange")


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as it is declared; its type stands apart from the other arguments."""

    name: str
    type: QueueType = "classic"
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Without ``x-queue-type``."""
    effective_policy: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The definition of the policy that applied when statistics were last taken."""

    @property
    def declared_arguments(self) -> dict[str, Any]:
        """The arguments of the command that declares it; a classic queue names no type, like its makers."""
        return {**({} if self.type == "classic" else {"x-queue-type": self.type}), **self.arguments}


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding, with the exchange that it leads away from."""

    source: str
    destination: Destination
    key: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sequence(self) -> int | None:
        """The place in the order of binds that our own binds carry."""
        found = self.arguments.get(BIND_SEQUENCE)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    @property
    def unnumbered(self) -> Binding:
        """The same binding as a file has it, without the number of the bind command."""
        arguments = {name: value for name, value in self.arguments.items() if name != BIND_SEQUENCE}
        return Binding(self.source, self.destination, self.key, arguments)


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy; of those whose pattern matches a name, the one of the highest priority applies to it."""

    name: str
    pattern: str
    apply_to: str = "all"
    definition: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0

    # rabbit_policy.erl, matches/3.
    def applies_to(self, thing: Exchange | Queue) -> bool:
        """Whether it is meant for that exchange or queue; one of a higher priority may still win."""
        plain = "exchanges" if isinstance(thing, Exchange) else "queues"
        meant = {"all", plain} | ({_POLICIES_OF[thing.type]} if isinstance(thing, Queue) else set())
        try:
            return self.apply_to in meant and re.search(self.pattern, thing.name) is not None
        except re.error:  # the broker's expressions are Perl's, of which Python knows not all
            return False


@dataclass(frozen=True, slots=True)
class Slots:
    """A fixed number of slot exchanges under one top exchange, each with one queue at a time.

    Which slot leads to which queue is no part of what is wanted: any division by the weights will do, and a
    plan takes the one that moves the fewest keys.
    """

    exchange: str
    count: int
    queues: Mapping[str, int]
    """The queues that share the slots, with their weights."""
    alternate: str | None = None
    """The alternate exchange of every slot."""

    @property
    def names(self) -> tuple[str, ...]:
        """The slot exchanges, in the order of their numbers."""
        width = len(str(self.count - 1))
        return tuple(f"{self.exchange}.slot.{number:0{width}}" for number in range(self.count))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The slot exchanges: durable, internal, never deleted by themselves."""
        arguments = {} if self.alternate is None else {"alternate-exchange": self.alternate}
        return tuple(
            Exchange(name, CONSISTENT_HASH, internal=True, arguments=arguments) for name in self.names
        )

    @property
    def top_bindings(self) -> tuple[Binding, ...]:
        """The bindings from the top to the slots: one bucket each."""
        return tuple(Binding(self.exchange, ToExchange(name), "1") for name in self.names)


@dataclass(frozen=True, slots=True)
class Topology:
    """All that a virtual host should hold, or does. The bindings of one source stand in bind order.

    What ``slots`` stand for (slot exchanges and the bindings to and from them) is not among ``exchanges`` and
    ``bindings`` of a topology that was written; in one that was read it is, and ``slots`` is empty.
    """

    vhost: str = "/"
    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    policies: tuple[Policy, ...] = ()
    slots: tuple[Slots, ...] = ()
    co_partitioned: tuple[tuple[str, str], ...] = ()
    """Pairs of exchanges whose rings are meant to be equal."""

    def exchange(self, name: str) -> Exchange | None:
        """The exchange of that name."""
        return next((exchange for exchange in self.exchanges if exchange.name == name), None)

    def queue(self, name: str) -> Queue | None:
        """The queue of that name."""
        return next((queue for queue in self.queues if queue.name == name), None)

    def slots_of(self, exchange: str) -> Slots | None:
        """The slots under a top exchange."""
        return next((slots for slots in self.slots if slots.exchange == exchange), None)

    def bindings_from(self, source: str) -> tuple[Binding, ...]:
        """The bindings of one source, in bind order."""
        return tuple(bound for bound in self.bindings if bound.source == source)

    def policy_of(self, thing: Exchange | Queue) -> Policy | None:
        """The one policy that applies to an exchange or queue; the broker's choice among equals is its own."""
        matching = (policy for policy in self.policies if policy.applies_to(thing))
        return max(matching, key=lambda policy: policy.priority, default=None)

    @property
    def hash_exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges that keep a ring."""
        return tuple(exchange for exchange in self.exchanges if exchange.type == CONSISTENT_HASH)

    def ring(self, exchange: str, release: str | Release = "4.3") -> Ring:
        """The ring of a consistent-hash exchange after its bindings were made one after the other."""
        found = self.exchange(exchange)
        if found is None or found.type != CONSISTENT_HASH:
            raise InvalidValue(
                "exchange",
                exchange,
                "one of " + (", ".join(each.name for each in self.hash_exchanges) or "none"),
                "Only an x-consistent-hash exchange keeps a ring",
            )
        slots = self.slots_of(exchange)
        bindings = slots.top_bindings if slots else self.bindings_from(exchange)
        ring = Ring(release=Release.parse(release))
        for bound in bindings:
            ring = ring.bind(bound.destination, bound.key, bound.arguments)
        return ring

    def ring_bindings(self, exchange: str) -> tuple[RingBinding, ...]:
        """The bindings of a consistent-hash exchange as its ring lists them."""
        return tuple(
            RingBinding.of(bound.destination, bound.key, bound.arguments)
            for bound in self.bindings_from(exchange)
        )


@dataclass(frozen=True, slots=True)
class Observed:
    """A live broker: what stands there, and what only a live one has."""

    topology: Topology = field(default_factory=Topology)
    release: Release = field(default_factory=lambda: Release.parse("4.3"))
    product: str = "RabbitMQ"
    exchange_types: frozenset[str] | None = None
    """The types that can be declared; None where nobody asked."""
    rings: Mapping[str, Ring] = field(default_factory=dict)
    """The ring of every consistent-hash exchange; of some the order may be unknown."""
    ring_sources: Mapping[str, RingSource] = field(default_factory=dict)
    """How each order was learnt; of "trivial" rings (at most one binding) nothing had to be."""
    backlog: Mapping[str, int] = field(default_factory=dict)
    """Messages in each queue."""
    worker_pool_size: int | None = None
    """``default_worker_pool_size`` of the node, where it is known: 1 makes a Mnesia restart predictable."""
    cluster: str = ""
    """The name of the cluster."""
    possible_rings: Mapping[str, tuple[Ring, ...]] = field(default_factory=dict)
    """Of rings whose order is unknown although messages were observed: those that explain them (not all, if many)."""
    bindings_seen: bool = True
    """False where AMQP alone was asked, which lists neither bindings nor policies."""
    unseen: tuple[str, ...] = ()
    """What could not be seen, and why."""
