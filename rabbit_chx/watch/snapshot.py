"""The state of an exchange and its queues at one poll. Values only; `rabbit_chx.watch.observer` creates them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rabbit_chx.topology import Observed, QueueState

PROBLEMS: Final = (
    "broker-unreachable",
    "plugin-off",
    "exchange-missing",
    "queue-missing",
    "unbound-queue",
    "dead-binding",
    "ring-drifted",
    "ring-unknown",
    "settings-drifted",
    "no-consumer",
    "no-active-consumer",
    "hot-queue",
)
"""All names of problems, the most severe first. They are stable, because alerts depend on them."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with the exchange, a queue or the broker."""

    name: str
    """One of `PROBLEMS`."""
    where: str
    """The subject, such as ``queue 'q0'``."""
    message: str
    queue: str | None = None
    """The name of the queue, if the problem is about one queue."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.name}]"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one poll of the broker returned."""

    time: float
    """Seconds since the epoch."""
    exchange: str
    vhost: str = "/"
    observed: Observed | None = None
    """The virtual host, as last read; None if it was never read. The same object while nothing has changed."""
    first: Observed | None = None
    """The virtual host as it was when the watch began, which replaces a missing file."""
    queues: Mapping[str, QueueState] = field(default_factory=dict)
    """The queues that exist now."""
    problems: tuple[Problem, ...] = ()
    """Why the broker, or a part of it, could not be read."""
    restarted: bool = False
    """Whether a node has restarted since the watch began."""
    requests: int = 0
    """Requests that this poll took."""

    @property
    def reachable(self) -> bool:
        """Whether the broker answered, so that `queues` are current."""
        return all(problem.name != "broker-unreachable" for problem in self.problems)
