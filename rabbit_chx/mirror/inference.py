"""Infer a ring from observed messages: the orders of buckets that explain where the messages landed.

AMQP and the HTTP API do not show the order of the buckets. Every observed pair of a key and a queue assigns one bucket
to that queue, if the number of buckets is known: it is the sum of the weights, unless a binding is dead or a
destination is bound twice. Then several numbers are possible, and wrong ones soon assign one bucket to two queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rabbit_chx.base.text import counted
from rabbit_chx.errors import Contradiction, InvalidValue
from rabbit_chx.mirror.fields import Client
from rabbit_chx.mirror.hashing import hash_on
from rabbit_chx.mirror.kernel.table import bucket_table
from rabbit_chx.mirror.releases import MAX_WEIGHT, NEWEST, Release, Store
from rabbit_chx.mirror.ring import (
    Bindings,
    Destination,
    Ring,
    RingBinding,
    as_bindings,
    check_destination,
    each,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_RINGS: Final = 1_000
_MOST_STEPS: Final = 100_000
"""The limits of the search for orders, of all sizes together."""

_Runs: TypeAlias = "tuple[tuple[Destination, int], ...]"
_Pins: TypeAlias = "dict[int, Destination]"


@dataclass(frozen=True)
class Inference:
    """The rings that observed pairs allow."""

    rings: tuple[Ring, ...]
    """The rings that explain all pairs; only some of them if ``complete`` is False."""

    complete: bool
    """Whether ``rings`` lists all possible rings."""

    buckets: tuple[Destination | None, ...]
    """The destination of each bucket, None where it is unknown; empty while the number of buckets is unknown."""

    @property
    def ring(self) -> Ring | None:
        """The ring, if only one explains the pairs."""
        return self.rings[0] if self.complete and len(self.rings) == 1 else None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The possible numbers of buckets."""
        return tuple(sorted({len(ring) for ring in self.rings}))

    def __str__(self) -> str:
        if self.ring is not None:
            dead = ", ".join(str(binding.destination) for binding in self.ring.dead)
            return f"the ring is known: {counted(len(self.ring), 'bucket')}" + (
                f"; bindings without buckets: {dead}" if dead else ""
            )
        count = f"{len(self.rings)}" if self.complete else f"more than {len(self.rings)}"
        if not self.buckets:
            sizes = " or ".join(map(str, self.sizes))
            return f"{count} rings of {sizes} buckets explain the pairs; more pairs are needed"
        unknown = [bucket for bucket, owner in enumerate(self.buckets) if owner is None]
        shown = ", ".join(map(str, unknown[:10])) + (", ..." if len(unknown) > 10 else "")
        return (
            f"{count} rings of {len(self.buckets)} buckets explain the pairs; {len(unknown)} buckets are unknown "
            f"({shown}); more pairs are needed"
        )


def infer(
    pairs: Iterable[tuple[Any, Destination]],
    bindings: Bindings,
    *,
    release: str | Release = NEWEST,
    store: str | Store | None = None,
    hash_header: str | None = None,
    hash_property: str | None = None,
    client: Client | None = None,
) -> Inference:
    """Find all rings that explain where messages landed.

    Args:
        pairs: hashed values (routing keys, header or property values) with the destinations where they were seen.
        bindings: all bindings that the broker lists, in any order, including dead ones and duplicates.
        release: the broker's release.
        store: its metadata store.
        hash_header: the exchange's argument ``hash-header``.
        hash_property: the exchange's argument ``hash-property``.
        client: the client that sent the header.

    Raises:
        Contradiction: no ring explains all pairs.
    """
    parsed = Release.parse(release, store=store)
    listed = _listed(bindings)
    Ring(listed, None, parsed)._refuse_duplicates()
    observed = _observed(pairs)
    on = hash_on(hash_header, hash_property)
    hashes = on.hashes([key for key, _ in observed], parsed, client)
    seen = [destination for _, destination in observed]
    options = _options(listed, set(seen))
    found: list[_Runs] = []
    complete = True
    pinned: dict[int, _Pins] = {}
    steps = _MOST_STEPS
    for size in _possible_sizes(options):
        pins = _pins(bucket_table(size)[hashes], seen)
        if pins is not None:
            search = _Search(size, pins, options, most=_MOST_RINGS - len(found), steps=steps)
            orders = list(search.orders())
            found += orders
            steps = search.steps
            complete = complete and not search.gave_up
            if orders or search.gave_up:
                pinned[size] = pins
    if not found:
        if not complete:
            raise InvalidValue(
                "list of pairs",
                f"{len(observed)} pairs",
                "enough pairs to find the ring",
                "Observe longer",
            )
        raise Contradiction(_explain_contradiction(observed, hashes, options))
    rings = tuple(Ring(listed, runs, parsed) for runs in found)
    return Inference(rings, complete, _agreed(rings, pinned, complete=complete))


def _observed(pairs: Iterable[tuple[Any, Destination]]) -> list[tuple[Any, Destination]]:
    observed = list(each(pairs, "list of pairs", "pairs of a key and the queue where it was seen"))
    for row, pair in enumerate(observed):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidValue(
                f"pair in row {row}",
                pair,
                "a key and the queue where it was seen",
                "DeliveryMonitor collects them",
            )
        check_destination(pair[1])
    if not observed:
        raise InvalidValue("list of pairs", "none", "at least one", "200 pairs are enough for most rings")
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
    """The weights that each destination may have; 0, a dead binding, only if no message was seen there."""
    for destination in seen:
        if all(binding.destination != destination for binding in listed):
            raise Contradiction(
                f"a message was seen at {str(destination)!r}, which is not among the bindings; pass all bindings of "
                "the exchange, and only pairs that it routed"
            )
    options: dict[Destination, frozenset[int]] = {}
    for binding in listed:
        known = options.get(binding.destination, frozenset())
        options[binding.destination] = known | {binding.weight}
    return {d: weights if d in seen else weights | {0} for d, weights in options.items()}


def _possible_sizes(options: Mapping[Destination, frozenset[int]]) -> list[int]:
    """All sums of one weight for each destination, largest first, because most bindings have buckets."""
    sums = {0}
    for weights in options.values():
        sums = {total + weight for total in sums for weight in weights}
        if len(sums) > MAX_WEIGHT:
            raise InvalidValue(
                "list of pairs",
                "too few, because many destinations have no message",
                "pairs from nearly every destination",
                "Observe longer",
            )
    return sorted(sums - {0}, reverse=True)


def _pins(buckets: NDArray[Any], seen: list[Destination]) -> _Pins | None:
    """The destination of every bucket with a key, or None if two destinations share one."""
    pins: _Pins = {}
    for bucket, destination in zip(buckets.tolist(), seen, strict=True):
        if pins.setdefault(bucket, destination) != destination:
            return None
    return pins


class _Search:
    """Finds every sequence of runs, from bucket 0 on, that the pins allow."""

    def __init__(
        self, size: int, pins: _Pins, options: Mapping[Destination, frozenset[int]], *, most: int, steps: int
    ) -> None:
        self.size = size
        self.pins = pins
        self.options = options
        self.left = most
        self.steps = steps
        self.gave_up = False
        self.pinned_to: dict[Destination, list[int]] = {destination: [] for destination in options}
        for bucket, destination in pins.items():
            self.pinned_to[destination].append(bucket)

    def orders(self) -> Iterator[_Runs]:
        """Every order, up to the limits."""
        stack: list[tuple[int, _Runs]] = [(0, ())]
        while stack:
            if self.left == 0 or self.steps == 0:
                self.gave_up = True
                return
            self.steps -= 1
            start, runs = stack.pop()
            placed = {destination for destination, _ in runs}
            rest = [destination for destination in self.options if destination not in placed]
            if start == self.size:
                if all(0 in self.options[destination] for destination in rest):
                    self.left -= 1
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
    """The buckets on which all rings agree, or only the pins if not all rings were found."""
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
                f"no ring with these weights explains the pairs: of {size} buckets, {other_key!r} (seen at "
                f"{str(other)!r}) and {key!r} (seen at {str(destination)!r}) share bucket {bucket}. A weight is wrong, a "
                "binding is not listed, the ring changed during the observation, or not all messages came through "
                "this exchange"
            )
    return (
        "no ring with these weights explains the pairs: the buckets of one destination are not adjacent. A weight is "
        "wrong, a binding is not listed, or the ring changed during the observation"
    )
