"""The names by which programs keep out of each other's way on a broker: the lock of apply, the leases of publishers.

Both are exclusive queues, which go when their connection goes. Whoever changes a topology takes the lock and then
looks for leases; a publisher that goes straight to the queues takes its lease and then looks for the lock. So of two
that begin at one moment at least one sees the other.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["LEASE_PREFIX", "LOCK", "is_lease_of"]

LOCK: Final = "rabbit-chx.lock"
"""The queue that is the lock of a virtual host's topology."""

LEASE_PREFIX: Final = "rabbit-chx.lease."


def is_lease_of(queue: str, exchange: str) -> bool:
    """Whether a queue of this name is the lease of a publisher that goes past this exchange."""
    return re.fullmatch(re.escape(f"{LEASE_PREFIX}{exchange}.") + "[0-9a-f]{12}", queue) is not None
