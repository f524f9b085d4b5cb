"""The ring worked out from outside: which orders of buckets explain where messages were seen to land.

Nothing in AMQP or the HTTP API tells the order of the buckets, but every observed pair of a key and a
queue pins one bucket to that queue, provided that the number of buckets is known. It follows from the
weights, unless a binding is dead or a destination bound twice; then several numbers are possible, and
wrong ones betray themselves quickly, because under them two queues claim one bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rabbit_chx.errors import Contradiction, InvalidValue
from rabbit_chx.hashing import hash_on
from rabbit_chx.kernel.table import bucket_table
from rabbit_chx.releases import MAX_WEIGHT, Release
from rabbit_chx.ring import Ring, RingBinding, as_bindings, check_destination, each

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from rabbit_chx.fields import Client
    from rabbit_chx.releases import Store
    from rabbit_chx.ring import Bindings, Destination

__all__ = ["Inference", "infer"]

_MOST_RINGS: Final = 1_000
_MOST_STEPS: Final = 100_000
"""How far the search for orders goes before it says that there are too many to tell apart."""

_Runs: TypeAlias = "tuple[tuple[Destination, int], ...]"
_Pins: TypeAlias = "dict[int, Destination]"


@dataclass(frozen=True)
class Inference:
    """What observed pairs say about a ring."""

    rings: tuple[Ring, ...]
    """Every ring that explains all pairs; only some of them where ``complete`` is False."""

    complete: bool
    """Whether all possible rings were found before there were too many."""

    buckets: tuple[Destination | None, ...]
    """The destination of each bucket, None where it is not known yet; empty while sizes differ."""

    @property
    def ring(self) -> Ring | None:
        """The ring, if only one explains the pairs."""
        return self.rings[0] if self.complete and len(self.rings) == 1 else None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of buckets that are still possible."""
        return tuple(sorted({len(ring) for ring in self.rings}))

    def __str__(self) -> str:
        if self.ring is not None:
            dead = ", ".join(str(binding.destination) for binding in self.ring.dead)
            return f"the ring is known: {len(self.ring)} buckets" + (
                f"; listed but dead: {dead}" if dead else ""
            )
        count = f"{len(self.rings)}" if self.complete else f"more than {len(self.rings)}"
        if not self.buckets:
            sizes = " or ".join(map(str, self.sizes))
            return f"{count} rings explain the pairs, of {sizes} buckets: more pairs are needed"
        unknown = [bucket for bucket, owner in enumerate(self.buckets) if owner is None]
        shown = ", ".join(map(str, unknown[:10])) + (", ..." if len(unknown) > 10 else "")
        return (
            f"{count} rings of {len(self.buckets)} buckets explain the pairs; unknown are {len(unknown)} buckets "
            f"({shown}): more pairs are needed"
        )


def infer(
    pairs: Iterable[tuple[Any, Destination]],
    bindings: Bindings,
    *,
    release: str | Release = "4.3",
    store: str | Store | None = None,
    hash_header: str | None = None,
    hash_property: str | None = None,
    client: Client | None = None,
) -> Inference:
    """All rings that explain where messages landed.

    ``pairs`` holds what was hashed (routing key, header value or property value) and the destination it
    was seen at. ``bindings`` are all that the broker lists, in any order; a destination may be there
    twice, and dead ones are found out. Pairs that contradict each other raise :class:`Contradiction`.
    """
    parsed = Release.parse(release, store=store)
    listed = _listed(bindings)
    Ring(listed, None, parsed).refuse_duplicates()
    observed = _observed(pairs)
    on = hash_on(hash_header, hash_property)
    hashes = on.hashes([key for key, _ in observed], parsed, client)
    seen = [destination for _, destination in observed]
    options = _options(listed, set(seen))
    found: list[_Runs] = []
    complete = True
    pinned: dict[int, _Pins] = {}
    for size in _possible_sizes(options):
        pins = _pins(bucket_table(size)[hashes], seen)
        if pins is not None:
            search = _Search(size, pins, options, room=_MOST_RINGS - len(found))
            orders = list(search.orders())
            found += orders
            complete = complete and not search.gave_up
            if orders or search.gave_up:
                pinned[size] = pins
    if not found:
        if not complete:
            raise InvalidValue(
                "list of pairs",
                f"{len(observed)} pairs",
                "enough of them to search for the ring",
                "Observe longer",
            )
        raise Contradiction(_explain_contradiction(observed, hashes, options))
    rings = tuple(Ring(listed, runs, parsed) for runs in found)
    return Inference(rings, complete, _agreed(rings, pinned, complete=complete))


def _observed(pairs: Iterable[tuple[Any, Destination]]) -> list[tuple[Any, Destination]]:
    observed = list(each(pairs, "the list of pairs", "pairs of a key and the queue it was seen at"))
    for row, pair in enumerate(observed):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidValue(
                f"pair in row {row}",
                pair,
                "a key and the queue it was seen at",
                "An DeliveryMonitor collects them",
            )
        check_destination(pair[1])
    if not observed:
        raise InvalidValue("list of pairs", "none", "at least one", "200 are enough for most rings")
    return observed


def _listed(bindings: Bindings) -> tuple[RingBinding, ...]:
    listed = tuple(as_bindings(bindings))
    if not listed:
        raise InvalidValue(
            "bindings",
            "none",
            "all bindings that the broker lists",
            "`rabbitmqctl list_bindings` prints them",
        )
    return listed


def _options(listed: tuple[RingBinding, ...], seen: set[Destination]) -> dict[Destination, frozenset[int]]:
    """The weights that each destination may have; 0, which is dead, only where nothing was seen."""
    for destination in seen:
        if all(binding.destination != destination for binding in listed):
            raise Contradiction(
                f"a message was seen at {str(destination)!r}, which is not among the bindings: list all bindings of "
                "the exchange, and only pairs that it routed"
            )
    options: dict[Destination, frozenset[int]] = {}
    for binding in listed:
        known = options.get(binding.destination, frozenset())
        options[binding.destination] = known | {binding.weight}
    return {d: weights if d in seen else weights | {0} for d, weights in options.items()}


def _possible_sizes(options: Mapping[Destination, frozenset[int]]) -> list[int]:
    """All sums of one weight of each destination, the largest first: most bindings are alive."""
    sums = {0}
    for weights in options.values():
        sums = {total + weight for total in sums for weight in weights}
        if len(sums) > MAX_WEIGHT:
            raise InvalidValue(
                "list of pairs",
                "too few for so many destinations that no message was seen at",
                "pairs from nearly every destination",
                "Observe longer",
            )
    return sorted(sums - {0}, reverse=True)


def _pins(buckets: NDArray[Any], seen: list[Destination]) -> _Pins | None:
    """The owner of every bucket that a key fell into, or None where two claim one."""
    pins: _Pins = {}
    for bucket, destination in zip(buckets.tolist(), seen, strict=True):
        if pins.setdefault(bucket, destination) != destination:
            return None
    return pins


class _Search:
    """Lays the runs of buckets side by side, from bucket 0 on, in every way that the pins allow."""

    def __init__(
        self, size: int, pins: _Pins, options: Mapping[Destination, frozenset[int]], *, room: int
    ) -> None:
        self.size = size
        self.pins = pins
        self.options = options
        self.room = room
        self.steps = 0
        self.gave_up = False
        self.pinned_to: dict[Destination, list[int]] = {destination: [] for destination in options}
        for bucket, destination in pins.items():
            self.pinned_to[destination].append(bucket)

    def orders(self) -> Iterator[_Runs]:
        """Every order, until there are too many."""
        stack: list[tuple[int, _Runs]] = [(0, ())]
        while stack:
            self.steps += 1
            if self.room == 0 or self.steps > _MOST_STEPS:
                self.gave_up = True
                return
            start, runs = stack.pop()
            placed = {destination for destination, _ in runs}
            rest = [destination for destination in self.options if destination not in placed]
            if start == self.size:
                if all(0 in self.options[destination] for destination in rest):
                    self.room -= 1
                    yield runs
                continue
            owner = self.pins.get(start)
            for destination in rest if owner is None else [owner]:
                if destination in placed:
                    continue
                stack += [
                    (start + weight, (*runs, (destination, weight)))
                    for weight in self.options[destination] - {0}
                    if self._fits(destination, start, start + weight)
                ]

    def _fits(self, destination: Destination, start: int, end: int) -> bool:
        if end > self.size or any(not start <= bucket < end for bucket in self.pinned_to[destination]):
            return False
        return all(self.pins.get(bucket, destination) == destination for bucket in range(start, end))


def _agreed(
    rings: tuple[Ring, ...], pinned: Mapping[int, _Pins], *, complete: bool
) -> tuple[Destination | None, ...]:
    """What all rings have in common, or the pins alone where not all rings are there to be compared."""
    if len(pinned) > 1:
        return ()
    ((size, pins),) = pinned.items()
    if not complete:
        return tuple(pins.get(bucket) for bucket in range(size))
    owners = (set(column) for column in zip(*(ring.bucket_map for ring in rings), strict=True))
    return tuple(owner.pop() if len(owner) == 1 else None for owner in owners)


def _explain_contradiction(
    observed: list[tuple[Any, Destination]],
    hashes: NDArray[Any],
    options: Mapping[Destination, frozenset[int]],
) -> str:
    size = _possible_sizes(options)[0]
    first: dict[int, tuple[Any, Destination]] = {}
    for bucket, (key, destination) in zip(bucket_table(size)[hashes].tolist(), observed, strict=True):
        other_key, other = first.setdefault(bucket, (key, destination))
        if other != destination:
            return (
                f"no ring explains the pairs: of {size} buckets, {other_key!r} (seen at {str(other)!r}) and {key!r} "
                f"(seen at {str(destination)!r}) share bucket {bucket}. The ring changed while they were observed, "
                "or not all of them came through this exchange"
            )
    return (
        "no ring explains the pairs: the buckets of one destination do not lie side by side as its weight "
        "demands. A weight is wrong, a binding is not listed, or the ring changed meanwhile"
    )
