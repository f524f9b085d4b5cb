"""Find mistakes in a topology that a broker accepts silently.

`lint` checks a file. Given an observed broker, it also checks the file on that broker: a missing plugin, a metadata
store that reorders rings at a restart, an unfinished change of a slot. `drift` compares the file with the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rabbit_chx.base.text import listed
from rabbit_chx.errors import RabbitChxError, Unpredictable
from rabbit_chx.mirror.releases import Release, Store
from rabbit_chx.mirror.ring import Ring
from rabbit_chx.topology.checks.lint_rules import RULES, Finding
from rabbit_chx.topology.checks.ordered_queues import ordered_findings
from rabbit_chx.topology.checks.release_settings import release_findings
from rabbit_chx.topology.diff import Difference, MissingType, SlotsDifference, diff
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Observed, Topology


def lint(
    topology: Topology, observed: Observed | None = None, *, release: str | Release | None = None
) -> tuple[Finding, ...]:
    """All findings, errors first.

    Settings are checked against the release of the observed broker, or else against ``release``. Without either, a
    setting that only newer releases refuse is a warning.
    """
    target = observed.release if observed else Release.parse(release) if release else None
    findings = [finding for rule in RULES for finding in rule(topology)]
    findings += release_findings(topology, target)
    findings += ordered_findings(topology, target, observed)
    if observed is not None:
        findings += _live_findings(topology, observed)
    return tuple(sorted(findings, key=lambda finding: finding.severity))  # stable, and "error" < "warning"


def _live_findings(topology: Topology, observed: Observed) -> Iterator[Finding]:
    differences = diff(topology, observed)
    for each in differences:
        if isinstance(each, MissingType):
            yield Finding("error", "missing-type", f"exchange {each.exchanges[0]!r}", each.reason)
    for exchange in topology.exchanges:
        if exchange.type == MODULUS_HASH and observed.release.modulus_has_no_order:
            message = (
                f"RabbitMQ {observed.release} on Khepri numbers the destinations of {MODULUS_HASH} in no defined order. Upgrade "
                f"to 4.3, or use {CONSISTENT_HASH}"
            )
            yield Finding("error", "modulus-order", f"exchange {exchange.name!r}", message)
    yield from _restart(topology, observed)
    if observed.bindings_seen:
        yield from _slots(differences, observed)


# -- restarts ----------------------------------------------------------------------------------------


def _restart(topology: Topology, observed: Observed) -> Iterator[Finding]:
    """The exchanges whose rings change at the next restart; those with the same reason are named together."""
    reasons: dict[str, list[str]] = {}
    for exchange in topology.hash_exchanges:
        ring = _ring(topology, observed, exchange.name)
        if ring is None or not ring.known or len(ring.bindings) <= 1:
            continue
        try:
            after = ring.after_restart(worker_pool_size=observed.worker_pool_size)
        except Unpredictable:  # duplicate bindings, which another rule reports
            continue
        if not after.known:
            reasons.setdefault(_unpredictable(observed), []).append(exchange.name)
        elif share := _share(ring, after):
            reasons.setdefault(_restart_message(ring, share), []).append(exchange.name)
    for message, names in reasons.items():
        yield Finding("warning", "restart-moves-keys", listed(names, "exchange"), message)


def _unpredictable(observed: Observed) -> str:
    unless = ""
    if observed.worker_pool_size is None:
        unless = ", unless its default_worker_pool_size is 1, which only the node knows"
    return (
        f"RabbitMQ {observed.release} on Mnesia rebuilds a ring at boot in an unpredictable order{unless}. Set "
        "default_worker_pool_size = 1 in rabbitmq.conf and sort the destinations in the file, or use slots under an "
        f"{MODULUS_HASH} exchange"
    )


def _restart_message(ring: Ring, share: float) -> str:
    if ring.release.store is Store.KHEPRI:
        return f"the next restart revives dead bindings, which moves {share:.1%} of the keys. Unbind them"
    return (
        f"the next restart sorts the ring, which moves {share:.1%} of the keys. Sort the destinations in the file "
        f"(by weight as text, then by name), or use slots under an {MODULUS_HASH} exchange"
    )


def _ring(topology: Topology, observed: Observed, exchange: str) -> Ring | None:
    """The ring on the broker, or else of the file; None if the file's bindings are invalid."""
    if exchange in observed.rings:
        return observed.rings[exchange]
    try:
        return topology.ring(exchange, observed.release)
    except RabbitChxError:
        return None


def _share(before: Ring, after: Ring) -> float:
    from rabbit_chx.mirror.movement import moved

    return 0.0 if before.runs == after.runs else moved(before, after).share


# -- bindings ----------------------------------------------------------------------------------------


def _slots(differences: Iterable[Difference], observed: Observed) -> Iterator[Finding]:
    """The slots that lead to no queue or to several; `drift` reports those that lead to a wrong one."""
    rings = [ring for each in differences if isinstance(each, SlotsDifference) for ring in each.rings]
    for ring in rings:
        where, bound = f"exchange {ring.exchange!r}", [binding.destination for binding in ring.found]
        if not bound and observed.topology.exchange(ring.exchange) is not None:
            message = "the slot leads to no queue, so its messages are lost. Apply the file"
            yield Finding("error", "empty-slot", where, message)
        elif len(bound) > 1:
            message = (
                f"the slot leads to {', '.join(map(str, bound))}: an unfinished change. Apply the file again"
            )
            yield Finding("warning", "unfinished-slot", where, message)
