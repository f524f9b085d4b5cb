"""How a member is, for health checks and metrics of its own process. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic

from rabbit_chx.consuming.member.lanes import Lane


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How a member of a group is."""

    connected: bool
    """Whether it consumes."""
    reason: str
    """Why it does not consume; empty if it does."""
    queues: tuple[str, ...]
    """The queues that it consumes; the broker delivers those to it that no other member has."""
    in_hand: int
    """Messages that were delivered and are not handled."""
    oldest: float | None
    """Seconds since the oldest of them became the next to be handled, sampled each second; None without any."""
    handled: int
    """Messages of these queues handled or given up since the start of the run."""
    failed: int
    """Failed attempts at messages of these queues since the start of the run."""
    last_delivery: datetime | None
    """When the last message was delivered."""


def status_of(lanes: Sequence[Lane], why_not: str) -> GroupStatus:
    """The status of a member with these lanes; the caller holds their lock."""
    now, at = monotonic(), datetime.now(UTC)
    deliveries = [each.last_delivery for each in lanes if each.last_delivery is not None]
    oldest = [seconds for each in lanes if (seconds := each.status(now)["oldest"]) is not None]
    return GroupStatus(
        connected=not why_not,
        reason=why_not,
        queues=tuple(sorted(each.queue for each in lanes if each.channel is not None)),
        in_hand=sum(each.in_hand for each in lanes),
        oldest=max(oldest, default=None),
        handled=sum(each.handled for each in lanes),
        failed=sum(each.failed for each in lanes),
        last_delivery=at - timedelta(seconds=now - max(deliveries)) if deliveries else None,
    )
