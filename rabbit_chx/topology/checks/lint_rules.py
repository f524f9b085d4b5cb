"""Lint rules that need no broker.

Each rule is a generator of findings for a topology, and `RULES` lists all rules. The code of a finding is stable, and
its message ends with a hint.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from math import gcd
from typing import Any, Final, Literal

from rabbit_chx.base.names import VALID_NAME, name_flaw
from rabbit_chx.base.text import listed
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.hashing import hash_on
from rabbit_chx.mirror.releases import MAX_WEIGHT
from rabbit_chx.mirror.ring import ToExchange, named
from rabbit_chx.topology.diff import weight_of
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import (
    CONSISTENT_HASH,
    HASHING,
    MODULUS_HASH,
    Binding,
    Exchange,
    Policy,
    Queue,
    Topology,
    hashing_exchanges,
    order_matters,
)
from rabbit_chx.topology.slots.slot_division import MOST_SLOTS, SLOTS_PER_QUEUE, recommended_count

_MANY_BUCKETS: Final = 500
_COSTS: Final = ((8, 6.0), (800, 31.0), (8_000, 291.0))
"""Numbers of buckets, and the measured CPU time of the broker per message on 4.3, in microseconds."""

_HASH_ARGUMENTS: Final = ("hash-header", "hash-property")
_OTHER_NAMES: Final = dict.fromkeys(("hash-on", "hash-key", "hash-by", "header"), "hash-header") | {
    "property": "hash-property",
    "alternative-exchange": "alternate-exchange",
}
"""Names that difflib does not find; hash-on is LavinMQ's."""
_ORDER_OF_STREAM: Final = "x-stream-partition-order"
_NUMBERED: Final = re.compile(r"-\+?[0-9]+\Z")
_KEEPING: Final[tuple[str, ...]] = ("reject-publish", "reject-publish-dlx")


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


_error: Final = partial(Finding, "error")
_warning: Final = partial(Finding, "warning")


# -- names -------------------------------------------------------------------------------------------


def invalid_names(topology: Topology) -> Iterator[Finding]:
    """All invalid names. Topology files cannot contain them, but a `Topology` built in Python can."""
    named = (
        ("virtual host", (topology.vhost,)),
        ("exchange", tuple(each.name for each in topology.exchanges if each.name)),
        ("queue", tuple(each.name for each in topology.queues)),
        ("policy", tuple(each.name for each in topology.policies)),
    )
    for kind, names in named:
        for name in names:
            if name_flaw(name):
                yield _error("invalid-name", f"{kind} {name!r}", f"has {name_flaw(name)}: use {VALID_NAME}")


# -- bindings of rings -------------------------------------------------------------------------------


def _binding_keys(topology: Topology) -> Iterator[Finding]:
    for exchange, bound in _ring_bindings(topology):
        where = f"binding of {named(bound.destination)} to {named(exchange)}"
        if isinstance(weight_of(bound), int):
            continue
        if re.fullmatch(r"\+?[0-9]{1,255}", bound.key, re.ASCII) and int(bound.key) > MAX_WEIGHT:
            hint = f"Use small weights with the same ratio, at most {MAX_WEIGHT:,}"
            message = f"{int(bound.key):,} buckets can kill a broker before 4.2.6, and later ones refuse them. {hint}"
            yield _error("weight-too-large", where, message)
        else:
            message = f"the broker refuses the key {bound.key!r}: expected a weight from 1 to {MAX_WEIGHT}, such as '1'"
            yield _error("binding-key", where, message)


def _double_bindings(topology: Topology) -> Iterator[Finding]:
    times = Counter((exchange.name, bound.destination) for exchange, bound in _ring_bindings(topology))
    for (name, destination), count in times.items():
        if count > 1:
            message = (
                f"{named(destination)} is bound {count} times: only the first binding takes effect, and unbinding any "
                "of them can remove all its buckets. Keep the one with the weight you want"
            )
            yield _error("double-binding", f"exchange {name!r}", message)


def _many_buckets(topology: Topology) -> Iterator[Finding]:
    for exchange in topology.hash_exchanges:
        found = map(weight_of, topology.bindings_from(exchange.name))
        weights = [weight for weight in found if isinstance(weight, int)]
        buckets = sum(weights)
        if buckets > _MANY_BUCKETS:
            divisor = gcd(*weights)
            hint = f"Divide all weights by {divisor}" if divisor > 1 else "Use smaller weights"
            # Linear between the measured points, and beyond the last.
            (x0, y0), (x1, y1) = _COSTS[:2] if buckets <= _COSTS[1][0] else _COSTS[1:]
            cost = y0 + (buckets - x0) * (y1 - y0) / (x1 - x0)
            message = f"{buckets:,} buckets cost the broker about {cost:.0f} us per message (measured on 4.3)"
            yield _warning("many-buckets", named(exchange), f"{message}. {hint}")


def _ring_bindings(topology: Topology) -> Iterator[tuple[Exchange, Binding]]:
    for exchange in topology.hash_exchanges:
        for bound in topology.bindings_from(exchange.name):
            yield exchange, bound


# -- arguments of exchanges --------------------------------------------------------------------------


def _hash_arguments(topology: Topology) -> Iterator[Finding]:
    for exchange in topology.hash_exchanges:
        header, property_ = exchange.hash_header, exchange.hash_property
        if header is not None and property_ is not None:
            message = "the broker refuses hash-header and hash-property together. Keep one"
            yield _error("both-hash-arguments", named(exchange), message)
        elif header is not None and not isinstance(header, str):
            message = (
                f"the broker closes the connection (541) because hash-header is {header!r}, which is not text"
            )
            yield _error("hash-header-type", named(exchange), f"{message}. Write it in quotes")
        else:
            try:
                hash_on(header, property_)
            except InvalidValue as error:
                yield _error("hash-argument-value", named(exchange), str(error))


def _misspelt_arguments(topology: Topology) -> Iterator[Finding]:
    for exchange in topology.exchanges:
        for name in exchange.arguments:
            meant = _meant(name, exchange)
            if name in _HASH_ARGUMENTS and exchange.type != CONSISTENT_HASH:
                message = (
                    f"exchanges of type {exchange.type} ignore {name}. Remove it, or use {CONSISTENT_HASH}"
                )
                yield _warning("ignored-hash-argument", named(exchange), message)
            elif meant is not None and meant != name:
                message = (
                    f"the broker accepts and ignores the argument {name!r}. Did you mean {meant!r}? Fix it before the "
                    "exchange is declared: arguments cannot be changed later"
                )
                yield _error("misspelt-argument", named(exchange), message)


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
        behind = reachable(topology, [bound.destination])
        for exchange in (each for each in topology.hash_exchanges if ToExchange(each.name) in behind):
            header = exchange.hash_header
            value = bound.arguments.get(header) if isinstance(header, str) else None
            if value is not None and not isinstance(value, str):
                message = (
                    f"exchange {bound.source!r} sends it messages whose header {header!r} is {value!r}: clients encode "
                    "such values differently, brokers up to 3.12 also hash the type, and later ones do not hash "
                    "integers. Use text"
                )
                yield _warning("hash-header-value", named(exchange), message)


# -- slots -------------------------------------------------------------------------------------------


def _slots(topology: Topology) -> Iterator[Finding]:
    for slots in topology.slots:
        where, queues = f"exchange {slots.exchange!r}", len(slots.queues)
        top = topology.exchange(slots.exchange)
        if slots.count < SLOTS_PER_QUEUE * queues:
            message = (
                f"shares are coarse with fewer than {SLOTS_PER_QUEUE} slots per queue, and the number of slots cannot be "
                f"changed in place. Use {recommended_count(queues)} instead of {slots.count}"
            )
            yield _warning("few-slots", where, message)
        if slots.count > MOST_SLOTS:
            message = f"{slots.count} slots cost broker time for every message. Use at most {MOST_SLOTS}"
            yield _warning("many-slots", where, message)
        if top is None or top.type not in HASHING:
            message = f"the top exchange of slots does not hash. Use {MODULUS_HASH}, or {CONSISTENT_HASH} for a header"
            yield _error("slots-top", where, message)
        elif top.alternate is not None:
            message = (
                "its alternate exchange receives nothing: every message finds a slot. Set that of the slots"
            )
            yield _warning("slots-alternate", where, message)


# -- queues and durability ---------------------------------------------------------------------------


def _drop_head(topology: Topology) -> Iterator[Finding]:
    targets = _targets(topology)
    for queue in topology.queues:
        if queue.name not in targets or queue.type == "stream":  # the limits of a stream are its retention
            continue
        found = (_dropping_limit(queue, policy) for policy in topology._policies_of(queue))
        if limit := next(filter(None, found), None):
            message = f"{limit} drops confirmed messages when the queue is full"
            hint = "Add x-overflow: reject-publish, so that publishers get an error instead"
            yield _warning("drop-head", named(queue.name), f"{message}. {hint}")


def _dropping_limit(queue: Queue, policy: Policy | None) -> str | None:
    """The limit at which a queue with this policy drops messages, if it has one and does not reject them instead."""
    ruled = {f"x-{name}": value for name, value in policy.definition.items()} if policy else {}
    settings: dict[str, Any] = {**ruled, **queue.arguments}
    limit = next((name for name in ("x-max-length", "x-max-length-bytes") if name in settings), None)
    overflow, keeping = settings.get("x-overflow"), _KEEPING
    if queue.type == "quorum":
        # rabbit_quorum_queue:gather_policy_config: the policy wins, and only reject-publish is supported.
        overflow, keeping = ruled.get("x-overflow", overflow), _KEEPING[:1]
    if limit is None or overflow in keeping:
        return None
    return f"{limit} (policy {policy.name!r})" if policy and limit not in queue.arguments else limit


# rabbit_stream_manager.erl, partition_index/3: the argument of the binding, or else the integer after the last hyphen of
# the name, or else -1. The active consumer of a stream is the member with the number `index rem members`.
def _stream_order(topology: Topology) -> Iterator[Finding]:
    streams = {queue.name for queue in topology.queues if queue.type == "stream"}
    for name in hashing_exchanges(topology):
        bound = [each for each in topology.bindings_from(name) if each.destination in streams]
        unmarked = [str(each.destination) for each in bound if _ORDER_OF_STREAM not in each.arguments]
        without = dict.fromkeys(stream for stream in unmarked if not _NUMBERED.search(stream))
        if len(bound) > 1 and without:
            message = (
                f"one member of a stream group gets all of {listed(list(without))}, because the broker finds no number: name the "
                f"streams {name}-0, {name}-1 and so on, or bind each with a number in the argument {_ORDER_OF_STREAM}"
            )
            yield _warning("stream-order", f"exchange {name!r}", message)


def _targets(topology: Topology) -> set[str]:
    """The queues bound directly to hash exchanges or to their slots."""
    hashing = hashing_exchanges(topology)
    bound = {each.destination for each in topology.bindings if each.source in hashing}
    of_slots = {name for slots in topology.slots for name in slots.queues}
    return {destination for destination in bound if isinstance(destination, str)} | of_slots


def _transient(topology: Topology) -> Iterator[Finding]:
    parts: tuple[Exchange | Queue, ...] = (*topology.exchanges, *topology.queues)
    if any(each.durable for each in parts):
        message = (
            "is not durable, although others are: a restart removes it and its bindings. Make it durable"
        )
        for part in parts:
            if not part.durable:
                where = named(part.name if isinstance(part, Queue) else part)
                yield _warning("transient", where, message)


def _short_lived(topology: Topology) -> Iterator[Finding]:
    targets = _targets(topology)
    for exchange in topology.exchanges:
        if exchange.auto_delete and exchange.type in HASHING:
            message = "auto-delete removes it with its last binding, even during a weight change. Remove auto-delete"
            yield _warning("short-lived", named(exchange), message)
    for queue in topology.queues:
        if queue.name in targets and (queue.auto_delete or queue.exclusive):
            word = "auto-delete" if queue.auto_delete else "exclusive"
            message = (
                f"the queue is {word}: when the broker deletes it, the buckets after its own shift and most keys move; "
                "a new binding comes last. Use a permanent queue"
            )
            yield _warning("short-lived", named(queue.name), message)


# -- policies ----------------------------------------------------------------------------------------


def _policy_patterns(topology: Topology) -> Iterator[Finding]:
    things: tuple[Exchange | Queue, ...] = (*topology.exchanges, *topology.queues)
    for policy in topology.policies:
        unknown = [thing.name for thing in things if policy._applies_to(thing) is None]
        if unknown:
            message = (
                f"only the broker knows whether its pattern {policy.pattern!r} matches {unknown[0]!r}: other engines may "
                "read it differently. Other checks assume that it may. Use ASCII letters and digits, escaped "
                "punctuation, classes such as [a-z], groups, |, ^, $, and few repetitions, none within another"
            )
            yield _warning("policy-pattern", f"policy {policy.name!r}", message)


# -- unknown orders ----------------------------------------------------------------------------------


def _unknown_order(topology: Topology) -> Iterator[Finding]:
    for exchange in topology.hash_exchanges:
        if exchange.name in topology.unordered and order_matters(topology.bindings_from(exchange.name)):
            message = (
                "the file does not know its bind order, so no routes are predicted from the file, and every order "
                "matches it. Export the exchange again, with access to a node"
            )
            yield _warning("unknown-order", named(exchange), message)


# -- more than one exchange --------------------------------------------------------------------------


def _co_partitioned(topology: Topology) -> Iterator[Finding]:
    for first, second in topology.co_partitioned:
        shapes = [_shape(topology, name) for name in (first, second)]
        where = f"exchanges {first!r} and {second!r}"
        if {first, second} & topology.unordered:
            continue
        if None in shapes:
            missing = second if shapes[1] is None else first
            message = (
                f"exchange {missing!r} is not a hash exchange of this file. Declare it, or remove the pair"
            )
            yield _error("co-partitioned", where, message)
        elif shapes[0] != shapes[1]:
            message = "the rings must be equal, but differ. Give both the same weights in the same order"
            yield _error("co-partitioned", where, message)


def _shape(topology: Topology, name: str) -> tuple[Any, ...] | None:
    """Everything that determines the number of a key's destination; None for exchanges that do not hash."""
    exchange, slots = topology.exchange(name), topology.slots_of(name)
    if exchange is None or exchange.type not in HASHING:
        return None
    if slots is not None:
        return (exchange.type, slots.count, tuple(slots.queues.values()))
    bindings = topology.bindings_from(name)
    if exchange.type == MODULUS_HASH:
        return (exchange.type, len(bindings))
    return (exchange.type, tuple(map(weight_of, bindings)))


RULES: Final = (
    invalid_names,
    _binding_keys,
    _double_bindings,
    _hash_arguments,
    _misspelt_arguments,
    _static_headers,
    _many_buckets,
    _slots,
    _co_partitioned,
    _drop_head,
    _stream_order,
    _transient,
    _short_lived,
    _policy_patterns,
    _unknown_order,
)
