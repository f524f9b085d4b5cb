"""The state of an exchange and its queues at one poll. Values only; `rabbit_chx.watch.observer` creates them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rabbit_chx.broker.management_rows import QueueState
from rabbit_chx.topology import Observed

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
    "stranded-messages",
    "no-consumer",
    "no-active-consumer",
    "hot-queue",
)
"""All names of problems, the most severe first. They are stable, because alerts depend on them."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the exchange, a queue or the broker."""

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
    """The result of one poll of the broker."""

    time: float
    """Seconds since the epoch."""
    exchange: str
    vhost: str = "/"
    observed: Observed | None = None
    """The virtual host, as last read; None before the first read. The same object until it is read again."""
    first: Observed | None = None
    """The virtual host as it was when the watch began; the expected state if there is no file."""
    queues: Mapping[str, QueueState] = field(default_factory=dict)
    """The queues that exist now."""
    problems: tuple[Problem, ...] = ()
    """Why the broker could not be read."""
    restarted: bool = False
    """Whether a node has restarted since the watch began."""
    requests: int = 0
    """Requests to the broker in this poll."""

    @property
    def reachable(self) -> bool:
        """Whether the broker answered, so that `queues` is current."""
        return is_reachable(self.problems)


def is_reachable(problems: Iterable[Problem]) -> bool:
    """Whether a broker with these problems answered."""
    return all(problem.name != "broker-unreachable" for problem in problems)
