"""How a broker differs from its file: what is missing, what is extra, and which keys take another way.

Extra is what the file speaks of: bindings of its exchanges. Exchanges, queues and policies that it does not name are
somebody else's, and are listed only when asked for (``strict``). Of slots, any division of the queues by their weights
is as wanted. Pure; `metrics` writes it down for Prometheus.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import InvalidValue, RabbitChxError
from rabbit_chx.ring import ToExchange, parse_weight
from rabbit_chx.topology.checks.lint import missing_types, other_product
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rabbit_chx.ring import Destination, Ring
    from rabbit_chx.topology.model import Binding, Exchange, Observed, Policy, Queue, Slots, Topology

__all__ = ["KINDS", "Drift", "drift"]

KINDS: Final = (
    "missing-type",
    "missing-exchange",
    "missing-queue",
    "missing-binding",
    "missing-policy",
    "extra-exchange",
    "extra-queue",
    "extra-binding",
    "extra-policy",
    "attributes",
    "arguments",
    "policy",
    "weight",
    "dead-binding",
    "ring",
    "ring-order",
    "ring-unknown",
    "slot",
    "slot-balance",
)
"""Every kind of drift there is."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference."""

    kind: str
    """One of `KINDS`."""
    where: str
    message: str
    misrouted: float | None = None
    """Of the kinds ``ring`` and ``ring-order``: the exact share of keys that go elsewhere than the file says."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.kind}]"


def drift(wanted: Topology, observed: Observed, *, strict: bool = False) -> tuple[Drift, ...]:
    """All differences, in the order of `KINDS`; none where the broker is as the file has it."""
    found = [
        *_types(wanted, observed),
        *_exchanges(wanted, observed.topology, strict=strict),
        *_queues(wanted, observed.topology, strict=strict),
        *_rings(wanted, observed),
    ]
    if observed.bindings_seen:
        found += _policies(wanted, observed.topology, strict=strict)
        found += _bindings(wanted, observed.topology, strict=strict)
        found += _slots(wanted, observed.topology)
    return tuple(sorted(found, key=lambda one: KINDS.index(one.kind)))


# -- things ------------------------------------------------------------------------------------------


def _types(wanted: Topology, observed: Observed) -> Iterator[Drift]:
    for type_, hint in missing_types(wanted, observed).items():
        yield Drift("missing-type", f"exchange type {type_}", f"the broker does not have it: {hint}")


def _exchanges(wanted: Topology, there: Topology, *, strict: bool) -> Iterator[Drift]:
    live = {exchange.name: exchange for exchange in there.exchanges}
    listed = _all_exchanges(wanted)
    for exchange in listed:
        where = f"exchange {exchange.name!r}"
        if exchange.name in live:
            yield from _differences(
                where, exchange, live[exchange.name], ("durable", "auto_delete", "internal")
            )
        else:
            yield Drift("missing-exchange", where, f"there is none (wanted: type {exchange.type})")
    if strict:
        named = {exchange.name for exchange in listed}
        for name in live:
            if name and name not in named and not name.startswith("amq."):
                yield Drift("extra-exchange", f"exchange {name!r}", "the file does not name it")


def _queues(wanted: Topology, there: Topology, *, strict: bool) -> Iterator[Drift]:
    live = {queue.name: queue for queue in there.queues}
    for queue in wanted.queues:
        where = f"queue {queue.name!r}"
        if queue.name in live:
            yield from _differences(where, queue, live[queue.name], ("durable", "auto_delete", "exclusive"))
        else:
            yield Drift("missing-queue", where, f"there is none (wanted: type {queue.type})")
    if strict:
        named = {queue.name for queue in wanted.queues}
        for queue in there.queues:
            if queue.name not in named and not _of_a_client(queue):
                yield Drift("extra-queue", f"queue {queue.name!r}", "the file does not name it")


def _differences(
    where: str, wanted: Exchange | Queue, there: Exchange | Queue, flags: Sequence[str]
) -> Iterator[Drift]:
    for flag in ("type", *flags):
        if getattr(wanted, flag) != getattr(there, flag):
            yield Drift("attributes", where, _differs(flag, getattr(wanted, flag), getattr(there, flag)))
    for name in sorted(wanted.arguments.keys() | there.arguments.keys()):
        ours, theirs = wanted.arguments.get(name), there.arguments.get(name)
        if _text(ours) != _text(theirs):
            message = _differs(f"argument {name}", ours, theirs)
            yield Drift("arguments", where, f"{message}; declaring it again would not change it")


def _policies(wanted: Topology, there: Topology, *, strict: bool) -> Iterator[Drift]:
    live = {policy.name: policy for policy in there.policies}
    for policy in wanted.policies:
        where = f"policy {policy.name!r}"
        if policy.name in live:
            yield from _policy_differences(where, policy, live[policy.name])
        else:
            yield Drift("missing-policy", where, f"there is none (wanted: on {policy.pattern!r})")
    if strict:
        named = {policy.name for policy in wanted.policies}
        for name in live:
            if name not in named:
                yield Drift("extra-policy", f"policy {name!r}", "the file does not name it")


def _policy_differences(where: str, wanted: Policy, there: Policy) -> Iterator[Drift]:
    for part in ("pattern", "apply_to", "priority", "definition"):
        ours, theirs = getattr(wanted, part), getattr(there, part)
        if _text(ours) != _text(theirs):
            yield Drift("policy", where, _differs(part.replace("_", "-"), ours, theirs))


# -- bindings ----------------------------------------------------------------------------------------


def _bindings(wanted: Topology, there: Topology, *, strict: bool) -> Iterator[Drift]:
    ours, theirs = _by_source(wanted.bindings), _by_source(there.bindings)
    for slots in wanted.slots:
        ours[slots.exchange] += slots.top_bindings
    fleeting = set() if strict else {queue.name for queue in there.queues if _of_a_client(queue)}
    live = {exchange.name for exchange in there.exchanges}
    for exchange in (exchange for exchange in wanted.exchanges if exchange.name in live):
        pair = ours[exchange.name], theirs[exchange.name]
        if exchange.type == CONSISTENT_HASH:
            yield from _weights(exchange.name, *pair)
        else:
            hashing = exchange.type == MODULUS_HASH
            yield from _plain_bindings(exchange.name, *pair, leave_alone=set() if hashing else fleeting)


def _weights(source: str, wanted: Iterable[Binding], there: Iterable[Binding]) -> Iterator[Drift]:
    """To a ring a destination is bound once, and its weight is all there is to the binding."""
    live: defaultdict[Destination, list[Binding]] = defaultdict(list)
    for bound in there:
        live[bound.destination].append(bound)
    listed = {bound.destination: bound for bound in wanted}
    for destination, bound in listed.items():
        where, found = _binding(source, destination), live[destination]
        weights = [_weight(each) for each in found]
        if not found:
            yield Drift("missing-binding", where, f"there is none (wanted: weight {bound.key})")
        elif len(found) > 1:
            message = f"there are {len(found)} (weights {', '.join(map(str, weights))}), of which the first alone counts"
            yield Drift("extra-binding", where, message)
        elif weights != [_weight(bound)]:
            yield Drift("weight", where, _differs("weight", _weight(bound), weights[0]))
        elif _text(bound.unnumbered.arguments) != _text(found[0].unnumbered.arguments):
            ours, theirs = bound.unnumbered.arguments, found[0].unnumbered.arguments
            yield Drift("arguments", where, _differs("arguments", ours, theirs))
    for bound in (each for destination in live if destination not in listed for each in live[destination]):
        message = f"weight {bound.key}: the file does not name it, and it takes keys from the others"
        yield Drift("extra-binding", _binding(source, bound.destination), message)


def _plain_bindings(
    source: str, wanted: Iterable[Binding], there: Iterable[Binding], *, leave_alone: set[str]
) -> Iterator[Drift]:
    ours, theirs = ({_identity(bound): bound for bound in bindings} for bindings in (wanted, there))
    for identity, bound in ours.items():
        if identity not in theirs:
            where = _binding(source, bound.destination)
            yield Drift("missing-binding", where, f"there is none (wanted: {_key_and_arguments(bound)})")
    for identity, bound in theirs.items():
        if identity not in ours and bound.destination not in leave_alone:
            where = _binding(source, bound.destination)
            yield Drift("extra-binding", where, f"{_key_and_arguments(bound)}: the file does not name it")


def _by_source(bindings: Iterable[Binding]) -> defaultdict[str, list[Binding]]:
    by_source: defaultdict[str, list[Binding]] = defaultdict(list)
    for bound in bindings:
        by_source[bound.source].append(bound)
    return by_source


def _weight(bound: Binding) -> int | str:
    try:
        return parse_weight(bound.key, of=bound.destination)
    except InvalidValue:
        return bound.key


def _identity(bound: Binding) -> tuple[Destination, str, str]:
    return (bound.destination, bound.key, _text(bound.unnumbered.arguments))


# -- rings and slots ---------------------------------------------------------------------------------


def _rings(wanted: Topology, observed: Observed) -> Iterator[Drift]:
    for exchange in wanted.hash_exchanges:
        there = observed.topology.exchange(exchange.name)
        if there is not None and there.type == CONSISTENT_HASH:
            yield from _ring(wanted, observed, exchange.name)
    for name in (name for slots in wanted.slots for name in slots.names):
        ring = observed.rings.get(name)
        if ring is not None and ring.known:
            yield from _dead(name, ring)


def _ring(wanted: Topology, observed: Observed, name: str) -> Iterator[Drift]:
    where, ring = f"exchange {name!r}", observed.rings.get(name)
    reason = other_product(observed) or ("nobody has read it" if ring is None else ring.why_unknown)
    if ring is None or not ring.known or other_product(observed):
        yield Drift(
            "ring-unknown",
            where,
            f"the order of its buckets is unknown ({reason}){_explained(wanted, observed, name)}: a node tells it "
            "(--node), or messages do (--pairs, --probe)",
        )
        return
    yield from _dead(name, ring)
    expected = _wanted_ring(wanted, observed, name)
    if expected is None or expected.bucket_map == ring.bucket_map:
        return
    from rabbit_chx.movement import moved

    share = moved(expected, ring).share
    same = Counter(expected.bucket_map) == Counter(ring.bucket_map)
    what = (
        "its buckets stand in another order than in the file" if same else "its ring is not that of the file"
    )
    yield Drift(
        "ring-order" if same else "ring",
        where,
        f"{what}: {share:.1%} of the keys go elsewhere than the file says",
        misrouted=share,
    )


def _explained(wanted: Topology, observed: Observed, name: str) -> str:
    """What is left of the doubt where messages were observed."""
    possible = observed.possible_rings.get(name, ())
    expected = _wanted_ring(wanted, observed, name)
    if not possible or expected is None:
        return ""
    fits = any(ring.bucket_map == expected.bucket_map for ring in possible)
    orders = f"{len(possible)} orders that explain the messages observed"
    return f"; the file's is one of {orders}" if fits else f"; the file's is none of {orders}"


def _wanted_ring(wanted: Topology, observed: Observed, name: str) -> Ring | None:
    """None where the file's own bindings make no ring; lint says why."""
    try:
        return wanted.ring(name, observed.release)
    except RabbitChxError:
        return None


def _dead(name: str, ring: Ring) -> Iterator[Drift]:
    for binding in ring.dead:
        yield Drift(
            "dead-binding",
            _binding(name, binding.destination),
            f"it is listed (weight {binding.key}) and has no bucket, so that no message takes it: unbind it and bind it "
            "again",
        )


def _slots(wanted: Topology, there: Topology) -> Iterator[Drift]:
    live = {exchange.name for exchange in there.exchanges}
    by_source = _by_source(there.bindings)
    for slots in wanted.slots:
        names = [name for name in slots.names if name in live]
        unfinished = [one for name in names for one in _slot(slots, name, by_source[name])]
        yield from unfinished
        if not unfinished and len(names) == slots.count:
            yield from _balance(slots, [by_source[name][0].destination for name in names])


def _slot(slots: Slots, name: str, bindings: Sequence[Binding]) -> Iterator[Drift]:
    where = f"slot exchange {name!r}"
    if not bindings:
        yield Drift("slot", where, f"it leads to no queue: what {slots.exchange!r} sends it is lost")
    elif len(bindings) > 1:
        names = ", ".join(_named(bound.destination) for bound in bindings)
        yield Drift("slot", where, f"it leads to {names}: a change that was not finished")
    elif bindings[0].destination not in slots.queues:
        yield Drift(
            "slot", where, f"it leads to {_named(bindings[0].destination)}, which the file does not name"
        )


def _balance(slots: Slots, destinations: Iterable[Destination]) -> Iterator[Drift]:
    """Each queue's part, rounded up or down."""
    counts, total = Counter(destinations), sum(slots.queues.values())
    for queue, weight in slots.queues.items():
        exact = slots.count * weight / total
        if not floor(exact) <= counts[queue] <= ceil(exact):
            where = f"exchange {slots.exchange!r}"
            message = f"queue {queue!r} has {counts[queue]} of {slots.count} slots, by its weight it should have {exact:g}"
            yield Drift("slot-balance", where, message)


# -- words -------------------------------------------------------------------------------------------


def _all_exchanges(wanted: Topology) -> list[Exchange]:
    return [*wanted.exchanges, *(exchange for slots in wanted.slots for exchange in slots.exchanges)]


def _of_a_client(queue: Queue) -> bool:
    """Whether a client made it for as long as it runs."""
    return queue.exclusive or queue.auto_delete or queue.name.startswith("amq.gen-")


def _text(value: Any) -> str:
    """To compare by: to Python 1 and True are equal, to a broker not."""
    return json.dumps(value, sort_keys=True, default=str)


def _differs(what: str, wanted: object, there: object) -> str:
    return f"{what.replace('_', '-')} is {there!r}, wanted is {wanted!r}"


def _named(destination: Destination) -> str:
    return (
        f"exchange {destination.name!r}" if isinstance(destination, ToExchange) else f"queue {destination!r}"
    )


def _binding(source: str, destination: Destination) -> str:
    return f"binding of {_named(destination)} to exchange {source!r}"


def _key_and_arguments(bound: Binding) -> str:
    arguments = bound.unnumbered.arguments
    return f"key {bound.key!r}" + (f", arguments {dict(arguments)!r}" if arguments else "")
