"""Compare two polls of an exchange: shares, rates and problems. No IO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from typing import Final

from rabbit_chx.base.text import counted
from rabbit_chx.broker.management_rows import QueueState
from rabbit_chx.topology import Topology
from rabbit_chx.topology.checks.drift import stranded
from rabbit_chx.topology.graph import part_behind
from rabbit_chx.watch.observer import PROBLEMS, Problem, Snapshot, is_reachable
from rabbit_chx.watch.ring_check import RingCheck, RingState, check_ring

MINUTES: Final = (1, 5, 15)
"""The periods of the shares that `History` adds."""
_LEAST_HOT: Final = 100
"""A queue with fewer messages in an interval is never hot."""
_SIGMAS: Final = 6.0
_HOT_RATIO: Final = 2.0
"""A queue is hot if it gets this many times its exact share, ..."""
_HOT_KEY: Final = 0.25
"""... or so much more than its exact share that one key with this share of all messages would explain it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One queue in one interval. Unknown values are None."""

    queue: str
    exact: float | None = None
    """The exact share of all keys."""
    observed: float | None = None
    """The share of the messages that arrived in this interval."""
    minutes: tuple[float | None, ...] = (None,) * len(MINUTES)
    """The observed shares of the last 1, 5 and 15 minutes, which `History` adds."""
    received: int | None = None
    """Messages that arrived in this interval."""
    handled: int | None = None
    """Messages that left in this interval."""
    rate_in: float | None = None
    """Messages that arrived, per second."""
    rate_out: float | None = None
    """Messages that left, per second."""
    depth: int | None = None
    """Messages that are ready, or delivered and not acknowledged."""
    ready: int | None = None
    unacknowledged: int | None = None
    oldest: float | None = None
    """Seconds since the timestamp of the first message, if the broker reports it."""
    consumers: int | None = None
    active_consumer: str | None = None
    """The tag of the single active consumer, empty if none is active; None if the broker does not report it."""
    marks: tuple[str, ...] = ()
    """The names of the problems of this queue, the most severe first."""

    def as_dict(self) -> dict[str, object]:
        """The row as a JSON object."""
        shares = {str(minutes): share for minutes, share in zip(MINUTES, self.minutes, strict=True)}
        return {**asdict(self), "minutes": shares, "marks": list(self.marks)}


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of the known values of all rows."""

    received: int = 0
    handled: int = 0
    rate_in: float = 0.0
    rate_out: float = 0.0
    depth: int = 0
    consumers: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """The time between two polls of an exchange, and the problems at its end."""

    time: float
    """The end of the interval, in seconds since the epoch."""
    seconds: float
    """Its length; 0 for the first poll, which has no rates."""
    exchange: str
    vhost: str
    release: str
    """The release of the broker; empty if the broker has never answered."""
    ring: RingState
    rows: tuple[Row, ...] = ()
    """The queues in ring order."""
    problems: tuple[Problem, ...] = ()
    """The problems, the most severe first."""
    totals: Totals = Totals()
    requests: int = 0
    """Requests to the broker in the poll at the end of this interval."""
    _ring_check: RingCheck = field(default_factory=RingCheck)
    """The check of the ring, with the rings themselves; not part of `as_dict`."""

    @property
    def reachable(self) -> bool:
        """Whether the broker answered at the end of the interval."""
        return is_reachable(self.problems)

    def as_dict(self) -> dict[str, object]:
        """The interval as a JSON object."""
        return {
            "time": self.time,
            "seconds": self.seconds,
            "exchange": self.exchange,
            "vhost": self.vhost,
            "release": self.release,
            "ring": self.ring.as_dict(),
            "rows": [row.as_dict() for row in self.rows],
            "problems": [asdict(problem) for problem in self.problems],
            "totals": asdict(self.totals),
            "requests": self.requests,
        }


def compare(
    previous: Snapshot | None,
    current: Snapshot,
    wanted: Topology | None = None,
    *,
    ring_check: RingCheck | None = None,
) -> Interval:
    """Return the interval between two polls; without a previous one, or if it failed, there are no rates.

    Without a topology file, the expected state is that at the start of the watch. ``ring_check`` is that of an earlier
    interval whose poll found the same bindings, if any.
    """
    ring_check = ring_check or check_ring(current, wanted)
    seconds = max(0.0, current.time - previous.time) if previous is not None else 0.0
    before = previous.queues if previous is not None and seconds else {}
    problems = [*current.problems, *(ring_check.problems if current.reachable else ())]
    left = {str(each.queue): each for each in _stranded(current, wanted)}
    named = (each.queue for each in ring_check.problems if each.queue)
    names = dict.fromkeys((*ring_check.exact, *named, *left))
    rows = _rows(list(names), ring_check, before, current, seconds)
    if current.reachable and current.queues:
        own = [row for row in rows if row.queue not in left]
        problems += _problems_of_queues(own, before, current.queues, ring_check, is_first=previous is None)
    by_severity = tuple(sorted((*problems, *left.values()), key=lambda each: PROBLEMS.index(each.name)))
    return Interval(
        time=current.time,
        seconds=seconds,
        exchange=current.exchange,
        vhost=current.vhost,
        release="" if current.observed is None else str(current.observed.release),
        ring=ring_check.ring if current.reachable or current.observed is None else _unseen(ring_check.ring),
        rows=_marked(rows, by_severity),
        problems=by_severity,
        totals=_totals(rows),
        requests=current.requests,
        _ring_check=ring_check,
    )


def _unseen(ring: RingState) -> RingState:
    return RingState("unknown", ring.against, None, "the broker cannot be read; the last known ring is shown")


def _rows(
    names: Sequence[str],
    ring_check: RingCheck,
    before: Mapping[str, QueueState],
    current: Snapshot,
    seconds: float,
) -> list[Row]:
    nothing = QueueState("")
    states = {name: current.queues.get(name, nothing) for name in names}
    highest = {name: current.highest.get(name, (0, 0)) for name in names}
    counted = bool(before)
    received = {
        name: _more(before.get(name, nothing).received, state.received, highest[name][0], counted=counted)
        for name, state in states.items()
    }
    total = sum(filter(None, received.values()))
    rows = []
    for name, state in states.items():
        handled = _more(before.get(name, nothing).handled, state.handled, highest[name][1], counted=counted)
        arrived = received[name]
        known = [count for count in (state.ready, state.unacknowledged) if count is not None]
        rows.append(
            Row(
                name,
                exact=ring_check.exact.get(name),
                observed=None if arrived is None or not total else arrived / total,
                received=arrived,
                handled=handled,
                rate_in=None if arrived is None or not seconds else arrived / seconds,
                rate_out=None if handled is None or not seconds else handled / seconds,
                depth=sum(known) if known else None,
                ready=state.ready,
                unacknowledged=state.unacknowledged,
                oldest=state.oldest,
                consumers=state.consumers,
                active_consumer=state.active_consumer,
            )
        )
    return rows


def _more(before: int | None, now: int | None, highest: int, *, counted: bool) -> int | None:
    """The increase of a counter; a new queue may not have it yet.

    It falls if a queue or a node starts, and if a node stops, whose part of the sum is missing then. So a fall tells nothing,
    and neither does the return to the highest value before it: the part, or all statistics, may have come back.
    """
    since = before or 0
    if now is None or not counted or now < since or since < highest <= now:
        return None
    return now - since


def _problems_of_queues(
    rows: Sequence[Row],
    before: Mapping[str, QueueState],
    states: Mapping[str, QueueState],
    ring_check: RingCheck,
    *,
    is_first: bool,
) -> list[Problem]:
    missing = {problem.queue for problem in ring_check.problems if problem.name == "queue-missing"}
    total = 0 if any(row.received is None for row in rows) else sum(row.received or 0 for row in rows)
    found: list[Problem] = []
    for row in rows:
        state = states.get(row.queue)
        named = f"queue {row.queue!r}"
        if state is None:
            if row.queue not in missing:
                found.append(Problem("queue-missing", named, "missing: it was deleted", row.queue))
            continue
        if _is_unconsumed(state, before.get(row.queue), is_first=is_first):
            found.append(Problem("no-consumer", named, "has no consumer", row.queue))
        elif _is_inactive(state) and _is_inactive(before.get(row.queue)):
            message = f"has {counted(state.consumers or 0, 'consumer')}, but none is active"
            found.append(Problem("no-active-consumer", named, message, row.queue))
        if _is_hot(row, total):
            message = f"gets {row.observed:.1%} of the messages; its exact share is {row.exact:.1%}"
            found.append(Problem("hot-queue", named, message, row.queue))
    return found


def _stranded(current: Snapshot, wanted: Topology | None) -> Iterator[Problem]:
    """The queues that left the exchange with messages in them, and have no consumer."""
    observed = current.observed
    if observed is None or not current.reachable:
        return
    target = part_behind(wanted or (current.first or observed).topology, [current.exchange])
    waiting = {
        name: (state.ready or 0) + (state.unacknowledged or 0)
        for name, state in current.queues.items()
        if not state.consumers and not state.is_stream
    }
    for each in stranded(target, observed, waiting):
        message = f"holds {counted(each.messages, 'message')}, but is not bound any more and has no consumer"
        yield Problem("stranded-messages", f"queue {each.queue!r}", message, each.queue)


def _is_unconsumed(state: QueueState, before: QueueState | None, *, is_first: bool) -> bool:
    """Whether a queue has no consumer; the first statistics of a new queue may be older than its consumers."""
    known = is_first or (before is not None and before.consumers is not None)
    return known and state.consumers == 0 and not state.is_stream


def _is_inactive(state: QueueState | None) -> bool:
    """Whether the queue has consumers but none is active; at a single poll, the broker may still be choosing one."""
    return state is not None and bool(state.consumers) and state.active_consumer == ""


def _is_hot(row: Row, total: int) -> bool:
    """Whether a queue gets far more than its exact share of all messages, beyond what chance explains."""
    if not total or row.exact is None or row.observed is None or (row.received or 0) < _LEAST_HOT:
        return False
    expected = row.exact * total
    if (row.received or 0) <= expected + _SIGMAS * sqrt(expected + 1):
        return False
    excess = (row.observed - row.exact) / (1 - row.exact) if row.exact < 1 else 0.0
    return row.observed >= _HOT_RATIO * row.exact or excess >= _HOT_KEY


def _marked(rows: Sequence[Row], problems: Sequence[Problem]) -> tuple[Row, ...]:
    marks: dict[str | None, dict[str, None]] = {}
    for problem in problems:
        marks.setdefault(problem.queue, {})[problem.name] = None
    return tuple(replace(row, marks=tuple(marks.get(row.queue, ()))) for row in rows)


def _totals(rows: Sequence[Row]) -> Totals:
    return Totals(
        received=sum(row.received or 0 for row in rows),
        handled=sum(row.handled or 0 for row in rows),
        rate_in=sum(row.rate_in or 0.0 for row in rows),
        rate_out=sum(row.rate_out or 0.0 for row in rows),
        depth=sum(row.depth or 0 for row in rows),
        consumers=sum(row.consumers or 0 for row in rows),
    )
