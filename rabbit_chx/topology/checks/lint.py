"""Find mistakes in a topology that a broker accepts silently.

`lint` checks a file. Given an observed broker, it also checks the file on that broker: a missing plugin, a metadata
store that reorders rings at a restart, an unfinished change of a slot. `drift` compares the file with the broker. This
module does no IO.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from rabbit_chx.errors import RabbitChxError, Unpredictable
from rabbit_chx.plugins import PLUGINS
from rabbit_chx.releases import Release, Store
from rabbit_chx.topology.checks.invalid_names import invalid_names
from rabbit_chx.topology.checks.lint_rules import RULES, Finding
from rabbit_chx.topology.checks.release_settings import release_findings
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rabbit_chx.ring import Destination, Ring
    from rabbit_chx.topology.model import Observed, Topology

__all__ = ["Finding", "lint", "missing_types", "other_product"]

_LiveRule: TypeAlias = "Callable[[Topology, Observed], Iterator[Finding]]"
_PRODUCT: Final = "RabbitMQ"


def lint(
    topology: Topology, observed: Observed | None = None, *, release: str | Release | None = None
) -> tuple[Finding, ...]:
    """All findings, errors first.

    Settings are checked against the release of the observed broker, or else against ``release``. Without either, a
    setting that only newer releases refuse is a warning.
    """
    target = observed.release if observed else Release.parse(release) if release else None
    findings = [finding for rule in RULES for finding in rule(topology)]
    findings += [*invalid_names(topology), *release_findings(topology, target)]
    if observed is not None:
        rules: tuple[_LiveRule, ...] = (_product,)
        if other_product(observed) is None:
            rules = _LIVE_RULES + (_BINDING_RULES if observed.bindings_seen else ())
        findings += [finding for rule in rules for finding in rule(topology, observed)]
    return tuple(sorted(findings, key=lambda finding: finding.severity))  # stable, and "error" < "warning"


def missing_types(topology: Topology, observed: Observed) -> dict[str, str]:
    """The exchange types that a topology needs and the broker lacks, each with a hint."""
    if observed.exchange_types is None:
        return {}
    needed = dict.fromkeys(exchange.type for exchange in topology.exchanges)
    if topology.slots:
        needed.setdefault(CONSISTENT_HASH)  # the type of slot exchanges
    return {
        type_: f"`rabbitmq-plugins enable {PLUGINS[type_]}` on every node adds it"
        if type_ in PLUGINS
        else "no plugin that comes with RabbitMQ has it, or this release has it not yet"
        for type_ in needed
        if type_ not in observed.exchange_types
    }


def other_product(observed: Observed) -> str | None:
    """The reason why predictions do not hold for a server that is not RabbitMQ; None for RabbitMQ."""
    if observed.product == _PRODUCT:
        return None
    return (
        f"the server calls itself {observed.product}: what it has under the name {CONSISTENT_HASH} is another "
        "algorithm, so that no route, share or movement that is computed here is true of it: use RabbitMQ"
    )


# -- rules for a live broker -------------------------------------------------------------------------


def _product(_: Topology, observed: Observed) -> Iterator[Finding]:
    reason = other_product(observed)
    if reason is not None:
        yield Finding("error", "other-product", "the broker", reason)


def _plugins(topology: Topology, observed: Observed) -> Iterator[Finding]:
    for type_, hint in missing_types(topology, observed).items():
        names = [exchange.name for exchange in topology.exchanges if exchange.type == type_]
        where = f"exchange {names[0]!r}" if names else "the slots"
        yield Finding("error", "missing-type", where, f"the broker has no exchange type {type_}: {hint}")


def _restart(topology: Topology, observed: Observed) -> Iterator[Finding]:
    for exchange in topology.hash_exchanges:
        ring = _ring(topology, observed, exchange.name)
        if ring is None or not ring.known or len(ring.bindings) <= 1:
            continue
        after = _after_restart(ring, observed)
        if after is None:
            continue
        share = _share(ring, after if after.known else ring.after_restart(worker_pool_size=1))
        if after.known and not share:
            continue
        if ring.release.store is Store.KHEPRI:
            what = f"the next restart revives its dead bindings, which moves {share:.1%} of the keys: unbind them"
        elif after.known:
            what = (
                f"the next restart sorts the ring, which moves {share:.1%} of the keys: write the destinations in "
                "sorted order (weights as text, then names), or use slots under an x-modulus-hash exchange"
            )
        else:
            what = (
                f"RabbitMQ {ring.release} on Mnesia rebuilds the ring when it boots, nearly sorted ({share:.1%} of the "
                "keys would move if wholly) and in no order that could be told before: set default_worker_pool_size "
                "= 1 in rabbitmq.conf and write the destinations in sorted order, or use slots under an "
                "x-modulus-hash exchange"
            )
        yield Finding("warning", "restart-moves-keys", f"exchange {exchange.name!r}", what)


def _ring(topology: Topology, observed: Observed, exchange: str) -> Ring | None:
    """The ring on the broker, or else of the file; None if the file's bindings are invalid."""
    if exchange in observed.rings:
        return observed.rings[exchange]
    try:
        return topology.ring(exchange, observed.release)
    except RabbitChxError:
        return None


def _after_restart(ring: Ring, observed: Observed) -> Ring | None:
    """The ring after a restart; None if duplicate bindings make it unpredictable, which another rule reports."""
    try:
        return ring.after_restart(worker_pool_size=observed.worker_pool_size)
    except Unpredictable:
        return None


def _share(before: Ring, after: Ring) -> float:
    from rabbit_chx.movement import moved

    return 0.0 if before.runs == after.runs else moved(before, after).share


def _modulus_order(topology: Topology, observed: Observed) -> Iterator[Finding]:
    release = observed.release
    if release.modulus_sorts_destinations or release.store is not Store.KHEPRI:
        return
    for exchange in topology.exchanges:
        if exchange.type == MODULUS_HASH:
            yield Finding(
                "error",
                "modulus-order",
                f"exchange {exchange.name!r}",
                f"RabbitMQ {release} on Khepri counts the destinations of {MODULUS_HASH} in an order of no rule, which "
                f"may change: upgrade to 4.3, or use {CONSISTENT_HASH}",
            )


def _slots(topology: Topology, observed: Observed) -> Iterator[Finding]:
    for slots in topology.slots:
        for name in slots.names:
            if observed.topology.exchange(name) is None:
                continue
            bound = [each.destination for each in observed.topology.bindings_from(name)]
            if not bound:
                yield Finding(
                    "error",
                    "empty-slot",
                    f"exchange {name!r}",
                    f"the slot leads to no queue, so that what {slots.exchange!r} sends it is lost: apply the file",
                )
            elif len(bound) > 1:
                yield Finding(
                    "warning",
                    "unfinished-slot",
                    f"exchange {name!r}",
                    f"the slot leads to {len(bound)} destinations ({', '.join(map(str, bound))}), as in the middle of a "
                    "change: apply the file again to finish it",
                )


def _co_partitioned(topology: Topology, observed: Observed) -> Iterator[Finding]:
    for first, second in topology.co_partitioned:
        live = [_live_numbers(topology, observed, name) for name in (first, second)]
        if None not in live and live[0] != live[1]:
            yield Finding(
                "error",
                "co-partitioned",
                f"exchanges {first!r} and {second!r}",
                "on the broker their rings are not equal, so that keys which belong together go apart: `rabbit-chx "
                "check` tells which of them is not as in the file",
            )


def _live_numbers(topology: Topology, observed: Observed, exchange: str) -> list[int | None] | None:
    """The number of each bucket's or slot's destination in the file; None if the ring is unknown."""
    slots, ring = topology.slots_of(exchange), observed.rings.get(exchange)
    there: list[Destination]
    if slots is not None:
        listed: list[Destination] = list(slots.queues)
        there = [bound.destination for name in slots.names for bound in observed.topology.bindings_from(name)]
    elif ring is not None and ring.known:
        listed = [bound.destination for bound in topology.bindings_from(exchange)]
        there = list(ring.bucket_map)
    else:
        return None
    numbers = {destination: number for number, destination in enumerate(listed)}
    return [numbers.get(destination) for destination in there]


_LIVE_RULES: Final[tuple[_LiveRule, ...]] = (_plugins, _modulus_order, _restart)
_BINDING_RULES: Final[tuple[_LiveRule, ...]] = (_co_partitioned, _slots)
"""The rules that need the bindings of the broker."""
