"""Lint rules that need no broker.

Each rule is a generator of findings for a topology, and `RULES` lists all rules. The code of a finding is stable, and
its message ends with a hint.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from math import gcd
from typing import TYPE_CHECKING, Any, Final, Literal

from rabbit_chx.errors import InvalidValue
from rabbit_chx.hashing import hash_on
from rabbit_chx.releases import MAX_WEIGHT
from rabbit_chx.ring import ToExchange, parse_weight
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rabbit_chx.ring import Destination
    from rabbit_chx.topology.model import Binding, Exchange, Topology

__all__ = ["RULES", "Finding"]

_MANY_BUCKETS: Final = 500
_COSTS: Final = ((8, 6.0), (800, 31.0), (8_000, 291.0))
"""Numbers of buckets, and the measured CPU time of the broker per message on 4.3, in microseconds."""
_SLOTS_A_QUEUE: Final = 16
_MANY_SLOTS: Final = 256

_HASH_ARGUMENTS: Final = ("hash-header", "hash-property")
_OTHER_NAMES: Final = dict.fromkeys(("hash-on", "hash-key", "hash-by", "header"), "hash-header") | {
    "property": "hash-property",
    "alternative-exchange": "alternate-exchange",
}
"""Names that difflib does not find; hash-on is LavinMQ's."""
_KEEPING: Final = ("reject-publish", "reject-publish-dlx")


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake or risk in a topology."""

    severity: Literal["error", "warning"]
    """An error loses messages or is refused by a broker; a warning is a cost or a risk."""
    code: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.message} [{self.code}]"


def _error(code: str, where: str, message: str) -> Finding:
    return Finding("error", code, where, message)


def _warning(code: str, where: str, message: str) -> Finding:
    return Finding("warning", code, where, message)


def _named(thing: Exchange | Destination) -> str:
    if isinstance(thing, str):
        return f"queue {thing!r}"
    return f"exchange {thing.name!r}"


# -- bindings of rings -------------------------------------------------------------------------------


def _binding_keys(topology: Topology) -> Iterator[Finding]:
    for exchange, bound in _ring_bindings(topology):
        where = f"the binding of {_named(bound.destination)} to {_named(exchange)}"
        if _weight(bound) is not None:
            continue
        if re.fullmatch(r"\+?[0-9]{1,255}", bound.key, re.ASCII) and int(bound.key) > MAX_WEIGHT:
            yield _error(
                "weight-too-large",
                where,
                f"a weight of {int(bound.key):,} is that number of buckets, which can kill a broker before 4.2.6 and "
                f"is refused from then on: stay below {MAX_WEIGHT + 1:,}; small weights with the same ratio do",
            )
        else:
            yield _error(
                "binding-key",
                where,
                f"the key {bound.key!r} is no whole number from 1 on, so the broker refuses the binding: the key of a "
                f"binding to an {CONSISTENT_HASH} exchange is its weight, such as '1'",
            )


def _double_bindings(topology: Topology) -> Iterator[Finding]:
    times = Counter((exchange.name, bound.destination) for exchange, bound in _ring_bindings(topology))
    for (name, destination), count in times.items():
        if count > 1:
            yield _error(
                "double-binding",
                f"exchange {name!r}",
                f"{_named(destination)} is bound {count} times: the first binding wins, and taking away any of them "
                "removes all its buckets while the others stay listed: leave one binding with the weight you want",
            )


def _many_buckets(topology: Topology) -> Iterator[Finding]:
    for exchange in topology.hash_exchanges:
        weights = [_weight(bound) or 0 for bound in topology.bindings_from(exchange.name)]
        buckets = sum(weights)
        if buckets > _MANY_BUCKETS:
            divisor = gcd(*weights)
            smaller = f"divide all weights by {divisor}" if divisor > 1 else "use smaller weights"
            yield _warning(
                "many-buckets",
                _named(exchange),
                f"{buckets:,} buckets cost about {_cost(buckets):.0f} us of broker time for each message (measured on "
                f"4.3: 6, 31 and 291 us at 8, 800 and 8,000 buckets): {smaller}",
            )


def _cost(buckets: int) -> float:
    """Interpolate linearly between the measured points, and extrapolate beyond the last."""
    (x0, y0), (x1, y1) = (_COSTS[0], _COSTS[1]) if buckets <= _COSTS[1][0] else (_COSTS[1], _COSTS[2])
    return y0 + (buckets - x0) * (y1 - y0) / (x1 - x0)


def _ring_bindings(topology: Topology) -> Iterator[tuple[Exchange, Binding]]:
    for exchange in topology.hash_exchanges:
        for bound in topology.bindings_from(exchange.name):
            yield exchange, bound


def _weight(bound: Binding) -> int | None:
    try:
        return parse_weight(bound.key, of=bound.destination)
    except InvalidValue:
        return None


# -- arguments of exchanges --------------------------------------------------------------------------


def _hash_arguments(topology: Topology) -> Iterator[Finding]:
    for exchange in topology.hash_exchanges:
        header, property_ = exchange.hash_header, exchange.hash_property
        if header is not None and property_ is not None:
            yield _error(
                "both-hash-arguments",
                _named(exchange),
                "it names both hash-header and hash-property, which the broker refuses: leave one",
            )
        elif header is not None and not isinstance(header, str):
            yield _error(
                "hash-header-type",
                _named(exchange),
                f"hash-header is {header!r}, and the broker closes the whole connection (541) on a name that is no "
                f"text: write {str(header)!r} in quotes",
            )
        else:
            try:
                hash_on(header, property_)
            except InvalidValue as error:
                yield _error("hash-argument-value", _named(exchange), str(error))


def _misspelt_arguments(topology: Topology) -> Iterator[Finding]:
    for exchange in topology.exchanges:
        for name in exchange.arguments:
            meant = _meant(name, exchange)
            if name in _HASH_ARGUMENTS and exchange.type != CONSISTENT_HASH:
                yield _warning(
                    "ignored-hash-argument",
                    _named(exchange),
                    f"an exchange of type {exchange.type} does not look at {name}: leave it out, or make it an "
                    f"{CONSISTENT_HASH}",
                )
            elif meant is not None and meant != name:
                yield _error(
                    "misspelt-argument",
                    _named(exchange),
                    f"the broker takes the argument {name!r} and ignores it: {meant!r} is meant? Correct it before the "
                    "exchange is declared; later it cannot be changed",
                )


def _meant(name: str, exchange: Exchange) -> str | None:
    """The argument that a misspelt name probably means, if any."""
    known = [*(_HASH_ARGUMENTS if exchange.type == CONSISTENT_HASH else ()), "alternate-exchange"]
    plain = name.lower().replace("_", "-").removeprefix("x-")
    likely = get_close_matches(plain, known, n=1, cutoff=0.8)
    meant = _OTHER_NAMES.get(plain) or (likely[0] if likely else None)
    return meant if meant in known else None


def _static_headers(topology: Topology) -> Iterator[Finding]:
    """Find headers exchanges that pass on only messages whose hash header is not text."""
    headers = {exchange.name for exchange in topology.exchanges if exchange.type == "headers"}
    for bound in (bound for bound in topology.bindings if bound.source in headers):
        if all(isinstance(value, str) for value in bound.arguments.values()):
            continue
        for exchange in _exchanges_behind(topology, bound):
            value = (
                bound.arguments.get(exchange.hash_header) if isinstance(exchange.hash_header, str) else None
            )
            if value is not None and not isinstance(value, str):
                yield _warning(
                    "hash-header-value",
                    _named(exchange),
                    f"exchange {bound.source!r} leads messages to it whose header {exchange.hash_header!r} is {value!r}: "
                    "clients encode such values differently, up to 3.12 the type is hashed along, and from 3.13 on an "
                    "integer is not hashed at all: send text",
                )


def _exchanges_behind(topology: Topology, bound: Binding) -> Iterator[Exchange]:
    """The consistent-hash exchanges that a binding leads to, directly or indirectly."""
    waiting: list[Binding] = [bound]
    seen: set[str] = set()
    while waiting:
        destination = waiting.pop().destination
        if isinstance(destination, ToExchange) and destination.name not in seen:
            seen.add(destination.name)
            waiting += topology.bindings_from(destination.name)
    for name in sorted(seen):
        exchange = topology.exchange(name)
        if exchange is not None and exchange.type == CONSISTENT_HASH:
            yield exchange


# -- slots -------------------------------------------------------------------------------------------


def _slots(topology: Topology) -> Iterator[Finding]:
    for slots in topology.slots:
        where, queues = f"exchange {slots.exchange!r}", len(slots.queues)
        top = topology.exchange(slots.exchange)
        if slots.count < _SLOTS_A_QUEUE * queues:
            yield _warning(
                "few-slots",
                where,
                f"{slots.count} slots for {queues} queues: with fewer than {_SLOTS_A_QUEUE} a queue the shares are "
                f"coarse, and the number of slots can never be changed in place: take {_enough(queues)}",
            )
        if slots.count > _MANY_SLOTS:
            yield _warning(
                "many-slots",
                where,
                f"{slots.count} slots cost more broker time for each message than they are worth: take at most "
                f"{_MANY_SLOTS}",
            )
        if top is None or top.type not in (CONSISTENT_HASH, MODULUS_HASH):
            yield _error(
                "slots-top",
                where,
                f"slots need a top exchange of type {MODULUS_HASH}, or {CONSISTENT_HASH} where a header or property is "
                "hashed: declare it so",
            )
        elif top.alternate is not None:
            yield _warning(
                "slots-alternate",
                where,
                "the top exchange always finds a slot, so that its alternate exchange gets nothing: put it on the slots",
            )


def _enough(queues: int) -> int:
    return min(_MANY_SLOTS, max(64, 1 << (_SLOTS_A_QUEUE * queues - 1).bit_length()))


# -- queues and durability ---------------------------------------------------------------------------


def _drop_head(topology: Topology) -> Iterator[Finding]:
    targets = _targets(topology)
    for queue in topology.queues:
        if queue.name not in targets or queue.type == "stream":  # the limits of a stream are its retention
            continue
        policy = topology.policy_of(queue)
        ruled = {f"x-{name}": value for name, value in policy.definition.items()} if policy else {}
        settings: dict[str, Any] = {**ruled, **queue.arguments}
        limits = [name for name in ("x-max-length", "x-max-length-bytes") if name in settings]
        if limits and settings.get("x-overflow") not in _KEEPING:
            by = f" (policy {policy.name!r})" if policy and limits[0] not in queue.arguments else ""
            yield _warning(
                "drop-head",
                _named(queue.name),
                f"{limits[0]}{by} without x-overflow: reject-publish drops the oldest messages of the fullest queue, "
                "confirmed as they were: add it, so that publishers are told",
            )


def _targets(topology: Topology) -> set[str]:
    """The queues bound directly to hash exchanges or to their slots."""
    hashing = {each.name for each in topology.exchanges if each.type in (CONSISTENT_HASH, MODULUS_HASH)}
    bound = {each.destination for each in topology.bindings if each.source in hashing}
    of_slots = {name for slots in topology.slots for name in slots.queues}
    return {destination for destination in bound if isinstance(destination, str)} | of_slots


def _transient(topology: Topology) -> Iterator[Finding]:
    exchanges, queues = topology.exchanges, topology.queues
    if any(exchange.durable for exchange in exchanges) or any(queue.durable for queue in queues):
        for name in [_named(each) for each in exchanges if not each.durable] + [
            _named(each.name) for each in queues if not each.durable
        ]:
            yield _warning(
                "transient",
                name,
                "it is not durable among parts that are: it is gone after a restart, and its bindings with it: make it "
                "durable",
            )


def _short_lived(topology: Topology) -> Iterator[Finding]:
    targets = _targets(topology)
    for exchange in topology.exchanges:
        if exchange.auto_delete and exchange.type in (CONSISTENT_HASH, MODULUS_HASH):
            yield _warning(
                "short-lived",
                _named(exchange),
                "auto-delete removes it with its last binding, as in the middle of a weight change: leave it out",
            )
    for queue in topology.queues:
        if queue.name in targets and (queue.auto_delete or queue.exclusive):
            word = "auto-delete" if queue.auto_delete else "exclusive"
            yield _warning(
                "short-lived",
                _named(queue.name),
                f"{word}: whenever it goes, the buckets behind its own shift down and most keys move; when it comes back "
                "it is the last: make it a lasting queue",
            )


# -- more than one exchange --------------------------------------------------------------------------


def _co_partitioned(topology: Topology) -> Iterator[Finding]:
    for first, second in topology.co_partitioned:
        shapes = [_shape(topology, name) for name in (first, second)]
        where = f"exchanges {first!r} and {second!r}"
        if None in shapes:
            missing = second if shapes[1] is None else first
            yield _error(
                "co-partitioned",
                where,
                f"exchange {missing!r} hashes nothing here, so nothing can be partitioned like it: declare it, or end "
                "the pair",
            )
        elif shapes[0] != shapes[1]:
            yield _error(
                "co-partitioned",
                where,
                "their rings are meant to be equal and are not, so that one key has different numbers in the two: give "
                "both the same weights in the same order",
            )


def _shape(topology: Topology, name: str) -> tuple[Any, ...] | None:
    """Everything that determines the number of a key's destination; None for exchanges that do not hash."""
    exchange, slots = topology.exchange(name), topology.slots_of(name)
    if exchange is None or exchange.type not in (CONSISTENT_HASH, MODULUS_HASH):
        return None
    if slots is not None:
        return (exchange.type, slots.count, tuple(slots.queues.values()))
    bindings = topology.bindings_from(name)
    if exchange.type == MODULUS_HASH:
        return (exchange.type, len(bindings))
    return (exchange.type, tuple(_weight(bound) for bound in bindings))


RULES: Final = (
    _binding_keys,
    _double_bindings,
    _hash_arguments,
    _misspelt_arguments,
    _static_headers,
    _many_buckets,
    _slots,
    _co_partitioned,
    _drop_head,
    _transient,
    _short_lived,
)
