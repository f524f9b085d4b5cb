"""Build the topology of a file and check that its parts fit together.

Ranges become queues and keys become arguments. Entries that violate the schema are gone by now, but their names
still count as declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rabbit_chx.errors import Unquoted
from rabbit_chx.topology.file.bindings import Bindings
from rabbit_chx.topology.file.names import Lookup
from rabbit_chx.topology.file.problems import Document, Path, did_you_mean
from rabbit_chx.topology.file.schema import File, FileExchange, FileQueue
from rabbit_chx.topology.model import (
    CONSISTENT_HASH,
    DELIVERY_LIMIT,
    HASH_PROPERTIES,
    HASHING,
    RESERVED,
    SINGLE_ACTIVE_CONSUMER,
    Exchange,
    Policy,
    Queue,
    Topology,
)

_TYPES_OF: Final = {
    "hash_header": (CONSISTENT_HASH,),
    "hash_property": (CONSISTENT_HASH,),
    "queues": HASHING,
    "destinations": HASHING,
    "slots": HASHING,
    "order": (CONSISTENT_HASH,),
}
_BOTH: Final = ("both the argument and its shorthand", "only one of them")
_RESERVED_HINT: Final = "The broker reserves names that begin with amq."


def build_topology(file: File, document: Document) -> Topology:
    """The topology of a file; parts that do not fit together are reported to the document."""
    lookup = Lookup(document)
    lookup.is_valid(("vhost",), file.vhost, at_key=False)
    queues = tuple(_queues(file, lookup))
    exchanges = tuple(_exchanges(file, lookup))
    bindings = Bindings(file, lookup)
    return Topology(
        vhost=file.vhost,
        exchanges=exchanges,
        queues=queues,
        slots=tuple(bindings.slots()),
        bindings=tuple(bindings.all()),
        policies=tuple(
            Policy(name, each.pattern, each.apply_to, each.definition, each.priority)
            for name, each in file.policies.items()
            if lookup.is_valid(("policies", name), name)
        ),
        co_partitioned=tuple(_co_partitioned(file, lookup)),
        unordered=frozenset(name for name, each in file.exchanges.items() if each.order == "unknown"),
    )


def _queues(file: File, lookup: Lookup) -> Iterator[Queue]:
    for key in lookup.section("queues"):
        path = ("queues", key)
        names = lookup.members(path, key, at_key=True)
        if key.startswith(RESERVED):
            lookup.document.report_key(path, repr(key), "another name", _RESERVED_HINT)
        duplicate = next((name for name in names if name in lookup.queues), None)
        if duplicate is not None:
            got = f"queue {duplicate!r}, which {lookup.queues[duplicate]!r} declares already"
            lookup.document.report_key(path, got, "each queue once")
        lookup.queues.update((name, key) for name in names if name not in lookup.queues)
        if key in file.queues:
            yield from _queues_of(path, names, file.queues[key] or FileQueue(), lookup.document)


def _queues_of(path: Path, names: tuple[str, ...], entry: FileQueue, document: Document) -> Iterator[Queue]:
    kind = entry.type or "quorum"
    arguments = dict(entry.arguments)
    is_single = entry.single_active_consumer or entry.preset == "ordered"
    if entry.preset == "ordered" and kind != "quorum":
        document.report((*path, "type"), kind, "quorum with the preset ordered", "Leave the type out")
    if "x-queue-type" in arguments:
        got = repr(arguments["x-queue-type"])
        document.report_key((*path, "arguments", "x-queue-type"), got, "the key type instead")
    if is_single and SINGLE_ACTIVE_CONSUMER in arguments:
        document.report_key((*path, "arguments", SINGLE_ACTIVE_CONSUMER), *_BOTH)
    if kind == "stream" and is_single:
        got = Unquoted("true for a stream")
        document.report((*path, "single-active-consumer"), got, "a quorum or classic queue")
    if kind != "classic" and not entry.durable:
        document.report((*path, "durable"), Unquoted("false"), f"true: a {kind} queue is always durable")
    if kind != "classic" and entry.auto_delete:
        hint = "" if kind == "stream" else "The argument x-expires deletes an unused queue"
        expected = f"false: a {kind} queue is never deleted automatically"
        document.report((*path, "auto-delete"), Unquoted("true"), expected, hint)
    if is_single:
        arguments[SINGLE_ACTIVE_CONSUMER] = True
    if entry.preset == "ordered":
        arguments.setdefault(DELIVERY_LIMIT, -1)
    for name in names:
        yield Queue(name, kind, entry.durable, entry.auto_delete, arguments=arguments)


def _exchanges(file: File, lookup: Lookup) -> Iterator[Exchange]:
    report, report_key = lookup.document.report, lookup.document.report_key
    for name, entry in file.exchanges.items():
        path = ("exchanges", name)
        if not lookup.is_valid(path, name):
            continue
        if name.startswith(RESERVED):
            for field in sorted(entry.model_fields_set - {"bindings"}):
                report_key((*path, _key(field)), "a declaration", "only bindings", _RESERVED_HINT)
        elif not entry.type:
            hint = f"Such as {CONSISTENT_HASH} or topic"
            report((*path, "type"), Unquoted("nothing"), "the type of the exchange", hint)
        else:
            _check_keys(path, entry, lookup)
            arguments = _arguments(path, entry, lookup)
            yield Exchange(name, entry.type, entry.durable, entry.auto_delete, entry.internal, arguments)


def _key(field: str) -> str:
    return field.replace("_", "-")


def _check_keys(path: Path, entry: FileExchange, lookup: Lookup) -> None:
    """Check that the keys of an exchange suit its type and each other."""
    report_key = lookup.document.report_key
    for field, types in _TYPES_OF.items():
        if field in entry.model_fields_set and entry.type not in types:
            hint = did_you_mean(entry.type, HASHING) if entry.type not in HASHING else ""
            if not hint and field in ("queues", "destinations"):
                hint = "Other types have bindings"
            got = f"an exchange of type {entry.type!r}"
            report_key((*path, _key(field)), got, " or ".join(types), hint)
    written = lookup.section("exchanges")[str(path[1])]
    lists = [key for key in written if key in ("queues", "destinations", "bindings")]
    if entry.type in HASHING and len(lists) > 1:
        expected = "only one of queues, destinations and bindings"
        hint = "One list holds all bindings, because their order matters"
        report_key((*path, lists[1]), f"both {lists[0]} and {lists[1]}", expected, hint)


def _arguments(path: Path, entry: FileExchange, lookup: Lookup) -> dict[str, Any]:
    """The arguments of a declaration; those with a key of their own are checked."""
    document = lookup.document
    arguments = dict(entry.arguments)
    for field in ("hash_header", "hash_property", "alternate_exchange"):
        value, name = getattr(entry, field), _key(field)
        if value is None or (field == "alternate_exchange" and entry.slots is not None):
            continue
        if name in arguments:
            document.report_key((*path, "arguments", name), *_BOTH)
        arguments[name] = value
    if entry.type == CONSISTENT_HASH:
        at = (*path, "hash-property") if entry.hash_property else (*path, "arguments", "hash-property")
        if {"hash-header", "hash-property"} <= set(arguments):
            document.report_key(at, "both hash-header and hash-property", "only one of them")
        found = arguments.get("hash-property", HASH_PROPERTIES[0])
        if found not in HASH_PROPERTIES:
            document.report(at, found, ", ".join(HASH_PROPERTIES))
    if entry.alternate_exchange is not None:
        lookup.is_declared("exchange", (*path, "alternate-exchange"), entry.alternate_exchange)
    return arguments


def _co_partitioned(file: File, lookup: Lookup) -> Iterator[tuple[str, str]]:
    """The pairs of exchanges whose rings should be equal."""
    for name, entry in file.exchanges.items():
        others = entry.co_partitioned_with or []
        for index, other in enumerate([others] if isinstance(others, str) else others):
            path: Path = ("exchanges", name, "co-partitioned-with")
            path = path if isinstance(others, str) else (*path, index)
            partner = file.exchanges.get(other)
            if other == name:
                lookup.document.report(path, other, "another exchange")
            elif lookup.is_declared("exchange", path, other) and partner and partner.type != entry.type:
                got = Unquoted(f"{other!r} of type {partner.type!r}")
                lookup.document.report(path, got, f"an exchange of type {entry.type!r}")
            yield name, other
