"""The bindings of a file, in bind order: destinations with weights, bindings with keys, and slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.mirror.ring import Destination, ToExchange, parse_weight
from rabbit_chx.topology.file.names import Lookup
from rabbit_chx.topology.file.problems import Path
from rabbit_chx.topology.file.schema import File, FileBinding, FileDestination, FileExchange
from rabbit_chx.topology.model import CONSISTENT_HASH, HASHING, MODULUS_HASH, Binding, Slots
from rabbit_chx.topology.slots.slot_division import too_few


class Bindings:
    """The valid bindings of a file; others are reported."""

    def __init__(self, file: File, lookup: Lookup) -> None:
        self._file = file
        self._lookup = lookup
        self._report = lookup.document.report
        self._report_key = lookup.document.report_key

    def slots(self) -> Iterator[Slots]:
        """The slots of all exchanges."""
        for name, entry in self._file.exchanges.items():
            if entry.slots is None or entry.type not in HASHING:
                continue
            path = ("exchanges", name)
            queues = dict(self._weighted(path, entry))
            written = self._lookup.section("exchanges")[name].keys()
            if not written & {"queues", "destinations", "bindings"}:
                self._report_key((*path, "slots"), "slots without queues", "queues")
            for key in ("destinations", "bindings"):
                if getattr(entry, key) is not None:
                    self._report_key((*path, key), f"both slots and {key}", "queues")
            slots = Slots(name, entry.slots, queues, entry.alternate_exchange)
            self._check_slots((*path, "slots"), slots)
            yield slots

    def _check_slots(self, path: Path, slots: Slots) -> None:
        if flaw := too_few(slots.count, len(slots.queues)):
            self._report(path, *flaw)
        if taken := next((name for name in slots.names if name in self._lookup.exchanges), None):
            self._report(path, Unquoted(f"an exchange {taken!r}"), "unused names of slot exchanges")
        if len(slots.names[-1].encode(errors="replace")) > 255:
            self._report(path, slots.names[-1], "names of at most 255 bytes", "Use a shorter exchange name")

    def all(self) -> Iterator[Binding]:
        """The bindings of all exchanges without slots, in bind order."""
        for name, entry in self._file.exchanges.items():
            path = ("exchanges", name)
            if entry.slots is not None and entry.type in HASHING:
                continue
            for destination, weight in self._weighted(path, entry):
                yield Binding(name, destination, str(weight) if entry.type == CONSISTENT_HASH else "")
            yield from self._keyed(path, entry)

    def _weighted(self, path: Path, entry: FileExchange) -> Iterator[tuple[Any, int]]:
        """The destinations under ``queues`` and ``destinations``, each once."""
        known: set[Destination] = set()
        is_modulus = entry.type == MODULUS_HASH and entry.slots is None
        for at, destinations, weight, at_key in self._listed(path, entry):
            again = next((each for each in destinations if each in known), None)
            if again is not None:
                name = again if isinstance(again, ToExchange) else f"queue {again!r}"
                hint = "A second binding adds no buckets: use a weight"
                self._report(at, Unquoted(f"{name} again"), "each destination once", hint, at_key=at_key)
            elif destinations and is_modulus and weight != 1:
                hint = f"Use slots, or the type {CONSISTENT_HASH}"
                self._report(at, weight, f"the weight 1: {MODULUS_HASH} has no weights", hint)
            yield from ((each, weight) for each in destinations if each not in known)
            known.update(destinations)

    def _listed(self, path: Path, entry: FileExchange) -> Iterator[tuple[Path, list[Destination], int, bool]]:
        names, is_mapping = entry.queues or {}, isinstance(entry.queues, dict)
        for index, name in enumerate(names):
            at = (*path, "queues", name if is_mapping else index)
            weight = names[name] if isinstance(names, dict) else 1
            yield at, list(self._queues(at, name, at_key=is_mapping)), weight, is_mapping
        for index, item in enumerate(entry.destinations or ()):
            at = (*path, "destinations", index)
            yield at, list(self._either(at, item)), item.weight, False

    def _queues(self, path: Path, name: str, *, at_key: bool = False) -> Iterator[str]:
        for member in self._lookup.members(path, name, at_key=at_key):
            if not self._lookup.is_declared("queue", path, member, at_key=at_key):
                return  # once for each range
            yield member

    def _either(self, path: Path, item: FileDestination | FileBinding) -> Iterator[Destination]:
        """The destinations of an item that names a queue or an exchange."""
        if (item.queue is None) == (item.exchange is None):
            got = Unquoted("neither" if item.queue is None else "both")
            self._report(path, got, "either a queue or an exchange")
        elif item.queue is not None:
            yield from self._queues((*path, "queue"), item.queue)
        elif item.exchange is not None and self._lookup.is_declared(
            "exchange", (*path, "exchange"), item.exchange
        ):
            yield ToExchange(item.exchange)

    def _keyed(self, path: Path, entry: FileExchange) -> Iterator[Binding]:
        known: Counter[str] = Counter()
        for index, item in enumerate(entry.bindings or ()):
            at = (*path, "bindings", index)
            if len(item.key.encode(errors="replace")) > 255:
                self._report((*at, "key"), item.key, "at most 255 bytes of UTF-8")
            for destination in self._either(at, item):
                bound = Binding(str(path[1]), destination, item.key, item.arguments)
                if entry.type == CONSISTENT_HASH:
                    self._check_weight((*at, "key"), bound)
                known[repr(bound)] += 1
                if known[repr(bound)] == 2:
                    self._report(at, Unquoted("a duplicate"), "each binding once")
                yield bound

    def _check_weight(self, path: Path, bound: Binding) -> None:
        try:
            parse_weight(bound.key, of=bound.destination)
        except InvalidValue as error:
            self._lookup.document.add(path, error)
