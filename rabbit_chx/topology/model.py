"""Exchanges, queues, bindings and policies, as a file wants them or as a broker holds them.

A file, a ``definitions.json`` and a live broker are all read into a :class:`Topology`. :class:`Observed` adds what only
a live broker has: the order of its rings, its backlogs and its release.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.releases import NEWEST, Release
from rabbit_chx.mirror.ring import Destination, Ring, RingBinding, ToExchange
from rabbit_chx.topology.patterns import is_in

CONSISTENT_HASH: Final = "x-consistent-hash"
MODULUS_HASH: Final = "x-modulus-hash"
HASHING: Final = (CONSISTENT_HASH, MODULUS_HASH)
HASH_PROPERTIES: Final = ("message_id", "correlation_id", "timestamp")

RESERVED: Final = "amq."
"""The prefix of the broker's own names."""
OWN: Final = "rabbit-chx."
"""The prefix of objects that this package declares for itself, such as the lock; files do not contain them."""

_MOST_LISTED: Final = 10
POLICIES_OF: Final = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}


SINGLE_ACTIVE_CONSUMER: Final = "x-single-active-consumer"
DELIVERY_LIMIT: Final = "x-delivery-limit"

QueueType: TypeAlias = Literal["classic", "quorum", "stream"]
RingSource: TypeAlias = Literal["trivial", "node", "record", "inference", "unknown"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """The declaration of an exchange."""

    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    policy: str | None = field(default=None, compare=False)
    """The name of the policy that applies to an exchange of a broker, empty if none does; None for one of a file."""

    @property
    def hash_header(self) -> Any:
        """The value of the argument ``hash-header``, if any."""
        return self.arguments.get("hash-header")

    @property
    def hash_property(self) -> Any:
        """The value of the argument ``hash-property``, if any."""
        return self.arguments.get("hash-property")

    @property
    def alternate(self) -> str | None:
        """The name of the alternate exchange, which receives unroutable messages."""
        return self.arguments.get("alternate-exchange")


@dataclass(frozen=True, slots=True)
class Queue:
    """The declaration of a queue, with its type separate from the other arguments."""

    name: str
    type: QueueType = "classic"
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """All arguments except ``x-queue-type``."""

    @property
    def is_ordered(self) -> bool:
        """Whether the broker delivers to one consumer at a time, and redelivers to the next one in order."""
        return self.type == "quorum" and self.arguments.get(SINGLE_ACTIVE_CONSUMER) is True

    @property
    def _declared_arguments(self) -> dict[str, Any]:
        """The arguments of ``queue.declare``; like most clients, they omit the type of a classic queue."""
        return {**({} if self.type == "classic" else {"x-queue-type": self.type}), **self.arguments}


def wire_text(value: object) -> str:
    """Text that is equal only for values that are equal on the wire, where 1, 1.0 and True differ."""
    return json.dumps(value, sort_keys=True, default=repr)


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding of a queue or exchange to the exchange ``source``."""

    source: str
    destination: Destination
    key: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def _identity(self) -> tuple[str, Destination, str, str]:
        """The parts that distinguish bindings on a broker."""
        return (self.source, self.destination, self.key, wire_text(dict(self.arguments)))


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy; of all policies that match a name, only the one with the highest priority applies."""

    name: str
    pattern: str
    apply_to: str = "all"
    definition: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0

    # rabbit_policy.erl, matches/3.
    def _applies_to(self, thing: Exchange | Queue) -> bool | None:
        """Whether the pattern and kind match, None if only the broker knows; a higher priority may take precedence."""
        plain = "exchanges" if isinstance(thing, Exchange) else "queues"
        meant = {"all", plain} | ({POLICIES_OF[thing.type]} if isinstance(thing, Queue) else set())
        return self.apply_to in meant and is_in(self.pattern, thing.name)


@dataclass(frozen=True, slots=True)
class Slots:
    """A fixed number of slot exchanges behind one top exchange, each with one queue at a time.

    A topology does not assign slots to queues: any division by the weights is valid, and a plan chooses the one
    that moves the fewest keys.
    """

    exchange: str
    count: int
    queues: Mapping[str, int]
    """The queues that share the slots, with their weights."""
    alternate: str | None = None
    """The alternate exchange of every slot."""

    @property
    def _has_counts(self) -> bool:
        """Whether the weights are numbers of slots, as a rebalance leaves them, so that they add up to all slots."""
        return sum(self.queues.values()) == self.count

    @property
    def names(self) -> tuple[str, ...]:
        """The slot exchanges, in the order of their numbers."""
        width = len(str(self.count - 1))
        return tuple(f"{self.exchange}.slot.{number:0{width}}" for number in range(self.count))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The slot exchanges: durable, internal, not auto-delete."""
        arguments = {} if self.alternate is None else {"alternate-exchange": self.alternate}
        return tuple(
            Exchange(name, CONSISTENT_HASH, internal=True, arguments=arguments) for name in self.names
        )

    @property
    def _top_bindings(self) -> tuple[Binding, ...]:
        """The bindings from the top exchange to the slots, one bucket each."""
        return tuple(Binding(self.exchange, ToExchange(name), "1") for name in self.names)


@dataclass(frozen=True)
class Topology:
    """The wanted or actual contents of a virtual host. The bindings of one source are in bind order.

    A topology from a file describes slot exchanges and their bindings by ``slots``, and `expanded` lists them. A
    topology from a broker lists them already, and its ``slots`` is empty.
    """

    vhost: str = "/"
    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    policies: tuple[Policy, ...] = ()
    slots: tuple[Slots, ...] = ()
    co_partitioned: tuple[tuple[str, str], ...] = ()
    """Pairs of exchanges whose rings must be equal."""
    unordered: frozenset[str] = frozenset()
    """The consistent-hash exchanges whose bind order is unknown, so that the order of their bindings means nothing."""

    @cached_property
    def _exchange_named(self) -> dict[str, Exchange]:
        return {exchange.name: exchange for exchange in reversed(self.exchanges)}

    @cached_property
    def _queue_named(self) -> dict[str, Queue]:
        return {queue.name: queue for queue in reversed(self.queues)}

    @cached_property
    def _bindings_of(self) -> dict[str, tuple[Binding, ...]]:
        by_source: dict[str, list[Binding]] = {}
        for binding in self.bindings:
            by_source.setdefault(binding.source, []).append(binding)
        return {source: tuple(bindings) for source, bindings in by_source.items()}

    def exchange(self, name: str) -> Exchange | None:
        """The exchange with this name, if any."""
        return self._exchange_named.get(name)

    def queue(self, name: str) -> Queue | None:
        """The queue with this name, if any."""
        return self._queue_named.get(name)

    def slots_of(self, exchange: str) -> Slots | None:
        """The slots behind a top exchange, if any."""
        return next((slots for slots in self.slots if slots.exchange == exchange), None)

    def bindings_from(self, source: str) -> tuple[Binding, ...]:
        """The bindings of one source, in bind order."""
        return self._bindings_of.get(source, ())

    def _policies_of(self, thing: Exchange | Queue) -> list[Policy | None]:
        """The policy that the broker names for an exchange, or all that it may apply; None stands for no policy."""
        if isinstance(thing, Exchange) and thing.policy is not None:
            return [next((each for each in self.policies if each.name == thing.policy), None)]
        applying = [(each, each._applies_to(thing)) for each in self.policies]
        least = max((each.priority for each, applies in applying if applies), default=-math.inf)
        possible = [each for each, applies in applying if applies is not False and each.priority >= least]
        return [*possible, *[None] * (least == -math.inf)]

    def expanded(self, queue_of: Mapping[str, str] | None = None) -> Topology:
        """The same topology with its slot exchanges and the bindings to them listed.

        With ``queue_of``, the queue of each slot, the bindings from the slots to the queues are listed too.
        """
        if not self.slots:
            return self
        slots = [exchange for each in self.slots for exchange in each.exchanges]
        top = [binding for each in self.slots for binding in each._top_bindings]
        to_queues = [Binding(slot, queue, "1") for slot, queue in (queue_of or {}).items()]
        return replace(
            self,
            exchanges=(*self.exchanges, *slots),
            bindings=(*self.bindings, *top, *to_queues),
            slots=(),
        )

    @property
    def hash_exchanges(self) -> tuple[Exchange, ...]:
        """The consistent-hash exchanges."""
        return tuple(exchange for exchange in self.exchanges if exchange.type == CONSISTENT_HASH)

    def ring(self, exchange: str, release: str | Release = NEWEST) -> Ring:
        """The ring of a consistent-hash exchange; its order is unknown if the exchange is one of `unordered`."""
        found = self.exchange(exchange)
        if found is None or found.type != CONSISTENT_HASH:
            expected = f"one of {_first(each.name for each in self.hash_exchanges) or 'none'}"
            hint = "Only an x-consistent-hash exchange has a ring"
            raise InvalidValue("exchange", exchange, expected, hint)
        slots = self.slots_of(exchange)
        bindings = slots._top_bindings if slots else self.bindings_from(exchange)
        parsed = Release.parse(release)
        if exchange in self.unordered and order_matters(bindings):
            why = f"the bind order of exchange {exchange!r} was not known when the file was written"
            return Ring(as_ring_bindings(bindings), None, parsed, why)
        return ring_in_order(bindings, parsed)

    def _with_order_of(self, ring: Ring, exchange: str) -> Topology:
        """The same topology with the bindings of one exchange in the order of its ring."""
        others = (bound for bound in self.bindings if bound.source != exchange)
        bindings = (*others, *in_order_of(ring, self.bindings_from(exchange)))
        return replace(self, bindings=bindings, unordered=self.unordered - {exchange})


def bound_in(topology: Topology) -> set[Destination]:
    """What the bindings lead to, the queues behind slots included."""
    bound = {each.destination for each in topology.bindings}
    return bound.union(*(slots.queues for slots in topology.slots))


def bound_to(topology: Topology, exchange: str) -> set[Destination]:
    """What the bindings of one exchange lead to, the queues behind its slots included."""
    slots = topology.slots_of(exchange)
    return {each.destination for each in topology.bindings_from(exchange)}.union(
        slots.queues if slots else ()
    )


def hashing_exchanges(topology: Topology) -> dict[str, Exchange]:
    """The exchanges that hash, by name."""
    return {each.name: each for each in topology.exchanges if each.type in HASHING}


def hashing_exchange(topology: Topology, name: str) -> Exchange:
    """The exchange of this name.

    Raises:
        InvalidValue: it does not exist or does not hash.
    """
    known = hashing_exchanges(topology)
    if name not in known:
        expected = f"an exchange of virtual host {topology.vhost!r} that hashes"
        raise InvalidValue(
            "exchange", name, f"{expected}{': one of ' if known else ', but it has none'}{_first(known)}"
        )
    return known[name]


def _first(names: Iterable[str]) -> str:
    """The first of the names, and dots if there are more."""
    names = iter(names)
    return ", ".join([*islice(names, _MOST_LISTED), *["..."] * any(True for _ in names)])


def order_matters(bindings: Iterable[Binding]) -> bool:
    """Whether the ring of these bindings depends on their order: a single destination has all buckets in any case."""
    return len({bound.destination for bound in bindings}) > 1


def in_order_of(ring: Ring, bindings: Iterable[Binding]) -> tuple[Binding, ...]:
    """The bindings in the order of a ring, followed by those that it does not have; as given if its order is unknown."""
    place = {destination: number for number, (destination, _) in enumerate(ring.runs or ())}
    return tuple(sorted(bindings, key=lambda bound: place.get(bound.destination, math.inf)))


def ring_in_order(bindings: Iterable[Binding], release: Release) -> Ring:
    """The ring after these bind commands, which may bind a destination more than once."""
    listed = as_ring_bindings(bindings)
    if len({each.destination for each in listed}) == len(listed):
        return Ring.of(listed, release=release)
    ring = Ring(release=release)
    for each in listed:
        ring = ring.bind(each.destination, each.key, dict(each.arguments))
    return ring


def as_ring_bindings(bindings: Iterable[Binding]) -> tuple[RingBinding, ...]:
    """Convert the bindings of one consistent-hash exchange to the form that `Ring` uses."""
    return tuple(RingBinding.of(each.destination, each.key, each.arguments) for each in bindings)


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node of a cluster."""

    running: bool = True
    uptime: int | None = None
    """Milliseconds since it started; None if it is down."""
    partitions: tuple[str, ...] = ()
    """The nodes that it has lost."""
    alarms: tuple[str, ...] = ()
    """``memory`` and ``disk``, while one of them stops all publishers."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The state read from a live broker: its topology, and what only a live broker has."""

    topology: Topology = field(default_factory=Topology)
    release: Release = field(default_factory=lambda: Release.parse(NEWEST))
    exchange_types: frozenset[str] | None = None
    """The exchange types that can be declared; None if they were not read."""
    rings: Mapping[str, Ring] = field(default_factory=dict)
    """The ring of every consistent-hash exchange, of known or unknown order."""
    ring_sources: Mapping[str, RingSource] = field(default_factory=dict)
    """How each order was determined; a "trivial" ring has at most one binding, which nothing shows to have buckets."""
    unrecorded: frozenset[str] = frozenset()
    """The exchanges whose order is known, but not recorded on the broker, so that it must be learned each time."""
    backlog: Mapping[str, int] = field(default_factory=dict)
    """The number of messages in each queue."""
    worker_pool_size: int | None = None
    """``default_worker_pool_size`` of the node, if known: 1 makes a restart on Mnesia predictable."""
    cluster: str = ""
    """The name of the cluster."""
    possible_rings: Mapping[str, tuple[Ring, ...]] = field(default_factory=dict)
    """For each ring that observed messages did not determine, the rings that explain them (only some of many)."""
    nodes: Mapping[str, NodeState] | None = None
    """The nodes of the cluster; None if the user may not see them."""
    without_majority: tuple[str, ...] = ()
    """The quorum queues of which most members are down."""
    unconsumed: frozenset[str] = frozenset()
    """The queues without consumers, if consumers were read."""
    recorded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each exchange, the queues that the record on the broker lists; some may no longer be bound."""
    bindings_seen: bool = True
    """False if the broker was read over AMQP alone, which lists neither bindings nor policies."""
    unseen: tuple[str, ...] = ()
    """What could not be read, and why."""
