"""Which quorum queues drop messages after too many returns, and the warning about them."""

from __future__ import annotations

from rabbit_chx.mirror.releases import Release
from rabbit_chx.topology.model import DELIVERY_LIMIT


def limit_applies(release: Release | None, *limits: object) -> bool:
    """Whether the limits in the arguments and the policy of a quorum queue, None if absent, limit its redeliveries.

    As in ``rabbit_quorum_queue:delivery_limit/1``, the lowest that is not negative applies. Before 4.0 there is no
    default, and a limit of -1 drops what is returned once. Without a release, as in the newest one.
    """
    given = [limit for limit in limits if isinstance(limit, int)]
    if release is not None and not release.has_default_delivery_limit:
        return bool(given)
    return not given or any(limit >= 0 for limit in given)


def limit_warning(release: Release | None) -> str:
    """Explain the effect of a delivery limit and how to remove it; without a release, for the newest one."""
    if release is None or release.has_default_delivery_limit:
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
