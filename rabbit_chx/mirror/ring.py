"""The ring of a consistent-hash exchange: the buckets that its bindings have created, as the plugin keeps them.

A binding of weight w appends w buckets, and unbinding removes a destination's buckets and shifts the later ones down.
Each change returns a new ring.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, Self, TypeAlias

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.limits import as_integer
from rabbit_chx.base.text import counted, is_utf8
from rabbit_chx.errors import InvalidValue, RingUnknown, Unpredictable
from rabbit_chx.mirror.releases import MAX_WEIGHT, NEWEST, Release, Store


@dataclass(frozen=True, slots=True, order=True)
class ToExchange:
    """A destination that is another exchange; a plain ``str`` is a queue."""

    name: str

    def __str__(self) -> str:
        return f"exchange {self.name}"


Destination: TypeAlias = "str | ToExchange"

# What erlang:list_to_integer/1 accepts; Python's int() also accepts spaces, underscores and other digits.
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)


# rabbit_exchange_type_consistent_hash.erl, validate_binding/2.
def parse_weight(weight: object, *, of: Destination) -> int:
    """A weight as an integer from 1 to 10,000, from an integer or the text of a binding key."""
    if isinstance(weight, str):
        parsed = int(weight) if _INTEGER.fullmatch(weight) and len(weight) <= 255 else None
    else:
        parsed = as_integer(weight)
    if parsed is None or not 1 <= parsed <= MAX_WEIGHT:
        raise InvalidValue(
            f"weight for {named(of)}",
            weight,
            f"an integer from 1 to {MAX_WEIGHT}",
            "Use small integers with the same ratio",
        )
    return parsed


def name_of(destination: Destination) -> str:
    """The name of the queue or of the exchange."""
    return destination.name if isinstance(destination, ToExchange) else destination


def named(thing: Any) -> str:
    """The kind and name of a queue (given as its name) or of an exchange, for messages."""
    return f"queue {thing!r}" if isinstance(thing, str) else f"exchange {thing.name!r}"


def noun_of(destinations: Iterable[Destination]) -> str:
    """What to call one of these destinations."""
    return "queue" if all(isinstance(each, str) for each in destinations) else "destination"


def check_destination(destination: Destination) -> Destination:
    """Return the destination; raise InvalidValue if its name is invalid."""
    name = name_of(destination)
    if isinstance(name, str) and is_utf8(name) and 0 < len(name.encode()) <= 255:
        return destination
    raise InvalidValue(
        "destination",
        destination,
        "a queue name of 1 to 255 bytes of UTF-8, or ToExchange(name)",
        "`rabbitmqctl list_bindings` prints the names",
    )


@dataclass(frozen=True)
class RingBinding:
    """A binding as the broker lists it. Its key is the weight as the text that was sent.

    ``"7"`` and ``"007"`` are two bindings of the same weight, and sort differently.
    """

    destination: Destination
    key: str = "1"
    arguments: tuple[tuple[str, int | str], ...] = ()

    def __post_init__(self) -> None:
        check_destination(self.destination)
        if not isinstance(self.key, str):
            raise InvalidValue(
                f"binding key for {named(self.destination)}",
                self.key,
                "the weight as text",
                "RingBinding.of() also accepts an integer",
            )
        parse_weight(self.key, of=self.destination)

    @classmethod
    def of(
        cls,
        destination: Destination,
        weight: int | str = 1,
        arguments: Mapping[str, int | str] | None = None,
    ) -> Self:
        """Create a binding; the weight may be an integer."""
        check_destination(destination)
        key = weight if isinstance(weight, str) else str(parse_weight(weight, of=destination))
        return cls(destination, key, tuple(sorted((arguments or {}).items())))

    @property
    def weight(self) -> int:
        """The number of buckets."""
        return int(self.key)

    @property
    def _sort_key(self) -> tuple[Any, ...]:
        """Erlang's sort key without the arguments, which only distinguish bindings of one destination."""
        return (self.key.encode(), *destination_sort_key(self.destination))


def destination_sort_key(destination: Destination) -> tuple[bool, bytes]:
    """Erlang's order of resources: exchanges before queues, then the bytes of the name."""
    if isinstance(destination, ToExchange):
        return (False, destination.name.encode())
    return (True, destination.encode())


Bindings: TypeAlias = (
    "Mapping[Destination, int | str] | Iterable[Destination | tuple[Destination, int | str] | RingBinding]"
)
"""Destinations with their weights, in bind order."""

_Run: TypeAlias = tuple[Destination, int]


@dataclass(frozen=True)
class Ring:
    """All bindings of an exchange, and the buckets that they have created.

    >>> ring = Ring.of({"q0": 1, "q1": 2})
    >>> ring.bucket_map
    ('q0', 'q1', 'q1')
    >>> ring.unbind("q0").bind("q2").bucket_map
    ('q1', 'q1', 'q2')
    """

    bindings: tuple[RingBinding, ...] = ()
    """As the broker lists them, in bind order, dead ones included."""

    runs: tuple[_Run, ...] | None = ()
    """Destinations and their number of buckets, in bucket order; None while the order is not known."""

    release: Release = field(default_factory=lambda: Release.parse(NEWEST))
    why_unknown: str = ""

    @classmethod
    def of(
        cls, bindings: Bindings, *, release: str | Release = NEWEST, store: str | Store | None = None
    ) -> Ring:
        """The ring after binding each destination once, in the order given."""
        listed = tuple(as_bindings(bindings))
        for destination, times in Counter(binding.destination for binding in listed).items():
            if times > 1:
                raise InvalidValue(
                    "list of bindings",
                    f"{named(destination)} twice",
                    "each destination once",
                    Advice.NAME_ONCE,
                )
        runs = tuple((binding.destination, binding.weight) for binding in listed)
        return cls(listed, runs, Release.parse(release, store=store))

    @classmethod
    def read(
        cls,
        buckets: Iterable[Destination],
        *,
        bindings: Bindings | None = None,
        release: str | Release = NEWEST,
        store: str | Store | None = None,
    ) -> Ring:
        """The ring from the destinations of a broker's buckets, in order.

        ``bindings`` are those that the broker lists; a binding without a bucket is dead. By default each
        destination has one binding.
        """
        held = as_destinations(buckets, "list of buckets")
        runs = tuple((destination, len(list(same))) for destination, same in groupby(held))
        # In old releases a destination can have several runs.
        listed = as_bindings(Counter(held) if bindings is None else bindings)
        return cls(tuple(listed), runs, Release.parse(release, store=store))

    @property
    def known(self) -> bool:
        """Whether the order of the buckets is known."""
        return self.runs is not None

    def _require_known(self) -> Self:
        """Return the ring; raise RingUnknown if the order of its buckets is unknown."""
        self._runs()
        return self

    @property
    def bucket_map(self) -> tuple[Destination, ...]:
        """The destination of each bucket, in order."""
        return tuple(destination for destination, weight in self._runs() for _ in range(weight))

    @property
    def destinations(self) -> tuple[Destination, ...]:
        """The destinations that have buckets, each once, in bucket order."""
        return tuple(dict.fromkeys(destination for destination, _ in self._runs()))

    @property
    def dead(self) -> tuple[RingBinding, ...]:
        """Bindings without a bucket."""
        live = {destination for destination, _ in self._runs()}
        return tuple(binding for binding in self.bindings if binding.destination not in live)

    def __len__(self) -> int:
        return sum(weight for _, weight in self._runs())

    def _repr_html_(self) -> str:
        from rabbit_chx.base.markup import notebook

        rows = [(str(destination), f"{weight:,}") for destination, weight in self.runs or ()]
        return notebook(self.why_unknown or counted(len(self), "bucket"), ("queue", "buckets"), rows)

    def _runs(self) -> tuple[_Run, ...]:
        if self.runs is None:
            raise RingUnknown(f"the order of the buckets is unknown: {self.why_unknown}", Advice.LEARN_RING)
        return self.runs

    # create_binding with chx_hash_ring_update_fun/3: a destination with buckets gets no more.
    def bind(
        self,
        destination: Destination,
        weight: int | str = 1,
        arguments: Mapping[str, int | str] | None = None,
    ) -> Ring:
        """The ring after one more bind command."""
        binding = RingBinding.of(destination, weight, arguments)
        if binding in self.bindings:
            return self  # the broker ignores a repeated binding
        runs = self.runs
        if runs is not None and all(binding.destination != known for known, _ in runs):
            runs = (*runs, (binding.destination, binding.weight))
        ring = replace(self, bindings=(*self.bindings, binding), runs=runs)
        ring._refuse_duplicates()
        return ring

    def _refuse_duplicates(self) -> None:
        """Raise if a destination is bound twice and in this release not only the first binding counts."""
        if self.release.first_binding_wins:
            return
        listed = Counter(binding.destination for binding in self.bindings)
        torn = Counter(destination for destination, _ in self.runs or ())
        for destination, times in (listed | torn).items():
            if times > 1:
                raise Unpredictable(
                    f"{named(destination)} is bound twice; RabbitMQ {self.release} adds buckets for both bindings and "
                    "can leave holes in the ring when one is removed. From 3.9.21 and 3.10.6 on, only the first "
                    "binding counts"
                )

    # ch_hash_ring_delete_fun/2: removing any of its bindings removes all buckets of a destination.
    def unbind(
        self,
        destination: Destination,
        weight: int | str | None = None,
        arguments: Mapping[str, int | str] | None = None,
    ) -> Ring:
        """The ring after an unbind command, which changes nothing if no such binding is listed.

        The weight may be omitted for a destination with one binding.
        """
        listed = self._listed(destination)
        if weight is not None:
            wanted = RingBinding.of(destination, weight, arguments)
            listed = [binding for binding in listed if binding == wanted]
        elif arguments is not None:
            raise InvalidValue(
                f"unbinding of {named(destination)}",
                "arguments without a weight",
                "both or neither",
                "An unbind command must repeat both",
            )
        elif len(listed) > 1:
            raise InvalidValue(
                f"unbinding of {named(destination)}",
                "no weight",
                "one of " + ", ".join(repr(binding.key) for binding in listed),
                "Use delete() to remove all its bindings",
            )
        if not listed:
            return self
        # rabbit_db_binding:delete_v2/2 notifies the exchange only when the last binding with a key is removed.
        same_key = [binding for binding in self._listed(destination) if binding.key == listed[0].key]
        if self.release.unbind_spares_duplicates and len(same_key) > 1:
            return replace(self, bindings=tuple(b for b in self.bindings if b != listed[0]))
        return self._without(destination, listed)

    def delete(self, destination: Destination) -> Ring:
        """The ring after the queue or exchange was deleted, with all its bindings."""
        listed = self._listed(destination)
        ring = self._without(destination, listed)
        if not listed or isinstance(destination, str) or not self.release.deleted_exchange_keeps_buckets:
            return ring
        return replace(ring, runs=None, why_unknown=f"in {self.release} a deleted exchange may keep buckets")

    def _listed(self, destination: Destination) -> list[RingBinding]:
        return [binding for binding in self.bindings if binding.destination == destination]

    def _without(self, destination: Destination, gone: list[RingBinding]) -> Ring:
        self._refuse_duplicates()
        bindings = tuple(binding for binding in self.bindings if binding not in gone)
        runs = self.runs and tuple(run for run in self.runs if run[0] != destination)
        return changed_ring(self, bindings, runs)

    def after_restart(self, *, worker_pool_size: int | None = None) -> Ring:
        """The ring after a node boot or a restart of the virtual host.

        Khepri keeps the buckets and appends those of dead bindings. On Mnesia concurrent workers rebuild the
        ring: sorted where ``default_worker_pool_size`` is 1, otherwise in an unknown order.
        """
        in_order = sorted(self.bindings, key=lambda binding: binding._sort_key)
        if self.release.store is Store.KHEPRI:
            # recover_exchange_and_bindings/1 adds every listed binding again; most exist.
            return self._replayed(self.runs, in_order)
        if worker_pool_size == 1 or len(in_order) <= 1:
            return self._replayed((), in_order)
        return replace(
            self,
            runs=None,
            why_unknown=f"RabbitMQ {self.release} on Mnesia rebuilds a ring concurrently when it boots",
        )

    def _replayed(self, runs: tuple[_Run, ...] | None, in_order: list[RingBinding]) -> Ring:
        self._refuse_duplicates()
        if runs is None:
            return self
        live = dict(runs)
        revived: dict[Destination, int] = {}
        for binding in in_order:
            if binding.destination not in live:
                revived.setdefault(binding.destination, binding.weight)
        return replace(self, runs=(*runs, *revived.items()), why_unknown="")


def as_binding(item: Destination | tuple[Destination, int | str] | RingBinding) -> RingBinding:
    """A binding from any form that a list of bindings may contain."""
    if isinstance(item, RingBinding):
        return item
    if isinstance(item, tuple) and len(item) == 2:
        return RingBinding.of(*item)
    return RingBinding.of(item)


def as_bindings(bindings: Bindings) -> Iterator[RingBinding]:
    """Bindings from any form that callers may pass."""
    items = bindings.items() if hasattr(bindings, "items") else bindings
    return map(as_binding, each(items, "list of bindings", "destinations, alone or with their weights"))


def as_destinations(destinations: Iterable[Destination], what: str) -> tuple[Destination, ...]:
    """Return the destinations; raise InvalidValue if one of them is invalid."""
    return tuple(map(check_destination, each(destinations, what, "destinations")))


def each(items: Any, what: str, of: str) -> Iterator[Any]:
    """The items of an iterable other than text and mappings, which a caller passes by mistake."""
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise InvalidValue(what, items, f"a list of {of}", "Put a single item into a list")
    return iter(items)


def changed_ring(ring: Ring, bindings: tuple[RingBinding, ...], runs: tuple[_Run, ...] | None) -> Ring:
    """The ring with other bindings and buckets; without bindings, unknown buckets are gone, unless a deleted exchange may have left some."""
    if runs is None and not bindings and not ring.release.deleted_exchange_keeps_buckets:
        return replace(ring, bindings=(), runs=(), why_unknown="")
    return replace(ring, bindings=bindings, runs=runs)
