"""Poll an exchange of a live broker with a bounded number of requests.

Each poll lists the queues of the virtual host and asks for the exchange types and the uptime of the nodes. The bindings are
listed too, unless the ETag of the definitions shows that nothing has changed (RabbitMQ 4.3.5 and later). The virtual
host is read again only when one of these shows a change, and in the long run reading takes at most one thirtieth of the time.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from rabbit_chx.broker import Management, NodeAccess, read
from rabbit_chx.broker.management_rows import QueueState
from rabbit_chx.broker.reading.reader import visible_nodes
from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.topology import Binding, Observed, Release, ToExchange, Topology
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import OWN

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
    highest: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For each queue, the most messages that earlier polls counted as received and as handled; `watch` adds them."""
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

    @property
    def highest_now(self) -> Mapping[str, tuple[int, int]]:
        """`highest` for the next poll; a queue that was deleted counts from zero."""
        if not self.reachable:
            return self.highest
        earlier = {name: self.highest.get(name, (0, 0)) for name in self.queues}
        return {
            name: (max(earlier[name][0], state.received or 0), max(earlier[name][1], state.handled or 0))
            for name, state in self.queues.items()
        }


def is_reachable(problems: Iterable[Problem]) -> bool:
    """Whether a broker with these problems answered."""
    return all(problem.name != "broker-unreachable" for problem in problems)


_ROWS_A_MINUTE: Final = 2500
"""The most queues to list in a minute: a poll of 2,000 queues costs the broker 0.3 to 0.5 seconds of CPU time (benchmarks/watching.py)."""
_REST: Final = 30
"""Reading the virtual host takes at most one part in this many of the time, ..."""
_AHEAD: Final = 600.0
"""... averaged over this many seconds, so that several changes in a row are each read at once."""
_STALE: Final = 15.0
"""Seconds by which reported uptimes may be out of date: nodes report them every five seconds, like other statistics."""


class Observer:
    """Polls one exchange; ``node`` reads the exact order of the rings after each change."""

    def __init__(
        self, management: Management, vhost: str, exchange: str, *, node: NodeAccess | None = None
    ) -> None:
        self._management = management
        self._vhost = vhost
        self._exchange = exchange
        self._node = node
        self._observed: Observed | None = None
        self._first: Observed | None = None
        self._fingerprint: tuple[frozenset[str], frozenset[str]] | None = None
        self._tag = ""
        self._bindings: frozenset[str] = frozenset()
        self._started: dict[str, float] = {}
        self._received: dict[str, int] = {}
        self._restarted = False
        self._lost = False
        self._read_from = -inf
        self._queues = 0

    @property
    def _least_seconds(self) -> float:
        """The shortest interval that the number of queues allows."""
        return self._queues * 60.0 / _ROWS_A_MINUTE

    def _poll(self) -> Snapshot:
        """Poll the broker. If it does not answer, the snapshot has a problem with the reason.

        Raises:
            BrokerUnavailable: the broker refused the first poll, or its certificate cannot be verified, so a retry would fail as well.
        """
        before, now = self._management.requests, time.time()
        queues: dict[str, QueueState] = {}
        problems: tuple[Problem, ...] = ()
        try:
            queues = {state.name: state for state in self._management._queue_states(self._vhost, now=now)}
            self._refresh(queues)
        except RabbitChxError as error:  # also: a release or an output of the node that is not understood
            unverified = isinstance(error.__context__, ssl.SSLCertVerificationError)
            if self._first is None and (getattr(error, "permanent", True) or unverified):
                raise
            self._lost, queues = True, {}
            problems = (Problem("broker-unreachable", "broker", str(error)),)
        else:
            self._queues = len(queues)
        return Snapshot(
            time=now,
            exchange=self._exchange,
            vhost=self._vhost,
            observed=self._observed,
            first=self._first,
            queues=queues,
            problems=problems,
            restarted=self._restarted,
            requests=self._management.requests - before,
        )

    def _refresh(self, queues: Mapping[str, QueueState]) -> None:
        """Read the virtual host again if something has changed."""
        overview = self._management.overview()
        # Both are kept up to date: a restart that the uptime has shown must not be found again in the counters.
        restarted = any([self._has_new_node(), self._counters_restarted(queues)])
        self._restarted |= restarted
        tagged = Release._of_broker(overview.release)._tags_definitions
        fingerprint = (overview.exchange_types, self._listed(tagged=tagged))
        due = time.monotonic() >= self._read_from
        if self._observed is None or restarted or self._lost or (fingerprint != self._fingerprint and due):
            started = time.monotonic()
            self._observed = read(self._management, self._vhost, node=self._node)
            self._first = self._first or self._observed
            ended = time.monotonic()
            self._read_from = max(self._read_from, ended - _AHEAD) + _REST * (ended - started)
            self._fingerprint, self._lost = fingerprint, False

    def _listed(self, *, tagged: bool) -> frozenset[str]:
        """The relevant bindings, listed again only if the definitions have changed."""
        tag = self._definitions_tag() if tagged else ""
        if not tag or tag != self._tag:
            self._bindings = _relevant(self._management.bindings(self._vhost), self._exchange)
            self._tag = tag
        return self._bindings

    def _definitions_tag(self) -> str:
        """The ETag of the definitions; empty for a user who may not read them."""
        try:
            return self._management._definitions_tag(self._vhost, self._tag)
        except BrokerUnavailable as error:
            if error.permanent:
                return ""
            raise

    def _has_new_node(self) -> bool:
        """Whether a node has started since the last poll; unknown to users without the tag monitoring."""
        nodes = visible_nodes(self._management) or {}
        now, known = time.monotonic(), self._started
        started = {name: now - up / 1000 for name, node in nodes.items() if (up := node.uptime) is not None}
        self._started = known | started
        return any(at > known.get(name, at) + _STALE for name, at in started.items())

    def _counters_restarted(self, queues: Mapping[str, QueueState]) -> bool:
        """Whether the counters of all queues have fallen, as when RabbitMQ restarts within a node that keeps running."""
        now = {name: state.received for name, state in queues.items() if state.received is not None}
        known = self._received
        # A restarted broker reports no counters at first, so keep the old ones.
        self._received = {name: now.get(name, known.get(name, 0)) for name in queues}
        fallen = [count < known[name] for name, count in now.items() if known.get(name)]
        return bool(fallen) and all(fallen)


def _relevant(bindings: Iterable[Binding], exchange: str) -> frozenset[str]:
    """The bindings that messages to an exchange can follow, and the bindings that record the order of these rings."""
    listed = tuple(bindings)
    reached = reachable(Topology(bindings=listed), [ToExchange(exchange)])
    return frozenset(
        repr(each)
        for each in listed
        if ToExchange(each.source) in reached
        or (each.source.startswith(OWN) and ToExchange(each.key) in reached)
    )
