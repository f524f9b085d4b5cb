"""Findings about ordered queues (quorum queues with a single active consumer) that lose messages or their order.

They were observed on 3.10.8, 4.0.5 and 4.3.6; for known faults of other releases, the reports are cited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rabbit_chx.base.text import listed
from rabbit_chx.mirror.releases import Release
from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.topology.checks.lint_rules import Finding
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import DELIVERY_LIMIT, Observed, Queue, Topology

_DELAYED: Final = "x-delayed-message"
_RETRY: Final = "delayed-retry-"
_LIMIT_KEY: Final = DELIVERY_LIMIT.removeprefix("x-")


def ordered_findings(
    topology: Topology, release: Release | None, observed: Observed | None
) -> Iterator[Finding]:
    """Findings about the ordered queues of a file; without a release, for the newest one."""
    ordered = [queue for queue in topology.queues if queue.is_ordered]
    if not ordered:
        return
    names = [queue.name for queue in ordered]
    applied = topology if observed is None else _applied(topology, observed)
    queues = [queue for queue in applied.queues if queue.is_ordered]
    if limited := [queue.name for queue in queues if _has_limit(queue, applied, release)]:
        yield Finding("warning", "delivery-limit", listed(limited), limit_warning(release))
    delayed = [queue.name for queue in ordered if _is_delayed(queue, topology)]
    if delayed:
        message = "later messages overtake messages that are retried after a delay. Remove delayed-retry-*"
        yield Finding("warning", "delayed-retry", listed(delayed), message)
    for exchange in topology.exchanges:
        behind = reachable(topology, [ToExchange(exchange.name)]) if exchange.type == _DELAYED else ()
        if late := [name for name in names if name in behind]:
            message = (
                "later messages of the same key overtake its delayed messages. Do not route it to the ordered "
                f"{listed(late)}"
            )
            yield Finding("warning", "delayed-exchange", f"exchange {exchange.name!r}", message)
    if release is not None:
        for code, message in release_hazards(release).items():
            yield Finding("warning", code, listed(names), message)


def release_hazards(release: Release) -> dict[str, str]:
    """The faults of a release that stop consumers of ordered queues, keyed by the code of the finding."""
    found = {}
    if release._active_timeout_stops:
        found["consumer-timeout"] = (
            f"RabbitMQ {release} stops delivering from a queue once all its consumers have exceeded consumer_timeout "
            "(rabbitmq-server #17317). Upgrade to 4.3.6, and keep handlers below this timeout"
        )
    if release._requeue_stops_takeover:
        found["takeover"] = (
            f"RabbitMQ {release} may stop delivering from a queue after a consumer requeues messages and a consumer of "
            "higher priority joins (rabbitmq-server #14141). Upgrade to 4.2, or never requeue"
        )
    return found


def _is_delayed(queue: Queue, topology: Topology) -> bool:
    keys = [name.removeprefix("x-") for name in queue.arguments]
    keys += [key for policy in topology._policies_of(queue) if policy for key in policy.definition]
    return any(key.startswith(_RETRY) for key in keys)


# -- the delivery limit ------------------------------------------------------------------------------


def _has_limit(queue: Queue, topology: Topology, release: Release | None) -> bool:
    """Whether messages of a queue are dropped or dead-lettered when they are returned too often."""
    declared = queue if release is None else as_declared(queue, release)
    by_argument = declared.arguments.get(DELIVERY_LIMIT)
    by_policies = [policy and policy.definition.get(_LIMIT_KEY) for policy in topology._policies_of(queue)]
    return any(limit_applies(release, by_argument, each) for each in by_policies)


def limit_applies(release: Release | None, *limits: object) -> bool:
    """Whether the limits in the arguments and the policy of a quorum queue, None if absent, limit its redeliveries.

    As in ``rabbit_quorum_queue:delivery_limit/1``, the lowest that is not negative applies. Before 4.0 there is no
    default, and a limit of -1 drops what is returned once. Without a release, as in the newest one.
    """
    given = [limit for limit in limits if isinstance(limit, int)]
    if release is not None and not release._has_default_delivery_limit:
        return bool(given)
    return not given or any(limit >= 0 for limit in given)


def limit_warning(release: Release | None) -> str:
    """Explain the effect of a delivery limit and how to remove it; without a release, for the newest one."""
    if release is None or release._has_default_delivery_limit:
        advice = (
            f"Declare queues with {DELIVERY_LIMIT}: -1; for existing queues without this argument, set a policy with "
            "delivery-limit: -1"
        )
    else:
        advice = f"Remove {DELIVERY_LIMIT}, and delivery-limit from policies: before RabbitMQ 4.0 there is no limit by default"
    return (
        f"a delivery limit applies ({DELIVERY_LIMIT}; 20 by default from RabbitMQ 4.0 on): the broker drops or dead-letters "
        "messages that were returned more often, even if no consumer has handled them. A consumer that ends or loses its "
        f"connection returns all its unacknowledged messages. {advice}"
    )


def _applied(wanted: Topology, observed: Observed) -> Topology:
    """The queues and policies after the file is applied; existing queues keep their arguments."""
    there = observed.topology
    queues = tuple(there.queue(queue.name) or queue for queue in wanted.queues)
    own = {policy.name for policy in wanted.policies}
    policies = (*wanted.policies, *(policy for policy in there.policies if policy.name not in own))
    return replace(wanted, queues=queues, policies=policies)


def as_declared(queue: Queue, release: Release) -> Queue:
    """The queue to declare on a release: before 4.0, a limit of -1 is left out, because it drops what is returned once."""
    if (
        release._has_default_delivery_limit
        or not queue.is_ordered
        or queue.arguments.get(DELIVERY_LIMIT) != -1
    ):
        return queue
    arguments = {name: value for name, value in queue.arguments.items() if name != DELIVERY_LIMIT}
    return replace(queue, arguments=arguments)
