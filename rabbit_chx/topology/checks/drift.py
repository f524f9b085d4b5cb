"""Drift: the differences between a broker and its file, as messages and as metrics in Prometheus's text format.

Without ``strict``, objects that the file does not name are ignored, except bindings of exchanges that hash: other
programs may have made them. Any division of slots by the weights of the queues is valid.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.text import counted
from rabbit_chx.errors import InvalidValue, Unpredictable
from rabbit_chx.mirror.ring import Destination, Ring, named
from rabbit_chx.topology.diff import (
    BindingDifference,
    DestinationDifference,
    Difference,
    MissingType,
    ObjectDifference,
    RingDifference,
    SlotsDifference,
    diff,
    weight_of,
)
from rabbit_chx.topology.model import (
    Binding,
    Exchange,
    Observed,
    Policy,
    Queue,
    Topology,
    bound_in,
    bound_to,
    hashing_exchanges,
    ring_in_order,
    wire_text,
)

SECOND_BINDING: Final = "second-binding"
"""The kind of a further binding without effect: it may stay, but to unbind any binding of its queue can remove all its buckets."""
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
    SECOND_BINDING,
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
    "co-partitioned",
    "stranded",
)
"""All kinds of drift."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference."""

    kind: str
    """One of `KINDS`."""
    where: str
    message: str
    misrouted: float | None = None
    """For the kinds ``ring`` and ``ring-order``: the exact share of keys on another queue than the file's."""
    queue: str | None = None
    """The name of the queue, if the difference is about a queue or its binding."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.kind}]"


def drift(wanted: Topology, observed: Observed, *, strict: bool = False) -> tuple[Drift, ...]:
    """All differences, in the order of `KINDS`; empty if the broker matches the file."""
    found: list[Drift] = []
    missing: set[str] = set()
    for each in diff(wanted, observed):
        if isinstance(each, ObjectDifference) and each.found is None and isinstance(each.wanted, Exchange):
            missing.add(each.wanted.name)
        found += _drifts(each, observed, missing, strict=strict)
    if observed.bindings_seen:
        found += _co_partitioned(wanted, observed, missing)
        for left in stranded(wanted, observed):
            message = (
                f"holds {counted(left.messages, 'message')}, but is no longer bound to exchange {left.exchange!r}: consume them, then "
                "delete it"
            )
            found.append(Drift("stranded", f"queue {left.queue!r}", message, queue=left.queue))
    return tuple(sorted(found, key=lambda one: KINDS.index(one.kind)))


def _drifts(
    difference: Difference, observed: Observed, missing: set[str], *, strict: bool
) -> Iterator[Drift]:
    """The drift that one difference causes; bindings of a missing exchange are not reported separately."""
    match difference:
        case MissingType():
            yield Drift("missing-type", f"exchange type {difference.type}", difference.reason)
        case ObjectDifference() if strict or difference.wanted is not None:
            if observed.bindings_seen or not isinstance(difference.wanted or difference.found, Policy):
                yield from _object(difference)
        case BindingDifference():
            seen = observed.bindings_seen and difference.binding.source not in missing
            if seen and (strict or not difference.optional):
                kind, where = "extra" if difference.wanted is None else "missing", _where(difference.binding)
                arguments = dict(difference.binding.arguments)
                key = f"key {difference.binding.key!r}" + (
                    f", arguments {wire_text(arguments)}" if arguments else ""
                )
                text = f"missing (expected {key})" if difference.wanted else f"{key}: not in the file"
                yield Drift(f"{kind}-binding", where, text, queue=_queue(difference.binding))
        case RingDifference() if difference.exchange not in missing:
            if observed.bindings_seen:
                yield from map(_destination, difference.destinations)
            yield from _ring(difference, observed)
        case SlotsDifference() if observed.bindings_seen:
            yield from _slots(difference, missing)


# Exchanges, queues and policies


def _object(difference: ObjectDifference) -> Iterator[Drift]:
    wanted, found = difference.wanted, difference.found
    thing = wanted or found
    assert thing is not None
    kind = type(thing).__name__.lower()
    where = f"{kind} {thing.name!r}"
    queue = thing.name if isinstance(thing, Queue) else None
    if found is None:
        shape = f"pattern {thing.pattern!r}" if isinstance(thing, Policy) else f"type {thing.type}"
        yield Drift(f"missing-{kind}", where, f"missing (expected {shape})", queue=queue)
    elif wanted is None:
        yield Drift(f"extra-{kind}", where, "not in the file", queue=queue)
    for changed in difference.properties:
        message = f"{changed.name} is {wire_text(changed.found)}, expected {wire_text(changed.wanted)}"
        if changed.is_argument:
            again = "declaring it again would not change it"
            yield Drift("arguments", where, f"argument {message}; {again}", queue=queue)
        else:
            yield Drift("policy" if isinstance(thing, Policy) else "attributes", where, message, queue=queue)


# Bindings


def _destination(difference: DestinationDifference) -> Drift:
    found = difference.found
    binding = difference.wanted or found[0]
    match difference.kind:
        case "missing":
            kind, message = "missing-binding", f"missing (expected weight {binding.key})"
        case "extra":
            effect = "it has no bucket" if difference.is_dead else "it takes keys from the others"
            kind, message = "extra-binding", f"weight {found[0].key}: not in the file, and {effect}"
        case "duplicate":
            weights = ", ".join(str(weight_of(each)) for each in found)
            kind = SECOND_BINDING if difference.is_spare else "extra-binding"
            message = f"bound {len(found)} times (weights {weights}): only the first takes effect"
        case "weight":
            kind, message = "weight", f"weight is {weight_of(found[0])!r}, expected {weight_of(binding)!r}"
        case "dead":
            kind = "dead-binding"
            message = (
                f"dead: it is listed (weight {found[0].key}) but has no bucket, so it gets no message; unbind it and "
                "bind it again"
            )
        case "arguments":
            theirs, ours = (wire_text(dict(each.arguments)) for each in (found[0], binding))
            kind, message = "arguments", f"arguments are {theirs}, expected {ours}"
    return Drift(kind, _where(binding), message, queue=_queue(binding))


def _queue(binding: Binding) -> str | None:
    return binding.destination if isinstance(binding.destination, str) else None


def _where(binding: Binding) -> str:
    return f"binding of {named(binding.destination)} to exchange {binding.source!r}"


# Rings


def _ring(difference: RingDifference, observed: Observed) -> Iterator[Drift]:
    where, expected = f"exchange {difference.exchange!r}", _expected(difference)
    if difference.why_unknown:
        message = (
            f"the order of its buckets is unknown ({difference.why_unknown}){_explained(difference, expected, observed)}"
            f"; {Advice.LEARN_ORDER}"
        )
        yield Drift("ring-unknown", where, message)
    elif expected is not None:
        yield from ring_drift(difference.exchange, expected, difference.ring)


def ring_drift(exchange: str, expected: Ring, found: Ring) -> Iterator[Drift]:
    """The difference between two rings of known order, if any."""
    if expected.runs == found.runs:
        return
    from rabbit_chx.mirror.movement import moved

    share = moved(expected, found).share
    kind, what = "ring", "its ring is not that of the file"
    if Counter(expected.runs) == Counter(found.runs):
        kind, what = "ring-order", "its buckets are in another order than in the file"
    message = f"{what}: {share:.1%} of the keys go elsewhere than the file says"
    yield Drift(kind, f"exchange {exchange!r}", message, misrouted=share)


def _expected(difference: RingDifference) -> Ring | None:
    """The ring of the file; None if lint reports its bindings as errors that leave no ring."""
    try:
        return ring_in_order(difference.wanted, difference.ring.release)
    except (InvalidValue, Unpredictable):
        return None


def _explained(difference: RingDifference, expected: Ring | None, observed: Observed) -> str:
    """Describe the rings that observed messages leave possible."""
    possible = observed.possible_rings.get(difference.exchange, ())
    if not possible or expected is None:
        return ""
    fits = any(ring.runs == expected.runs for ring in possible)
    orders = f"the {len(possible)} orders that explain the observed messages"
    return f"; the file's order is {'one' if fits else 'none'} of {orders}"


# Slots


def _slots(difference: SlotsDifference, missing: set[str]) -> Iterator[Drift]:
    slots = difference.slots
    rings = [ring for ring in difference.rings if ring.exchange not in missing]
    wrong = [each for ring in rings for each in _slot(ring, slots.exchange, slots.queues)]
    yield from wrong
    if not wrong and not missing & set(slots.names):
        yield from _balance(difference)


def _slot(ring: RingDifference, top: str, queues: Iterable[str]) -> Iterator[Drift]:
    where = f"slot exchange {ring.exchange!r}"
    held = dict.fromkeys(binding.destination for binding in ring.found)
    if not held:
        yield Drift("slot", where, f"leads to no queue: messages from {top!r} are lost there")
    elif len(held) > 1:
        yield Drift("slot", where, f"leads to {', '.join(map(named, held))}: an unfinished change")
    elif not held.keys() <= set(queues):
        yield Drift("slot", where, f"leads to {', '.join(map(named, held))}, which the file does not name")
    else:
        yield from (_destination(each) for each in ring.destinations if each.found and each.wanted)


def _balance(difference: SlotsDifference) -> Iterator[Drift]:
    """Describe the queues that have more or fewer slots than their weights require."""
    slots = difference.slots
    expected = Counter(difference.division.values())
    counts = Counter(expected)
    for ring in difference.rings:
        counts[difference.division[ring.exchange]] -= 1
        counts[str(ring.found[0].destination)] += 1
    for queue in slots.queues:
        if counts[queue] != expected[queue]:
            message = f"queue {queue!r} has {counts[queue]} of {slots.count} slots, expected {expected[queue]} by its weight"
            yield Drift("slot-balance", f"exchange {slots.exchange!r}", message)


def _co_partitioned(wanted: Topology, observed: Observed, missing: set[str]) -> Iterator[Drift]:
    """The pairs that send a key to queues of different numbers; each division of slots alone may be as wanted."""
    for pair in wanted.co_partitioned:
        first, second = (_live_numbers(wanted, observed, name) for name in pair)
        if None in (first, second) or first == second or {*pair} & (missing | wanted.unordered):
            continue
        message = "they send a key to queues of different numbers, so what belongs together is separated"
        yield Drift("co-partitioned", f"exchanges {pair[0]!r} and {pair[1]!r}", message)


def _live_numbers(wanted: Topology, observed: Observed, exchange: str) -> list[int | None] | None:
    """The number of each bucket's or slot's destination in the file; None if the ring is unknown."""
    slots, ring = wanted.slots_of(exchange), observed.rings.get(exchange)
    there: list[Destination]
    if slots is not None:
        listed: list[Destination] = list(slots.queues)
        there = [bound.destination for name in slots.names for bound in observed.topology.bindings_from(name)]
    elif ring is not None and ring.known:
        listed = list(dict.fromkeys(bound.destination for bound in wanted.bindings_from(exchange)))
        there = list(ring.bucket_map)
    else:
        return None
    numbers = {destination: number for number, destination in enumerate(listed)}
    return [numbers.get(destination) for destination in there]


# Metrics

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def prometheus_metrics(drifts: Iterable[Drift], *, vhost: str, checked_at: float) -> str:
    """The exposition text of one check; ``vhost`` is a label of every metric.

    ``checked_at`` is the time of the check in seconds since 1970, so that an alert can detect checks that stopped.
    """
    drifts = list(drifts)
    counts = Counter(each.kind for each in drifts)
    # Every kind has a line, with 0 if there is none, so that alerts always have a value.
    kinds = [({"vhost": vhost, "kind": kind}, counts[kind]) for kind in KINDS]
    lines = [*_metric("drift", "Differences between the broker and its topology file, by kind.", kinds)]
    shares = [({"vhost": vhost, "where": each.where}, each.misrouted) for each in drifts]
    if misrouted := [(labels, share) for labels, share in shares if share is not None]:
        meaning = "Share of the keys of an exchange that go elsewhere than the file says."
        lines += _metric("misrouted_share", meaning, misrouted)
    meaning = "When the broker was last compared with its topology file."
    lines += _metric("check_timestamp_seconds", meaning, [({"vhost": vhost}, checked_at)])
    return "".join(f"{line}\n" for line in lines)


def _metric(name: str, meaning: str, samples: Iterable[tuple[dict[str, str], float]]) -> Iterator[str]:
    yield f"# HELP rabbit_chx_{name} {meaning}"
    yield f"# TYPE rabbit_chx_{name} gauge"
    for labels, value in samples:
        shown = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items())
        yield f"rabbit_chx_{name}{{{shown}}} {value!r}"


_NUMBER: Final = re.compile("[0-9]+")


@dataclass(frozen=True, slots=True)
class Stranded:
    """A queue that is not bound and holds messages, and the exchange that it was bound to."""

    queue: str
    exchange: str
    messages: int


def stranded(
    wanted: Topology, observed: Observed, messages: Mapping[str, int] | None = None
) -> Iterator[Stranded]:
    """The queues with messages that were part of an exchange of ``wanted`` and are bound to nothing now.

    A queue was part of an exchange if the record on the broker says so, or if it has the name of one of the exchange's
    queues with another number. Queues that ``wanted`` binds are missing bindings, and not listed here. By default, the
    numbers of messages are those of ``observed``.
    """
    counts = observed.backlog if messages is None else messages
    bound = bound_in(observed.topology) | bound_in(wanted)
    loose = {name: count for name, count in counts.items() if count and name not in bound}
    named = {queue.name for queue in wanted.queues}
    for exchange in hashing_exchanges(wanted):
        queues = bound_to(wanted, exchange) | bound_to(observed.topology, exchange)
        families = {_family(queue) for queue in queues if isinstance(queue, str)} - {None}
        recorded = observed.recorded.get(exchange, frozenset())
        for name in sorted(loose):
            if name in recorded or (name not in named and _family(name) in families):
                yield Stranded(name, exchange, loose.pop(name))


def _family(name: str) -> str | None:
    """A name without its numbers; None for a name that has none."""
    family, count = _NUMBER.subn("#", name)
    return family if count else None
