"""Drift: the differences between a broker and its file, as messages and for metrics.

Without ``strict``, objects that the file does not name are ignored, except bindings of exchanges that hash: other
programs may have made them. Any division of slots by the weights of the queues is valid. This module does no IO.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from rabbit_chx.advice import Advice
from rabbit_chx.ring import Ring, named
from rabbit_chx.text import counted
from rabbit_chx.topology.checks.stranded import Stranded, stranded
from rabbit_chx.topology.diff import (
    BindingDifference,
    DestinationDifference,
    Difference,
    MissingType,
    ObjectDifference,
    Property,
    RingDifference,
    SlotsDifference,
    diff,
    weight_of,
)
from rabbit_chx.topology.model import Binding, Exchange, Observed, Policy, Queue, Topology, wire_text

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
        found += map(_stranded, stranded(wanted, observed))
    return tuple(sorted(found, key=lambda one: KINDS.index(one.kind)))


def _stranded(found: Stranded) -> Drift:
    message = (
        f"holds {counted(found.messages, 'message')}, but is no longer bound to exchange {found.exchange!r}: consume them, then "
        "delete it"
    )
    return Drift("stranded", f"queue {found.queue!r}", message, queue=found.queue)


def _drifts(
    difference: Difference, observed: Observed, missing: set[str], *, strict: bool
) -> Iterator[Drift]:
    """The drift that one difference causes; bindings of a missing exchange are not reported separately."""
    match difference:
        case MissingType():
            yield Drift("missing-type", f"exchange type {difference.type}", difference.reason)
        case ObjectDifference(wanted=Policy()) | ObjectDifference(wanted=None, found=Policy()):
            if observed.bindings_seen and (strict or difference.wanted is not None):
                yield from _object(difference)
        case ObjectDifference():
            if strict or difference.wanted is not None:
                yield from _object(difference)
        case BindingDifference():
            seen = observed.bindings_seen and difference.binding.source not in missing
            if seen and (strict or not difference.optional):
                kind, where = "extra" if difference.wanted is None else "missing", _where(difference.binding)
                key = _key_and_arguments(difference.binding)
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
        one = _property(where, changed, is_policy=isinstance(thing, Policy))
        yield replace(one, queue=queue)


def _property(where: str, changed: Property, *, is_policy: bool) -> Drift:
    if changed.is_argument:
        message = (
            f"argument {changed.name} is {wire_text(changed.found)}, expected {wire_text(changed.wanted)}"
        )
        return Drift("arguments", where, f"{message}; declaring it again would not change it")
    message = f"{changed.name} is {wire_text(changed.found)}, expected {wire_text(changed.wanted)}"
    return Drift("policy" if is_policy else "attributes", where, message)


# Bindings


def _destination(difference: DestinationDifference) -> Drift:
    binding = difference.wanted or difference.found[0]
    return replace(_of_destination(difference, binding), queue=_queue(binding))


def _of_destination(difference: DestinationDifference, binding: Binding) -> Drift:
    found, where = difference.found, _where(binding)
    match difference.kind:
        case "missing":
            return Drift("missing-binding", where, f"missing (expected weight {binding.key})")
        case "extra":
            effect = "it has no bucket" if difference.is_dead else "it takes keys from the others"
            message = f"weight {found[0].key}: not in the file, and {effect}"
            return Drift("extra-binding", where, message)
        case "duplicate":
            weights = ", ".join(str(weight_of(each)) for each in found)
            message = f"bound {len(found)} times (weights {weights}): only the first takes effect"
            return Drift("extra-binding", where, message)
        case "weight":
            message = f"weight is {weight_of(found[0])!r}, expected {weight_of(binding)!r}"
            return Drift("weight", where, message)
        case "dead":
            message = (
                f"dead: it is listed (weight {found[0].key}) but has no bucket, so it gets no message; unbind it and "
                "bind it again"
            )
            return Drift("dead-binding", where, message)
        case "numbered":
            message = "carries x-bind-seq, from an earlier version; replacing it moves no key"
            return Drift("arguments", where, message)
        case "arguments":
            theirs, ours = dict(found[0].unnumbered.arguments), dict(binding.arguments)
            return Drift("arguments", where, f"arguments are {theirs!r}, expected {ours!r}")


def _queue(binding: Binding) -> str | None:
    return binding.destination if isinstance(binding.destination, str) else None


def _where(binding: Binding) -> str:
    return f"binding of {named(binding.destination)} to exchange {binding.source!r}"


def _key_and_arguments(binding: Binding) -> str:
    arguments = dict(binding.unnumbered.arguments)
    return f"key {binding.key!r}" + (f", arguments {arguments!r}" if arguments else "")


# Rings


def _ring(difference: RingDifference, observed: Observed) -> Iterator[Drift]:
    where, expected = f"exchange {difference.exchange!r}", _expected(difference)
    if difference.why_unknown:
        message = (
            f"the order of its buckets is unknown ({difference.why_unknown}){_explained(difference, expected, observed)}"
            f"; {Advice.LEARN_ORDER}"
        )
        yield Drift("ring-unknown", where, message)
    elif expected is not None and expected.runs != difference.ring.runs:
        from rabbit_chx.movement import moved

        share = moved(expected, difference.ring).share
        same = Counter(expected.runs) == Counter(difference.ring.runs)
        what = (
            "its buckets are in another order than in the file"
            if same
            else "its ring is not that of the file"
        )
        message = f"{what}: {share:.1%} of the keys go elsewhere than the file says"
        yield Drift("ring-order" if same else "ring", where, message, misrouted=share)


def _expected(difference: RingDifference) -> Ring | None:
    """The ring of the file; None if its bindings are invalid, which lint reports."""
    weights = {binding.destination: weight_of(binding) for binding in difference.wanted}
    if any(isinstance(weight, str) for weight in weights.values()):
        return None
    return Ring.of(weights, release=difference.ring.release)


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
    wrong = []
    for ring in difference.rings:
        if ring.exchange not in missing:
            wrong += list(_slot(ring, slots.exchange, slots.queues))
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
