"""What leads where in a file: destinations with weights, bindings with keys, slots, and no circles among them.

All bindings of an exchange stand in one place, since their order is the order of the bind commands.
"""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import InvalidValue
from rabbit_chx.ring import ToExchange, parse_weight
from rabbit_chx.topology.file.source import Bare
from rabbit_chx.topology.model import BIND_SEQUENCE, CONSISTENT_HASH, MODULUS_HASH, Bound, Slots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rabbit_chx.ring import Destination
    from rabbit_chx.topology.file.names import Names
    from rabbit_chx.topology.file.places import Loc
    from rabbit_chx.topology.file.schema import File, FileBinding, FileDestination, FileExchange

__all__ = ["Wiring"]

_HASHING: Final = (CONSISTENT_HASH, MODULUS_HASH)
_MOST_CYCLES: Final = 10


class Wiring:
    """The bindings of a file, those that are right."""

    def __init__(self, file: File, names: Names) -> None:
        self._file = file
        self._names = names
        self._complain = names.complain
        self._edges: dict[tuple[str, str], Loc] = {}
        """From exchange to exchange, and where the first such binding stands."""

    def slots(self) -> Iterator[Slots]:
        """What the key ``slots`` stands for."""
        for name, entry in self._file.exchanges.items():
            if entry.slots is None or entry.type not in _HASHING:
                continue
            loc = ("exchanges", name)
            queues = dict(self._weighted(loc, entry))
            if not self._names.written("exchanges")[name].keys() & {"queues", "destinations", "bindings"}:
                self._complain(
                    (*loc, "slots"), Bare("slots without queues"), "queues that share the slots", at_key=True
                )
            for key in ("destinations", "bindings"):
                if getattr(entry, key) is not None:
                    self._complain(
                        (*loc, key), Bare("it beside slots"), "queues, which share the slots", at_key=True
                    )
            if len(queues) > entry.slots:
                got = Bare(f"{entry.slots} slots for {len(queues)} queues")
                self._complain((*loc, "slots"), got, "a slot for each queue at least", "64 is a good number")
            slots = Slots(name, entry.slots, queues, entry.alternate_exchange)
            self._check_slots((*loc, "slots"), slots)
            yield slots

    def _check_slots(self, loc: Loc, slots: Slots) -> None:
        if taken := next((name for name in slots.names if name in self._names.exchanges), None):
            self._complain(loc, Bare(f"slots, of which {taken!r} is an exchange too"), "free names")
        if len(slots.names[-1].encode(errors="replace")) > 255:
            self._complain(
                loc, Bare(f"{slots.names[-1]!r}"), "names of at most 255 bytes", "shorten the name of the top"
            )

    def bindings(self) -> Iterator[Bound]:
        """The bindings of all exchanges, those of one in bind order; circles are told at the end."""
        for name, entry in self._file.exchanges.items():
            loc = ("exchanges", name)
            if entry.slots is not None and entry.type in _HASHING:
                continue  # their queues are bound to the slots
            for destination, weight in self._weighted(loc, entry):
                yield Bound(name, destination, str(weight) if entry.type == CONSISTENT_HASH else "")
            yield from self._keyed(loc, entry)
        self._check_cycles()

    # Destinations with weights

    def _weighted(self, loc: Loc, entry: FileExchange) -> Iterator[tuple[Any, int]]:
        """The destinations under ``queues`` and ``destinations``, each once."""
        known: set[Destination] = set()
        told: set[Loc] = set()  # one complaint is enough for a family
        for at, destination, weight, at_key in self._listed(loc, entry):
            if destination in known:
                if at not in told:
                    name = destination if isinstance(destination, ToExchange) else f"queue {destination!r}"
                    got = Bare(f"{name} for the second time")
                    hint = "a second binding adds no buckets: give it a weight"
                    self._complain(at, got, "each destination once", hint, at_key=at_key)
                told.add(at)
                continue
            known.add(destination)
            if entry.type == MODULUS_HASH and entry.slots is None and weight != 1 and at not in told:
                told.add(at)
                expected = "the weight 1: this exchange knows no weights"
                self._complain(at, weight, expected, f"take slots, or the type {CONSISTENT_HASH}")
            yield destination, weight

    def _listed(self, loc: Loc, entry: FileExchange) -> Iterator[tuple[Loc, Destination, int, bool]]:
        at: Loc
        if isinstance(entry.queues, dict):
            for key, weight in entry.queues.items():
                at = (*loc, "queues", key)
                for name in self._queues(at, key, at_key=True):
                    yield at, name, weight, True
        elif entry.queues is not None:
            for index, key in enumerate(entry.queues):
                at = (*loc, "queues", index)
                for name in self._queues(at, key):
                    yield at, name, 1, False
        for index, item in enumerate(entry.destinations or ()):
            at = (*loc, "destinations", index)
            for destination in self._either(at, item):
                yield at, destination, item.weight, False

    def _queues(self, loc: Loc, name: str, *, at_key: bool = False) -> Iterator[str]:
        for member in self._names.members(loc, name, at_key=at_key):
            if not self._names.check_queue(loc, member, at_key=at_key):
                return  # one complaint is enough for a family
            yield member

    def _either(self, loc: Loc, item: FileDestination | FileBinding) -> Iterator[Destination]:
        """The destinations of an item that names a queue or an exchange."""
        if (item.queue is None) == (item.exchange is None):
            got = Bare("neither" if item.queue is None else "both")
            self._complain(loc, got, "either a queue or an exchange")
        elif item.queue is not None:
            yield from self._queues((*loc, "queue"), item.queue)
        elif item.exchange is not None and self._names.check_exchange((*loc, "exchange"), item.exchange):
            self._edges.setdefault((str(loc[1]), item.exchange), (*loc, "exchange"))
            yield ToExchange(item.exchange)

    # Bindings with keys

    def _keyed(self, loc: Loc, entry: FileExchange) -> Iterator[Bound]:
        known: Counter[str] = Counter()
        for index, item in enumerate(entry.bindings or ()):
            at = (*loc, "bindings", index)
            if BIND_SEQUENCE in item.arguments:
                got = Bare("a number of a bind command")
                self._complain(
                    (*at, "arguments", BIND_SEQUENCE), got, "none", "the order of the file is the order"
                )
            if len(item.key.encode(errors="replace")) > 255:
                self._complain((*at, "key"), item.key, "at most 255 bytes of UTF-8")
            for destination in self._either(at, item):
                bound = Bound(str(loc[1]), destination, item.key, item.arguments)
                self._check_weight(at, entry, bound)
                known[repr(bound)] += 1
                if known[repr(bound)] == 2:
                    self._complain(at, Bare("the same binding for the second time"), "each binding once")
                yield bound

    def _check_weight(self, loc: Loc, entry: FileExchange, bound: Bound) -> None:
        if entry.type != CONSISTENT_HASH:
            return
        try:
            parse_weight(bound.key, of=bound.destination)
        except InvalidValue as error:
            self._names.source.note(self._names.source.place((*loc, "key")), error)

    # Circles

    def _check_cycles(self) -> None:
        edges = dict(self._edges)
        for _ in range(_MOST_CYCLES):
            graph: dict[str, set[str]] = {}
            for source, destination in edges:
                graph.setdefault(source, set()).add(destination)
            try:
                TopologicalSorter(graph).prepare()
            except CycleError as error:
                # Of each two neighbours the first is what the second leads to.
                cycle = error.args[1][::-1]
                closing = max(pairwise(cycle), key=lambda edge: list(edges).index(edge))
                self._complain(
                    edges.pop(closing),
                    Bare(" -> ".join(cycle)),
                    "bindings that lead to no exchange twice",
                    "a message takes no second turn, so one of these bindings does nothing",
                )
            else:
                return
