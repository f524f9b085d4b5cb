"""May messages go straight to the queues, and to which? The decision, from what was read of the broker.

Straight is allowed only where the way of every message through the exchange is wholly known:

- an ``x-modulus-hash`` exchange, whose order is visible, or an ``x-consistent-hash`` exchange whose ring was read
  from the node and that hashes nothing that the broker may set itself before it routes;
- each destination a queue, or a slot: an ``x-consistent-hash`` exchange with exactly one binding, to a queue. It may
  have an alternate exchange: that is for a slot without a bucket, and what its queue does not take comes back and
  then goes through the exchange;
- no alternate exchange on the exchange itself, and no queue that would dead-letter under the key it was published
  with.

Everything else is refused, with the reason. What cannot be seen from outside: a slot whose only binding is dead
(after one of two bindings of its queue was undone) returns messages that here reach the queue, or hands them to its
alternate exchange. Values in, values out: this file opens no socket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import BrokerWouldFail, InvalidValue, RabbitChxError
from rabbit_chx.exchange import ConsistentHashExchange
from rabbit_chx.partitioning import ModulusHashExchange
from rabbit_chx.publishing.direct_wire import field_of, headers_of, property_of
from rabbit_chx.releases import Release, Store
from rabbit_chx.ring import ToExchange, parse_weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rabbit_chx.broker.management import Bound, Exchange, Policy, Queue
    from rabbit_chx.publishing.frames import Message
    from rabbit_chx.ring import Destination, Ring

__all__ = ["DirectRoute", "Facts", "Refusal", "decide"]

_TEXT: Final = ord("S")  # the tag of a header that is a long string
_FEW: Final = 16  # below, the way of single keys is the faster one
_ALTERNATE: Final = "alternate-exchange"
_SET_BY_THE_BROKER: Final = re.compile(
    r"timestamp_in_ms|x-routed-by|x-death|x-(first|last)-death-.*"
).fullmatch
"""Headers that it may set or change before it routes: rabbit_message_interceptor.erl and mc.erl, recover_deaths."""
_OPAQUE: Final = re.compile(r"\\\w|\(\?|\[\[|\{,|--|&&|~~|\|\||[*+?}][+?]|[^\x20-\x7e]").search
"""What Python's regular expressions and Erlang's may read in two ways."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read of the broker, all at about one moment."""

    release: str
    store: Store | None
    """None where it could not be read."""
    top: Exchange
    bindings: Sequence[Bound]
    """Those of the top exchange."""
    slots: Mapping[str, tuple[Exchange, Sequence[Bound]]]
    """The exchanges that it leads to, with the bindings of each."""
    queues: Mapping[str, Queue]
    policies: Sequence[Policy]
    ring: Ring | None = None
    """As read from the node, for an x-consistent-hash exchange."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why messages have to go through the exchange."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class DirectRoute:
    """From messages to queues; two are equal if they send every message to the same queue."""

    release: str
    hashed: str
    """The exchange's type and what it hashes."""
    order: tuple[Destination, ...]
    """The destination of each bucket."""
    queue_of: tuple[tuple[Destination, str], ...]
    """The queue behind each destination."""
    _mirror: ModulusHashExchange | ConsistentHashExchange = field(compare=False, repr=False)

    def queues(self, messages: Sequence[Message]) -> list[bytes]:
        """The name of the queue of each message, as its routing key for the default exchange.

        Raises:
            InvalidValue: a message holds the hashed header more than once; its row is named.
            BrokerWouldFail: the broker would fail on a message; its row is named.
        """
        mirror = self._mirror
        if isinstance(mirror, ModulusHashExchange) or mirror.hash_on.part == "routing_key":
            keys = [message.routing_key for message in messages]
            if len(keys) < _FEW:
                return [self._behind[mirror.route(key)] for key in keys]
            return self._at_once(keys)
        rows: dict[bytes | None, int] = {}  # where each value is met first
        values = []
        properties = value = None
        for message in messages:
            if message.properties is not properties:
                properties = message.properties
                value = _hashed(message, mirror)
                rows.setdefault(value, message.row)
            values.append(value)
        queue_of = self._each(mirror, rows)
        return [queue_of[value] for value in values]

    def _each(
        self, mirror: ConsistentHashExchange, rows: Mapping[bytes | None, int]
    ) -> dict[bytes | None, bytes]:
        """The queue of each value: of text at once, and of all else one by one."""
        header, part = mirror.hash_header, mirror.hash_on.part
        texts: dict[bytes | None, str | bytes] = {}
        others: dict[bytes | None, Any] = {}
        for value in rows:
            if value is None:
                others[value] = None if header is None else {}
            elif header is None:
                texts[value] = value
            elif value[0] == _TEXT:
                texts[value] = value[5:].decode()
            else:
                others[value] = {header: field_of(value)}
        queue_of = dict(zip(texts, self._at_once(list(texts.values())), strict=True))
        for value, given in others.items():
            try:
                queue_of[value] = self._behind[mirror.route(**{part: given})]
            except BrokerWouldFail as error:
                raise BrokerWouldFail(f"the message in row {rows[value]}: {error}") from None
        return queue_of

    def _at_once(self, values: Sequence[str | bytes]) -> list[bytes]:
        names = [self._behind[destination] for destination in self._mirror.destinations]
        return [names[index] for index in self._mirror.route_many(values).tolist()]

    @cached_property
    def _behind(self) -> dict[Destination, bytes]:
        return {destination: queue.encode() for destination, queue in self.queue_of}


def _hashed(message: Message, mirror: ConsistentHashExchange) -> bytes | None:
    """The property or header that is hashed, as it stands in the message, a header with its tag; None without it."""
    name = mirror.hash_header
    if name is None:
        return property_of(message.properties, mirror.hash_on.part)
    found = headers_of(message.properties, name.encode())
    if len(found) > 1:
        raise InvalidValue(
            f"headers in row {message.row}",
            f"{name!r} {len(found)} times",
            "the hashed header once",
        )
    return found[0] if found else None


class _RefusedError(Exception):
    """Ends the decision wherever it stands."""


def decide(facts: Facts) -> DirectRoute | Refusal:
    """Whether messages may go straight to the queues, and to which."""
    try:
        mirror, order = _mirror(facts)
        queue_of = tuple(
            (destination, _queue_behind(destination, facts)) for destination in _each_once(order)
        )
        for _, queue in queue_of:
            _check_dead_letters(facts.queues.get(queue), queue, facts.policies)
    except _RefusedError as refused:
        return Refusal(str(refused))
    except (
        RabbitChxError
    ) as error:  # an unknown release, an order of no rule, bindings that cannot be counted
        return Refusal(str(error))
    hashed = "" if isinstance(mirror, ModulusHashExchange) else f" over {mirror.hash_on}"
    return DirectRoute(facts.release, facts.top.type + hashed, order, queue_of, mirror)


def _each_once(destinations: Sequence[Destination]) -> list[Destination]:
    """Each destination once, in an order that does not depend on how they were listed."""
    return sorted(set(destinations), key=lambda one: (isinstance(one, ToExchange), str(one)))


def _mirror(
    facts: Facts,
) -> tuple[ModulusHashExchange | ConsistentHashExchange, tuple[Destination, ...]]:
    """The mirror of the top exchange, and the destinations of its buckets."""
    top = facts.top
    _refuse_alternate(top, facts.policies)
    if top.internal:
        raise _RefusedError(f"exchange {top.name!r} is internal: nobody may publish to it")
    if not facts.bindings:
        raise _RefusedError(f"exchange {top.name!r} has no binding")
    release = Release.parse(facts.release)
    if top.type == "x-modulus-hash":
        if not release.modulus_sorts_destinations and facts.store is None:
            raise _RefusedError(
                f"whether RabbitMQ {release} keeps its bindings in Mnesia, where alone x-modulus-hash has an order, "
                "cannot be read: that needs a user that may list feature flags"
            )
        pairs = [(bound.destination, bound.key) for bound in facts.bindings]
        modulus = ModulusHashExchange(pairs, release=facts.release, store=facts.store)
        return modulus, modulus.destinations
    if top.type == "x-consistent-hash":
        return _ring_mirror(facts)
    raise _RefusedError(
        f"exchange {top.name!r} is of type {top.type}: only x-modulus-hash and x-consistent-hash are mirrored here"
    )


def _ring_mirror(facts: Facts) -> tuple[ConsistentHashExchange, tuple[Destination, ...]]:
    name, ring = facts.top.name, facts.ring
    header, property_ = (facts.top.arguments.get(argument) for argument in ("hash-header", "hash-property"))
    if property_ == "timestamp" or (isinstance(header, str) and _SET_BY_THE_BROKER(header)):
        raise _RefusedError(
            f"exchange {name!r} hashes {header or property_!r}, which the broker may be configured to set before it "
            "routes: that cannot be seen from outside"
        )
    if ring is None:
        raise _RefusedError(
            f"the order of the ring of {name!r} is not visible over HTTP: Publisher(ring=...) has to read it from "
            "the node"
        )
    listed: dict[Destination, int] = {}
    for bound in facts.bindings:
        if bound.destination in listed:
            raise _RefusedError(
                f"exchange {name!r} has two bindings of {bound.destination}: one of them is dead"
            )
        listed[bound.destination] = parse_weight(bound.key, of=bound.destination)
    buckets = ring.bucket_map
    held = {destination: buckets.count(destination) for destination in set(buckets)}
    if held != listed:
        raise _RefusedError(f"the ring that was read of {name!r} does not agree with its bindings")
    # Whoever read the ring need not have said of which release, and headers are hashed in several ways.
    ring = replace(ring, release=Release.parse(facts.release))
    return ConsistentHashExchange(ring, hash_header=header, hash_property=property_), buckets


def _refuse_alternate(exchange: Exchange, policies: Sequence[Policy]) -> None:
    """No alternate exchange, neither by argument nor by policy."""
    if _ALTERNATE in exchange.arguments:
        raise _RefusedError(f"exchange {exchange.name!r} has an alternate exchange")
    if exchange.policy is None:
        return
    applied = [policy for policy in policies if policy.name == exchange.policy]
    if not applied:
        raise _RefusedError(f"the policy {exchange.policy!r} of exchange {exchange.name!r} cannot be read")
    if any(_ALTERNATE in policy.definition for policy in applied):
        raise _RefusedError(f"the policy {exchange.policy!r} gives {exchange.name!r} an alternate exchange")


def _queue_behind(destination: Destination, facts: Facts) -> str:
    """The one queue to which a destination leads."""
    if not isinstance(destination, ToExchange):
        return destination
    name = destination.name
    if name not in facts.slots:
        raise _RefusedError(f"the destination {destination} was gone when it was read")
    slot, bindings = facts.slots[name]
    if slot.type != "x-consistent-hash":
        raise _RefusedError(
            f"the destination {destination} is of type {slot.type}: a slot is x-consistent-hash"
        )
    if len(bindings) != 1:
        raise _RefusedError(f"slot {name!r} has {len(bindings)} bindings: a slot has exactly one, to a queue")
    queue = bindings[0].destination
    if isinstance(queue, ToExchange):
        raise _RefusedError(f"slot {name!r} leads to {queue}: a slot leads to a queue")
    return queue


def _check_dead_letters(queue: Queue | None, name: str, policies: Sequence[Policy]) -> None:
    """A dead-lettered message keeps its key, which would be the queue's name, unless the queue gives another."""
    if queue is None:
        raise _RefusedError(f"queue {name!r} was gone when it was read")
    own: dict[str, Any] = {key.removeprefix("x-"): value for key, value in queue.arguments.items()}
    # A queue shows its policy late. So any that may apply counts, whatever its priority, and a key that only
    # a policy gives does not count for an exchange that the queue itself names.
    possible = [policy.definition for policy in policies if _may_apply(policy, name)]
    for definition in ({}, queue.effective_policy, *possible):
        keys = {*own, *definition}
        if "dead-letter-exchange" in keys and "dead-letter-routing-key" not in keys:
            raise _RefusedError(
                f"queue {name!r} has (or a policy may give it) a dead-letter exchange, and no dead-letter routing "
                "key: dead letters would arrive there under the queue's name"
            )


def _may_apply(policy: Policy, name: str) -> bool:
    """Whether a policy may be one for the queue; where two kinds of regular expressions may differ, it may."""
    if policy.apply_to == "exchanges":
        return False
    if _OPAQUE(policy.pattern) or not (name.isascii() and name.isprintable()):
        return True
    try:
        return re.search(policy.pattern, name) is not None
    except re.error:
        return True
