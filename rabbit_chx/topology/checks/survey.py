"""The hash exchanges of a broker, each with its state and its troubles, without a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from rabbit_chx.mirror.hashing import hash_on
from rabbit_chx.mirror.ring import ToExchange, named
from rabbit_chx.topology.checks.drift import SECOND_BINDING, Drift, drift
from rabbit_chx.topology.file.exportable import exportable
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import HASHING, Binding, Exchange, Observed, Topology

Order: TypeAlias = Literal["recorded", "known", "assumed", "unknown"]

SUPER_STREAM: Final = "super stream"
NO_CONSUMER: Final = "no-consumer"
NO_MAJORITY: Final = "no-majority"
_WITHOUT_A_FILE: Final = ("dead-binding", "extra-binding", "ring-unknown", SECOND_BINDING)
"""The kinds of drift that a broker has whatever its file says."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A hash exchange of a broker."""

    exchange: str
    kind: str
    """Its type, or `SUPER_STREAM`."""
    hashes: str
    destinations: int
    order: Order | None
    """How the order of the ring is known, ``assumed`` for a single binding that may have no buckets; None without a ring."""
    waiting: int | None
    """The messages in all queues that the exchange leads to, as of the last statistics; None if there are none, as after a restart."""
    troubles: tuple[Drift, ...]

    @property
    def differences(self) -> tuple[Drift, ...]:
        """The troubles that are more than warnings: with them, messages are lost or wait, or nothing can be predicted."""
        return tuple(each for each in self.troubles if each.kind not in {SECOND_BINDING, NO_CONSUMER})


def survey(observed: Observed) -> tuple[Surveyed, ...]:
    """The hash exchanges and super streams of a virtual host."""
    in_effect, _ = exportable(observed.topology, observed.rings)
    return tuple(
        _surveyed(each, kind, observed, in_effect)
        for each in observed.topology.exchanges
        if (kind := _kind_of(each))
    )


def _kind_of(exchange: Exchange) -> str:
    """The kind of a hash exchange or super stream; empty for other exchanges."""
    if exchange.type in HASHING:
        return exchange.type
    return SUPER_STREAM if exchange.arguments.get("x-super-stream") is True else ""


def _surveyed(exchange: Exchange, kind: str, observed: Observed, in_effect: Topology) -> Surveyed:
    name, there = exchange.name, observed.topology
    behind = sorted(each for each in reachable(there, [ToExchange(name)]) if isinstance(each, str))
    unknown = any(there.queue(each) and each not in observed.backlog for each in behind)
    return Surveyed(
        exchange=name,
        kind=kind,
        hashes="a key of its publishers"
        if kind == SUPER_STREAM
        else str(hash_on(exchange.hash_header, exchange.hash_property)),
        destinations=len({each.destination for each in there.bindings_from(name)}),
        order=_order(name, observed),
        waiting=None if unknown else sum(observed.backlog.get(each, 0) for each in behind),
        troubles=(
            *_of_ring(exchange, observed, in_effect),
            *(_of_queue(NO_MAJORITY, each, name) for each in behind if each in observed.without_majority),
            *(_of_queue(NO_CONSUMER, each, name) for each in behind if each in observed.unconsumed),
        ),
    )


def _order(name: str, observed: Observed) -> Order | None:
    ring = observed.rings.get(name)
    if ring is None:
        return "unknown" if name in observed.topology.unordered else None
    if not ring.known:
        return "unknown"
    if observed.ring_sources[name] == "trivial":
        return "assumed" if ring.bindings else "known"
    return "known" if name in observed.unrecorded else "recorded"


def _of_ring(exchange: Exchange, observed: Observed, in_effect: Topology) -> Iterator[Drift]:
    """The differences between an exchange and a file with one binding for each of its destinations."""
    bound = observed.topology.bindings_from(exchange.name)
    one_each: dict[object, Binding] = {}
    for each in (*in_effect.bindings_from(exchange.name), *bound):
        one_each.setdefault(each.destination, each)
    alone = Topology(exchanges=(exchange,))
    found = replace(observed, topology=replace(alone, bindings=bound))
    if _order(exchange.name, observed) is not None:
        for one in drift(replace(alone, bindings=tuple(one_each.values())), found):
            if one.kind in _WITHOUT_A_FILE:
                yield one


def _of_queue(kind: str, queue: str, exchange: str) -> Drift:
    what = {
        NO_MAJORITY: "most of its members are down, so no message enters or leaves",
        NO_CONSUMER: "has no consumer",
    }
    return Drift(kind, f"{named(queue)} behind exchange {exchange!r}", what[kind], queue=queue)
