"""Compare the ring and the queues of an exchange with a file, or with the start of the watch. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Literal, TypeAlias

from rabbit_chx.base.advice import Advice
from rabbit_chx.errors import Unpredictable
from rabbit_chx.mirror.movement import shares
from rabbit_chx.mirror.partitioning import modulus_shares
from rabbit_chx.mirror.ring import Destination, Ring, ToExchange
from rabbit_chx.topology import InvalidValue, Observed, Release, Store, Topology, drift
from rabbit_chx.topology.checks.drift import SECOND_BINDING, Drift, ring_drift
from rabbit_chx.topology.graph import alternates_of, part_behind, reachable
from rabbit_chx.topology.model import MODULUS_HASH
from rabbit_chx.watch.observer import Problem, Snapshot

RingStatus: TypeAlias = Literal["same", "drifted", "unknown"]
Against: TypeAlias = Literal["file", "start"]

_NAMES: Final = {
    "missing-type": "plugin-off",
    "missing-exchange": "exchange-missing",
    "missing-queue": "queue-missing",
    "missing-binding": "unbound-queue",
    "extra-binding": "ring-drifted",
    SECOND_BINDING: "ring-drifted",
    "weight": "ring-drifted",
    "dead-binding": "dead-binding",
    "ring": "ring-drifted",
    "ring-order": "ring-drifted",
    "ring-unknown": "ring-unknown",
    "slot": "ring-drifted",
    "slot-balance": "ring-drifted",
    "attributes": "settings-drifted",
    "arguments": "settings-drifted",
}
"""The problem for each kind of drift; other kinds are about objects that a watch ignores."""
_ORDER: Final = {"ring", "ring-order", "ring-unknown"}
_MOVES_KEYS: Final = {"plugin-off", "exchange-missing", "unbound-queue", "dead-binding", "ring-drifted"}
_RESTARTED: Final = (
    "a node has restarted since the watch began, and a restart on Mnesia changes the order of the buckets; "
    f"{Advice.LEARN_ORDER}"
)


@dataclass(frozen=True, slots=True)
class RingState:
    """The ring of an exchange, compared with the expected ring."""

    status: RingStatus = "unknown"
    against: Against = "start"
    """The expected state: a file, or the broker as it was when the watch began."""
    misrouted: float | None = None
    """The exact share of keys that go to the wrong queue, if known."""
    why: str = ""
    """Why the order of the buckets is unknown, if it is."""

    @property
    def text(self) -> str:
        """The state in words, without the reason."""
        if self.status == "same":
            return "as in the file" if self.against == "file" else "unchanged since the start"
        if self.status == "unknown":
            return "order unknown"
        moved = "" if self.misrouted is None else f", {self.misrouted:.2%} of the keys go to the wrong queue"
        return f"drifted{moved}"

    def as_dict(self) -> dict[str, object]:
        """The state as a JSON object."""
        return {**asdict(self), "text": self.text}


@dataclass(frozen=True, slots=True)
class RingCheck:
    """An exchange, compared with the file or with the start of the watch, apart from its messages."""

    ring: RingState = field(default_factory=RingState)
    exact: Mapping[str, float | None] = field(default_factory=dict)
    """The queues behind the exchange in ring order, each with its exact share of all keys."""
    problems: tuple[Problem, ...] = ()
    live: Ring | None = None
    """The ring on the broker, if the exchange has one."""
    wanted: Ring | None = None
    """The ring that the exchange should have."""


def check_ring(current: Snapshot, wanted: Topology | None) -> RingCheck:
    """Compare the virtual host with a file or, without a file, with its state at the start of the watch.

    Without a file, an order of buckets that was unknown at the start is no problem as long as no node restarts.
    """
    exchange, observed = current.exchange, current.observed
    against: Against = "start" if wanted is None else "file"
    if observed is None:
        return RingCheck(RingState("unknown", against, None, "it has not been read"))
    first = current.first or observed
    target = part_behind(first.topology if wanted is None else wanted, [exchange])
    watched = f"exchange {exchange!r}"
    drifts = drift(target, observed)
    problems: list[Problem] = []
    if wanted is None:
        drifts = tuple(_since_first(drifts, target, first, observed))
        guessed = any(source == "unknown" for source in first.ring_sources.values())
        if guessed and current.restarted and observed.release.store is Store.MNESIA:
            problems.append(Problem("ring-unknown", watched, _RESTARTED))
    if target.exchange(exchange) is None:
        problems.append(Problem("exchange-missing", watched, "missing"))
    problems += (_problem(one, wanted) for one in drifts if one.kind in _NAMES)
    if wanted is None and first.topology.exchange(exchange) is not None:
        problems += _dead_ends(exchange, observed.topology, {each.where for each in problems})
    live = observed.rings.get(exchange)
    state = RingState(
        _status(problems, live),
        against,
        next((one.misrouted for one in drifts if one.kind in _ORDER and one.where == watched), None),
        "" if live is None else live.why_unknown,
    )
    return RingCheck(
        state,
        exact_shares(exchange, observed),
        tuple(problems),
        live,
        _wanted_ring(exchange, target, observed.release) if wanted else first.rings.get(exchange),
    )


def _since_first(
    drifts: Iterable[Drift], target: Topology, first: Observed, observed: Observed
) -> Iterator[Drift]:
    """The differences from the start of the watch.

    With duplicate or numbered bindings, a ring differs from the one that its bindings describe, so rings are compared as
    they were read. An order that was unknown at the start is no difference.
    """
    usual = {one for one in drift(target, first) if one.kind != "dead-binding"}
    rings = [name for name in first.rings if target.exchange(name)]
    guessed = [name for name in rings if first.ring_sources.get(name) == "unknown"]
    readable = {name for name, ring in observed.rings.items() if ring.known}
    known = [name for name in rings if first.rings[name].known and name in readable]
    places = {f"exchange {name!r}" for name in (*guessed, *known)}
    yield from (
        one for one in drifts if one not in usual and not (one.kind in _ORDER and one.where in places)
    )
    for name in known:
        yield from ring_drift(name, first.rings[name], observed.rings[name])


def _dead_ends(exchange: str, topology: Topology, known: set[str]) -> Iterator[Problem]:
    """The exchanges that lose messages, even if they did so when the watch began; ``known`` are the places of other problems."""
    behind = reachable(topology, [ToExchange(exchange)])
    for name in sorted(each.name for each in behind if isinstance(each, ToExchange)):
        leads = topology.bindings_from(name) or any(alternates_of(topology, name))
        if not leads and not known & {f"exchange {name!r}", f"slot exchange {name!r}"}:
            text = "leads to no queue: messages that reach it are lost"
            yield Problem("queue-missing", f"exchange {name!r}", text)


def _problem(one: Drift, wanted: Topology | None) -> Problem:
    message = _since_start(one) if wanted is None else one.message
    return Problem(_NAMES[one.kind], one.where, message, one.queue)


def _since_start(one: Drift) -> str:
    """The message of a difference from the start of the watch; the usual message would mention a file."""
    moved = "" if one.misrouted is None else f": {one.misrouted:.1%} of the keys go elsewhere"
    changed = {
        "extra-binding": one.message.replace("not in the file", "bound since the watch began"),
        "ring": f"its ring has changed since the watch began{moved}",
        "ring-order": f"the order of its buckets has changed since the watch began{moved}",
    }
    return changed.get(one.kind, one.message)


def exact_shares(exchange: str, observed: Observed) -> dict[str, float | None]:
    """The exact share of all keys that each queue behind an exchange gets, in ring order.

    While the order of the buckets is unknown, the share follows from the weights alone. Shares behind another exchange
    with more than one destination are None.
    """
    found: dict[str, float | None] = {}
    for start in _divided(exchange, observed).items():
        waiting, seen = [start], set()
        while waiting:  # no recursion: a chain of exchanges may be longer than Python's stack
            destination, share = waiting.pop()
            if isinstance(destination, str):
                before = found.get(destination, 0.0)
                found[destination] = None if share is None or before is None else before + share
            elif destination.name not in seen:
                seen.add(destination.name)
                below = list(_divided(destination.name, observed))
                waiting += [(each, share if len(below) == 1 else None) for each in reversed(below)]
    return found


def _divided(exchange: str, observed: Observed) -> Mapping[Destination, float | None]:
    """The destinations of one exchange and the exact share of its keys that each gets."""
    bindings = observed.topology.bindings_from(exchange)
    kind = observed.topology.exchange(exchange)
    if kind is None:
        return {}
    ring = observed.rings.get(exchange)
    if ring is not None and ring.known:
        return {**dict.fromkeys((each.destination for each in ring.bindings), 0.0), **shares(ring)}
    if ring is not None:
        weights = {each.destination: each.weight for each in reversed(ring.bindings)}
        total = sum(weights.values())
        return {each.destination: weights[each.destination] / total for each in ring.bindings}
    if kind.type == MODULUS_HASH:
        return {**modulus_shares([(each.destination, each.key) for each in bindings], observed.release)}
    return dict.fromkeys((each.destination for each in bindings), 1.0 if len(bindings) == 1 else None)


def _status(problems: list[Problem], live: Ring | None) -> RingStatus:
    if any(problem.name in _MOVES_KEYS for problem in problems):
        return "drifted"
    unknown = any(problem.name == "ring-unknown" for problem in problems)
    return "unknown" if unknown or (live is not None and not live.known) else "same"


def _wanted_ring(exchange: str, target: Topology, release: Release) -> Ring | None:
    """The ring in the order of the file; None if the exchange has no ring or an invalid one."""
    try:
        return target.ring(exchange, release)
    except (InvalidValue, Unpredictable):
        return None
