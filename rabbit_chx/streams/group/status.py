"""How the member of a stream group is, for health checks and metrics of its own process. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rabbit_chx.streams.group.lanes import StreamLane


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How far a member is in a stream that the broker has assigned to it."""

    stream: str
    handled: int | None
    """The last offset that is handled; None if the group has handled nothing in the stream."""
    stored: int | None
    """The last offset that the broker has stored for the group; None without one, and -1 for the place before the first message."""
    end: int
    """The end of the stream, a few seconds ago. Before RabbitMQ 4.3, it may be too small by a chunk."""
    attempts: int
    """Failed attempts since the start of the run."""

    @property
    def lag(self) -> int:
        """How many offsets are not handled: messages, and gaps."""
        return max(0, self.end - (0 if self.handled is None else self.handled + 1))


@dataclass(frozen=True, slots=True)
class StreamGroupStatus:
    """How a member of a stream group is."""

    connected: bool
    """Whether it is a member of the group for every stream."""
    reason: str
    """Why it is not; empty if it is."""
    streams: tuple[str, ...]
    """The streams that the members share, as far as this one knows them."""
    partitions: tuple[PartitionStatus, ...]
    """The streams that this member handles now."""
    handled: int
    """Messages handled or given up since the start of the run."""
    failed: int
    """Failed attempts since the start of the run."""

    @property
    def lag(self) -> int:
        """The lag of all partitions of this member together."""
        return sum(each.lag for each in self.partitions)


def status_of(lanes: Sequence[StreamLane], why_not: str) -> StreamGroupStatus:
    """The status of a member with these lanes; the caller holds their lock."""
    return StreamGroupStatus(
        connected=not why_not,
        reason=why_not,
        streams=tuple(lane.stream for lane in lanes),
        partitions=tuple(
            PartitionStatus(lane.stream, lane.handled_to, lane.stored, lane.end, lane.failed)
            for lane in lanes
            if lane.channel is not None
        ),
        handled=sum(lane.handled for lane in lanes),
        failed=sum(lane.failed for lane in lanes),
    )
