"""Compute a report about one exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.movement import moved, shares
from rabbit_chx.mirror.releases import NEWEST, Release
from rabbit_chx.mirror.ring import Destination, Ring
from rabbit_chx.mirror.skew import Spread, spread
from rabbit_chx.report.page import Change, Report
from rabbit_chx.topology.model import Topology
from rabbit_chx.topology.planning.what_if import what_if

_MOST_REMOVED: Final = 64
"""Above this number of queues, the report does not compute what each removal moves."""


def report(
    topology: Topology,
    exchange: str,
    *,
    release: str | Release = NEWEST,
    live: Ring | None = None,
    keys: Sequence[Any] | None = None,
    sample: Spread | None = None,
    sample_name: str = "",
    add: int | Sequence[str] = 0,
    remove: int | Sequence[str] = (),
    weights: Mapping[str, int] | None = None,
    worker_pool_size: int | None = None,
) -> Report:
    """Compute the report of one consistent-hash exchange of a topology.

    ``live`` is a ring that was read from a broker; the default is the ring in the order of the file. A sample is either
    ``keys``, the hashed values with repetitions, or ``sample``, counted by `rabbit_chx.spread`. ``add``, ``remove`` and
    ``weights`` describe a change as in `rabbit-chx plan`; the default is one more queue. With a ``worker_pool_size`` of 1,
    a restart on Mnesia sorts the ring.
    """
    parsed = Release.parse(release)
    if live is not None and exchange in topology.unordered:
        topology = topology._with_order_of(live, exchange)
    filed = topology.ring(exchange, parsed)
    found = topology.exchange(exchange)
    assert found is not None
    ring = (filed if live is None else live)._require_known()
    mirror = ConsistentHashExchange(ring, hash_header=found.hash_header, hash_property=found.hash_property)
    if keys is not None:
        sample = spread(mirror, keys)
    asked = bool(add or remove or weights)
    new = add if asked else 1
    slots = topology.slots_of(exchange)
    # Queues are not bound to an exchange with slots, and its slots stay.
    longer = ring.bind(_new_name(ring), "1")
    added = None if slots else Change("Adding one queue, bound last", moved(ring, longer), longer)
    removals = {} if slots else _removals(ring)
    has_room = slots is None or len(slots.queues) < slots.count
    return Report(
        exchange=exchange,
        hashed=str(mirror._hash_on),
        live=ring,
        recovered=ring.after_restart(worker_pool_size=worker_pool_size),
        shares=shares(ring),
        added=added,
        removals=tuple((destination, change.movement.share) for destination, change in removals.items()),
        removed=next(iter(removals.values()), None),
        ways=what_if(topology, exchange, add=new, remove=remove, weights=weights, release=parsed)
        if asked or has_room
        else (),
        asked=_words(add, remove, weights or {}) if asked else "one more queue",
        sample=sample,
        sample_name=sample_name,
        as_filed=ring.runs == filed.runs,
        source="a broker" if live is not None else "the file alone",
    )


def _removals(ring: Ring) -> dict[Destination, Change]:
    """Compute what unbinding each queue moves, the largest share first."""
    bindings = {binding.destination: binding for binding in ring.bindings}
    changes: dict[Destination, Change] = {}
    for destination, binding in bindings.items() if 1 < len(bindings) <= _MOST_REMOVED else ():
        after = ring.unbind(destination, binding.key, dict(binding.arguments))
        title = f"Unbinding {destination}, the costliest removal"
        changes[destination] = Change(title, moved(ring, after), after)
    return dict(sorted(changes.items(), key=lambda change: -change[1].movement.share))


def _new_name(ring: Ring) -> str:
    taken = set(map(str, ring.destinations))
    names = ("new", *(f"new-{number}" for number in range(2, len(taken) + 3)))
    return next(name for name in names if name not in taken)


def _words(add: int | Sequence[str], remove: int | Sequence[str], weights: Mapping[str, int]) -> str:
    added = f"{add} more queue{'s' * (add != 1)}" if isinstance(add, int) else ", ".join(add)
    removed = "without " + (f"the last {remove}" if isinstance(remove, int) else ", ".join(remove))
    reweighted = [f"{name} with weight {weight}" for name, weight in weights.items()]
    return ", ".join([*([added] if add else []), *([removed] if remove else []), *reweighted])
