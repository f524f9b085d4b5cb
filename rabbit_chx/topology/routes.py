"""Predict the queues that a message reaches through all exchanges of a topology.

Routing follows ``rabbit_exchange:route/3``: each exchange routes the message once, each queue receives it once, and an
alternate exchange routes what its exchange cannot. The result has an `AnyOf` where routing is random, where only a live
broker knows the queue, or where an unknown part of the message decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rabbit_chx.errors import InvalidValue, Unpredictable, Unquoted
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.fields import Client, Field, check_client, encode
from rabbit_chx.mirror.hashing import shortstr
from rabbit_chx.mirror.kernel.terms import format_term
from rabbit_chx.mirror.partitioning import AnyOf, modulus_destination, modulus_destinations
from rabbit_chx.mirror.releases import NEWEST, Release
from rabbit_chx.mirror.ring import Destination, Ring, ToExchange
from rabbit_chx.topology.file.problems import known_exchanges
from rabbit_chx.topology.model import RESERVED, Binding, Exchange, Topology

_NO_RINGS: Final[Mapping[str, Ring]] = {}


def route(
    topology: Topology,
    exchange: str,
    *,
    routing_key: str | bytes = "",
    headers: Mapping[str, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
    release: str | Release = NEWEST,
) -> tuple[str | AnyOf, ...]:
    """The queues that one message reaches, sorted by name; to route many messages, reuse one `Router`."""
    return Router(topology, release=release).route(
        exchange, routing_key, headers=headers, properties=properties
    )


@dataclass(frozen=True, slots=True)
class _Message:
    """The parts of a message that affect routing."""

    keys: tuple[bytes, ...]
    """The routing key, followed by the keys in the headers CC and BCC."""
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    known: Collection[str] | None
    """The parts that are known, besides the headers that are given; None if all are."""

    def has(self, part: str) -> bool:
        return self.known is None or part in self.known

    def has_headers(self, names: Iterable[str | None]) -> bool:
        return self.has("headers") or all(name in self.headers for name in names)


class Router:
    """Predicts routes through one topology.

    Args:
        topology: the topology of a file or of a broker.
        release: the release of the broker.
        rings: the rings of a live broker (``Observed.rings``). By default, a ring is computed from its bindings in
            the listed order.
        client: the publishing client, needed if clients encode a hashed or matched header differently.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        release: str | Release = NEWEST,
        rings: Mapping[str, Ring] = _NO_RINGS,
        client: Client | None = None,
    ) -> None:
        check_client(client)
        self._topology = topology.expanded()
        self._queues_of_slot = {name: each.queues for each in topology.slots for name in each.names}
        """The possible queues of each slot in a file's topology; only a broker knows the actual one."""
        self._release = Release.parse(release)
        self._rings = rings
        self._client = client
        self._hashing: dict[str, ConsistentHashExchange] = {}
        self._modulus: dict[str, tuple[Destination, ...]] = {}

    def route(
        self,
        exchange: str,
        routing_key: str | bytes = "",
        *,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        known: Collection[str] | None = None,
    ) -> tuple[str | AnyOf, ...]:
        """The queues that a message published to ``exchange`` reaches; empty if it is unroutable.

        ``properties`` may hold those that an exchange can hash: ``message_id``, ``correlation_id``, ``timestamp``.
        ``known`` names the parts of the message that are known: ``routing_key``, ``headers``, and those properties. An
        exchange that hashes another part may choose any of its destinations; a single header may be known
        without the others. By default all parts are known, and a part that is not given is absent.

        Raises:
            Unpredictable: a binding matches by a part that is not known, or the route cannot be given as one list.
        """
        keys = (shortstr(routing_key, "the routing key"), *_copies(headers or {}))
        message = _Message(keys, headers or {}, properties or {}, known)
        if exchange == "":
            if not message.has("routing_key"):
                raise Unpredictable(
                    "the default exchange routes by the routing key of the message, which is not given"
                )
            names = {key.decode(errors="replace") for key in keys}
            return tuple(sorted(name for name in names if self._topology.queue(name)))
        start = self._topology.exchange(exchange)
        if start is None or start.internal:
            raise self._cannot_publish_to(exchange, start)
        return tuple(sorted(self._reached(start, message, {exchange}), key=str))

    def _cannot_publish_to(self, name: str, found: Exchange | None) -> InvalidValue:
        """The error for an exchange that is internal or missing."""
        got: object = name
        expected = "an exchange of the topology"
        if found is not None:
            got, expected = Unquoted(f"{name!r}, which is internal"), f"{expected} that is not internal"
        if found is None and name.startswith(RESERVED):
            hint = f"An exchange {RESERVED}* is part of a topology only if it has bindings"
        else:
            known = (each.name for each in self._topology.exchanges if not each.internal)
            hint = known_exchanges(name, known)
        return InvalidValue("exchange to publish to", got, expected, hint)

    # rabbit_exchange.erl, route1/4 and process_route/2.
    def _reached(self, start: Exchange, message: _Message, seen: set[str]) -> list[str | AnyOf]:
        """Each queue once, and each choice, even if two exchanges choose among the same queues."""
        queues: set[str] = set()
        choices: list[AnyOf] = []
        waiting = [start]
        while waiting:
            for destination in self._next(waiting.pop(), message):
                if isinstance(destination, AnyOf):
                    end = self._one_of(destination, message, seen)
                    queues.update([end] if isinstance(end, str) else [])
                    choices += [end] if isinstance(end, AnyOf) else []
                elif isinstance(destination, str):
                    queues.add(destination)
                elif destination.name not in seen:
                    seen.add(destination.name)
                    following = self._topology.exchange(destination.name)
                    waiting += [following] if following else []
        return [*queues, *choices]

    def _one_of(self, choice: AnyOf, message: _Message, seen: set[str]) -> str | AnyOf:
        """The possible queues of one random choice; each alternative must end in exactly one queue."""
        queues: set[Destination] = set()
        for destination in choice.destinations:
            ends: list[str | AnyOf] = [destination] if isinstance(destination, str) else []
            if isinstance(destination, ToExchange) and destination.name not in seen:
                following = self._topology.exchange(destination.name)
                ends = self._reached(following, message, seen | {destination.name}) if following else []
            if len(ends) != 1:
                raise Unpredictable(
                    f"the message may be routed at random to {destination}, which routes it to {len(ends)} queues, so "
                    "the queues that it reaches cannot be given as one list"
                )
            end = ends.pop()
            queues |= end.destinations if isinstance(end, AnyOf) else {end}
        only = next(iter(queues))
        return only if len(queues) == 1 and isinstance(only, str) else AnyOf(frozenset(queues))

    def _next(self, exchange: Exchange, message: _Message) -> Sequence[Destination | AnyOf]:
        """The destinations of a message at one exchange, or the alternate exchange if there are none."""
        if found := self._matching(exchange, message):
            return found
        # rabbit_policy.erl, get_arg/3: an argument takes precedence over a policy.
        alternate = exchange.alternate
        if alternate is None:
            alternate = self._alternate_by_policy(exchange)
        return [] if alternate is None else [ToExchange(alternate)]

    def _alternate_by_policy(self, exchange: Exchange) -> Any:
        policies = self._topology._policies_of(exchange)
        first, *others = (each and each.definition.get("alternate-exchange") for each in policies)
        if any(each != first for each in others):
            names = ", ".join(repr(each.name) if each else "none" for each in policies)
            raise Unpredictable(
                f"no binding of exchange {exchange.name!r} matches the message, and its alternate exchange depends on the policy: "
                f"the broker may apply any of {names} (equal priorities, or a pattern that only the broker can "
                "evaluate: see `rabbit-chx lint`)"
            )
        return first

    def _matching(self, exchange: Exchange, message: _Message) -> Sequence[Destination | AnyOf]:
        bindings = self._topology.bindings_from(exchange.name)
        match exchange.type:
            case "x-random":
                return _any_of(bound.destination for bound in bindings)
            case "x-local-random":
                return _any_of(bound.destination for bound in bindings if not bound.key)
            case "x-consistent-hash":
                return self._consistent_hash(exchange, message)
            case "x-modulus-hash":
                return self._modulus_hash(exchange, bindings, message) if bindings else []
            case "direct" | "fanout" | "x-recent-history" | "topic" | "headers":
                return [bound.destination for bound in bindings if self._matches(exchange, bound, message)]
            case type_:
                what = f"exchange {exchange.name!r} has the type {type_}"
                raise Unpredictable(f"{what}, whose routing is not supported")

    def _matches(self, exchange: Exchange, bound: Binding, message: _Message) -> bool:
        match exchange.type:
            case "fanout" | "x-recent-history":
                return True
            case "topic" if bound.key == "#":
                return True
            case "headers":
                if not message.has_headers(bound.arguments.keys() - {"x-match"}):
                    raise _not_given(exchange, "headers of the message, which are")
                return headers_match(bound.arguments, message.headers, self._release, self._client)
        if not message.has("routing_key"):
            raise _not_given(exchange, "routing key of the message, which is")
        if exchange.type == "direct":
            return bound.key.encode() in message.keys
        return any(topic_matches(bound.key, key) for key in message.keys)

    def _consistent_hash(self, exchange: Exchange, message: _Message) -> Sequence[Destination | AnyOf]:
        name = exchange.name
        if name in self._queues_of_slot:
            return _any_of(self._queues_of_slot[name])
        if name not in self._hashing:
            ring = self._rings.get(name)
            self._hashing[name] = ConsistentHashExchange(
                self._topology.ring(name, self._release) if ring is None else ring,
                hash_header=exchange.hash_header,
                hash_property=exchange.hash_property,
            )
        mirror = self._hashing[name]
        if mirror.ring.known and not len(mirror.ring):
            return []
        on = mirror._hash_on.part
        if not (message.has_headers([exchange.hash_header]) if on == "headers" else message.has(on)):
            return _any_of(mirror.destinations)
        parts = {**message.properties, "routing_key": message.keys[0], "headers": message.headers}
        return [mirror._explain(parts.get(on), client=self._client).destination]

    def _modulus_hash(
        self, exchange: Exchange, bindings: Sequence[Binding], message: _Message
    ) -> Sequence[Destination | AnyOf]:
        if exchange.name not in self._modulus:
            pairs = [(bound.destination, bound.key) for bound in bindings]
            self._modulus[exchange.name] = modulus_destinations(pairs, self._release)
        destinations = self._modulus[exchange.name]
        if not message.has("routing_key"):
            return _any_of(destinations)
        return [modulus_destination(destinations, message.keys)]


def _not_given(exchange: Exchange, part: str) -> Unpredictable:
    return Unpredictable(f"exchange {exchange.name!r} (type {exchange.type}) routes by the {part} not given")


def _any_of(destinations: Iterable[Destination]) -> list[Destination | AnyOf]:
    found = frozenset(destinations)
    return [AnyOf(found)] if len(found) > 1 else list(found)


# rabbit_basic.erl, header_routes/1.
def _copies(headers: Mapping[str, Any]) -> list[bytes]:
    keys: list[bytes] = []
    for name in ("CC", "BCC"):
        copies = headers.get(name, [])
        if not isinstance(copies, (list, tuple)):
            hint = "A broker closes the channel on any other"
            raise InvalidValue(f"header {name}", copies, "a list of routing keys", hint)
        keys += [shortstr(key, f"a key of the header {name}") for key in copies]
    return keys


# rabbit_db_topic_exchange.erl: a key is split at its dots, and the empty key has no words.
def topic_matches(pattern: str | bytes, routing_key: str | bytes) -> bool:
    """Whether a topic pattern matches a routing key: ``*`` is one word, ``#`` any number of words.

    >>> topic_matches("order.#", "order"), topic_matches("order.*", "order")
    (True, False)
    """
    patterns = _words(pattern)
    reached = [True]  # whether the first 0, 1, 2, ... of the patterns match the words so far
    for each in patterns:
        reached.append(reached[-1] and each == b"#")
    for word in _words(routing_key):
        before, reached = reached, [False]
        for place, each in enumerate(patterns):
            many = each == b"#" and (before[place + 1] or reached[place])
            reached.append(many or (each in (b"*", word) and before[place]))
    return reached[-1]


def _words(key: str | bytes) -> list[bytes]:
    encoded = key.encode() if isinstance(key, str) else key
    return encoded.split(b".") if encoded else []


# rabbit_exchange_type_headers.erl, route/3.
def headers_match(
    arguments: Mapping[str, Any],
    headers: Mapping[str, Any],
    release: str | Release = NEWEST,
    client: Client | None = None,
) -> bool:
    """Whether the arguments of a binding match the headers of a message at a headers exchange.

    An argument without a value requires only that the header is present. Names that begin with ``x-`` count only
    if ``x-match`` is ``all-with-x`` or ``any-with-x``.

    >>> headers_match({"x-match": "any", "type": "a", "size": 1}, {"size": 1})
    True
    """
    parsed = Release.parse(release)
    kind = arguments.get("x-match", "all")
    with_x = kind in ("all-with-x", "any-with-x")
    results = (
        _header_matches(value, headers[name], parsed, client) if name in headers else False
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    )
    return any(results) if kind in ("any", "any-with-x") else all(results)


def _header_matches(wanted: object, value: object, release: Release, client: Client | None) -> bool:
    pattern = _field(wanted, None)
    if pattern.tag == "V":
        return True
    field = _field(value, client)
    if release.typed_headers:
        return bool(pattern._term == field._term)  # Erlang's ==, for which 1 and 1.0 are equal
    # From 3.13 on, =:= distinguishes 1 and 1.0, and mc_amqpl converts a header's time to milliseconds, but not
    # the argument's.
    term = field.value * 1000 if field.tag == "T" else field._term
    return format_term(pattern._term) == format_term(term)


def _field(value: object, client: Client | None) -> Field:
    """Encode a value, by default like py-amqp, which supports the most types and keeps a float's precision."""
    return encode(value, client or "py-amqp")
