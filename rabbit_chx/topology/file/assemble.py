"""From a file whose keys and types are right to the topology that it means, if all of it fits together.

Families become queues, keys become arguments; what is known to be refused by every broker is told here.
Entries that were wrong by themselves are not in the file any more, but their names count as known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.topology.file.names import RESERVED, Names
from rabbit_chx.topology.file.source import Bare, did_you_mean
from rabbit_chx.topology.file.wiring import Wiring
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Exchange, Policy, Queue, Topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rabbit_chx.topology.file.places import Loc
    from rabbit_chx.topology.file.schema import File, FileExchange, FileQueue
    from rabbit_chx.topology.file.source import Source

__all__ = ["assemble"]

_HASHING: Final = (CONSISTENT_HASH, MODULUS_HASH)
_PROPERTIES: Final = ("message_id", "correlation_id", "timestamp")
_ARGUMENTS: Final = {
    "hash_header": "hash-header",
    "hash_property": "hash-property",
    "alternate_exchange": "alternate-exchange",
}
_OWN: Final = "names that begin with amq. are the broker's own"


def assemble(file: File, source: Source) -> Topology:
    """The topology of a file; what does not fit together is noted in the source."""
    names = Names(source)
    queues = tuple(_Queues(file, names).all())
    exchanges = _Exchanges(file, names)
    declared = tuple(exchanges.all())
    wiring = Wiring(file, names)
    return Topology(
        vhost=file.vhost,
        exchanges=declared,
        queues=queues,
        slots=tuple(wiring.slots()),
        bindings=tuple(wiring.bindings()),
        policies=tuple(
            Policy(name, each.pattern, each.apply_to, each.definition, each.priority)
            for name, each in file.policies.items()
            if names.is_name(("policies", name), name)
        ),
        co_partitioned=tuple(exchanges.pairs()),
    )


def _key(field: str) -> str:
    return field.replace("_", "-")


class _Queues:
    """The queues of a file."""

    def __init__(self, file: File, names: Names) -> None:
        self._file = file
        self._names = names
        self._complain = names.complain

    def all(self) -> Iterator[Queue]:
        """Each queue that is right by itself."""
        known = self._names.queues
        for key in self._names.written("queues"):
            loc = ("queues", key)
            names = self._names.members(loc, key, at_key=True)
            if key.startswith(RESERVED):
                self._complain(loc, key, f"a name that does not begin with {RESERVED}", _OWN, at_key=True)
            double = next((name for name in names if name in known), None)
            if double is not None:
                got = Bare(f"queue {double!r}, which {known[double]!r} stands for too")
                self._complain(loc, got, "each queue once", "let the ranges not overlap", at_key=True)
            known.update((name, key) for name in names if name not in known)
            if key in self._file.queues:
                yield from self._family(loc, names, self._file.queues[key])

    def _family(self, loc: Loc, names: tuple[str, ...], entry: FileQueue | None) -> Iterator[Queue]:
        if entry is None:
            yield from (Queue(name, "quorum") for name in names)
            return
        kind = entry.type or "quorum"
        arguments = dict(entry.arguments)
        is_single = entry.single_active_consumer or entry.preset == "ordered"
        if entry.preset == "ordered" and kind != "quorum":
            self._complain((*loc, "type"), kind, "quorum with the preset ordered", "leave the type out")
        if "x-queue-type" in arguments:
            self._complain(
                (*loc, "arguments", "x-queue-type"), arguments["x-queue-type"], "the key type", at_key=True
            )
        if is_single and "x-single-active-consumer" in arguments:
            self._complain(
                (*loc, "arguments", "x-single-active-consumer"),
                Bare("it beside the key that stands for it"),
                "one of the two",
                at_key=True,
            )
        if kind == "stream" and is_single:
            self._complain(
                (*loc, "single-active-consumer"),
                Bare("it on a stream"),
                "quorum or classic queues",
                "streams know single active consumers among those of one name",
            )
        if kind != "classic" and not entry.durable:
            self._complain((*loc, "durable"), Bare("false"), f"true: a {kind} queue is always durable")
        if kind != "classic" and entry.auto_delete:
            self._complain(
                (*loc, "auto-delete"),
                Bare("true"),
                f"false: a {kind} queue never goes by itself",
                "" if kind == "stream" else "the argument x-expires takes away a queue that nobody uses",
            )
        if is_single:
            arguments["x-single-active-consumer"] = True
        for name in names:
            yield Queue(name, kind, entry.durable, entry.auto_delete, arguments=arguments)


class _Exchanges:
    """The exchanges of a file."""

    def __init__(self, file: File, names: Names) -> None:
        self._file = file
        self._names = names
        self._complain = names.complain

    def all(self) -> Iterator[Exchange]:
        """Each exchange that is right by itself."""
        for name, entry in self._file.exchanges.items():
            loc = ("exchanges", name)
            if not self._names.is_name(loc, name):
                continue
            if name.startswith(RESERVED):
                self._check_own(loc, entry)
                continue
            if not entry.type:
                self._complain(
                    (*loc, "type"),
                    Bare("nothing"),
                    "the type of the exchange",
                    f"such as {CONSISTENT_HASH} or topic",
                )
                continue
            self._check_fields(loc, entry)
            arguments = self._arguments(loc, entry)
            yield Exchange(name, entry.type, entry.durable, entry.auto_delete, entry.internal, arguments)

    def _check_own(self, loc: Loc, entry: FileExchange) -> None:
        """Of the broker's own exchanges nothing is declared."""
        for field in sorted(entry.model_fields_set - {"bindings"}):
            self._complain((*loc, _key(field)), Bare("a declaration"), "bindings only", _OWN, at_key=True)

    def _check_fields(self, loc: Loc, entry: FileExchange) -> None:
        given = entry.model_fields_set
        hint = did_you_mean(entry.type, _HASHING) if entry.type not in _HASHING else ""
        for field, types in (
            ("hash_header", (CONSISTENT_HASH,)),
            ("hash_property", (CONSISTENT_HASH,)),
            ("queues", _HASHING),
            ("destinations", _HASHING),
            ("slots", _HASHING),
        ):
            if field in given and entry.type not in types:
                hint = hint or ("other types have bindings" if field in ("queues", "destinations") else "")
                got = Bare(f"it on an exchange of type {entry.type!r}")
                self._complain((*loc, _key(field)), got, " or ".join(types), hint, at_key=True)
        ways = [
            key
            for key in self._names.written("exchanges")[str(loc[1])]
            if key in ("queues", "destinations", "bindings")
        ]
        if entry.type in _HASHING and len(ways) > 1:
            got = Bare(f"it beside {ways[0]}")
            self._complain(
                (*loc, ways[1]),
                got,
                "one of queues, destinations and bindings",
                "they follow each other in bind order, so they stand in one place",
                at_key=True,
            )

    def _arguments(self, loc: Loc, entry: FileExchange) -> dict[str, Any]:
        arguments = dict(entry.arguments)
        for field, name in _ARGUMENTS.items():
            value = getattr(entry, field)
            if value is None or (field == "alternate_exchange" and entry.slots is not None):
                continue
            if name in arguments:
                got = Bare("it beside the key of the same name")
                self._complain((*loc, "arguments", name), got, "one of the two", at_key=True)
            arguments[name] = value
        if entry.type == CONSISTENT_HASH and {"hash-header", "hash-property"} <= set(arguments):
            self._complain(
                self._nearest(loc, "hash-property"),
                Bare("it beside hash-header"),
                "one of the two",
                "one exchange hashes one thing",
                at_key=True,
            )
        found = arguments.get("hash-property", _PROPERTIES[0])
        if entry.type == CONSISTENT_HASH and found not in _PROPERTIES:
            self._complain((*loc, "arguments", "hash-property"), found, ", ".join(_PROPERTIES))
        alternate = arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            self._names.check_exchange(self._nearest(loc, "alternate-exchange"), alternate)
        if entry.slots is not None and entry.alternate_exchange is not None:
            self._names.check_exchange((*loc, "alternate-exchange"), entry.alternate_exchange)
        return arguments

    def _nearest(self, loc: Loc, name: str) -> Loc:
        """Where an argument was given: by its own key or among the arguments."""
        return (
            (*loc, name)
            if name in self._names.written("exchanges")[str(loc[1])]
            else (*loc, "arguments", name)
        )

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The exchanges that are meant to have equal rings."""
        for name, entry in self._file.exchanges.items():
            others = entry.co_partitioned_with or []
            for index, other in enumerate([others] if isinstance(others, str) else others):
                loc: Loc = ("exchanges", name, "co-partitioned-with")
                loc = loc if isinstance(others, str) else (*loc, index)
                partner = self._file.exchanges.get(other)
                if other == name:
                    self._complain(loc, other, "another exchange")
                elif self._names.check_exchange(loc, other) and partner and partner.type != entry.type:
                    got = Bare(f"{other!r} of type {partner.type!r}")
                    self._complain(
                        loc, got, f"an exchange of type {entry.type!r}", "other types have other rings"
                    )
                yield name, other
