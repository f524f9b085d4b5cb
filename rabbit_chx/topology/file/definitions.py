"""RabbitMQ's ``definitions.json``, read as topologies and written from one.

A broker that imports definitions binds with many processes at once, so neither the order of the bindings in such a
file nor that of the imported rings means anything; ``rabbit-chx apply`` binds in order. Exports of RabbitMQ 4.3 list
the bindings of internal exchanges but not the exchanges themselves; such a file is incomplete and is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, get_args

from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.names import VALID_NAME, name_flaw
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.file.exportable import natural
from rabbit_chx.topology.file.problems import Document, check_values
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue, QueueType, Slots, Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rabbit_chx.topology.file.schema import DefinedQueue, Definitions

__all__ = [
    "from_definitions",
    "left_out",
    "looks_like_definitions",
    "only",
    "read_definitions",
    "to_definitions",
    "unordered_rings",
]

_RESERVED: Final = "amq."


def looks_like_definitions(value: Any) -> bool:
    """Whether RabbitMQ wrote this, and not a person for this tool."""
    if not isinstance(value, dict) or "schema" in value:
        return False
    marks = {"rabbit_version", "rabbitmq_version", "rabbitmq_definition_format"}
    return bool(marks & set(value)) or isinstance(value.get("exchanges"), list)


def from_definitions(value: Any, vhost: str | None = None) -> Topology:
    """The topology of one virtual host in parsed definitions; ``vhost`` selects it if there are several.

    The bindings of an exchange keep their order in the file, or have that of ``x-bind-seq`` where each has this
    argument. No broker has that order: see :func:`unordered_rings`.
    """
    document = Document("definitions", value)
    check_values(document)
    return only(read_definitions(document, () if vhost is None else (vhost,)), document)


def only(topologies: tuple[Topology, ...], document: Document) -> Topology:
    """The only topology in a document."""
    if len(topologies) > 1:
        several = " or ".join(repr(each.vhost) for each in topologies)
        document.fail(None, "virtual host", Unquoted("none"), several, "A topology has one virtual host")
    return topologies[0]


def read_definitions(document: Document, vhosts: Sequence[str] = ()) -> tuple[Topology, ...]:
    """The topologies of some virtual hosts in a document, or of all of them."""
    from rabbit_chx.topology.file.schema import Definitions, checked
    from rabbit_chx.topology.file.schema_errors import report_errors

    found, errors = checked(Definitions, document.value)
    report_errors(errors, document)
    document.raise_problems()
    assert found
    topologies = tuple(_Reader(found, document, each).topology() for each in _vhosts(found, vhosts, document))
    document.raise_problems()
    return topologies


def _vhosts(found: Definitions, wanted: Sequence[str], document: Document) -> list[str]:
    """The virtual hosts to read; objects without one belong to that of the file."""
    sections: Iterable[Any] = (*found.exchanges, *found.queues, *found.bindings, *found.policies)
    known = {each.name for each in found.vhosts} | {each.vhost for each in sections if each.vhost is not None}
    if found.original_vhost_name is not None or not known:
        return list(wanted[:1]) or [found.original_vhost_name or "/"]
    for name in wanted:
        if name not in known:
            document.fail(None, "virtual host", name, " or ".join(map(repr, sorted(known))))
    return list(wanted) or sorted(known)


def unordered_rings(topology: Topology) -> list[str]:
    """The consistent-hash exchanges whose order in definitions is not that of any ring."""
    return [
        each.name
        for each in topology.hash_exchanges
        if len({bound.destination for bound in topology.bindings_from(each.name)}) > 1
        and None in {bound.sequence for bound in topology.bindings_from(each.name)}
    ]


# Of the parameters in an export, those with a name of their own.
_COMPONENTS: Final = {"operator_policy": "operator policies", "vhost-limits": "virtual host limits"}


def left_out(definitions: Any, vhosts: Iterable[str]) -> dict[str, int]:
    """What definitions hold for some virtual hosts that is not part of a topology, by kind and count."""
    kept = {None, *vhosts}
    counts: Counter[str] = Counter()
    for section in ("users", "permissions", "topic_permissions", "global_parameters"):
        rows = _rows(definitions, section)
        counts[section.replace("_", " ")] = sum(row.get("vhost") in kept for row in rows)
    for row in _rows(definitions, "parameters"):
        if row.get("vhost") in kept:
            counts[_COMPONENTS.get(str(row.get("component")), "parameters")] += 1
    for row in (each for each in _rows(definitions, "vhosts") if each.get("name") in kept):
        metadata = row.get("metadata")
        tags = row.get("tags") or (metadata.get("tags") if isinstance(metadata, dict) else None) or ()
        counts["virtual host tags"] += len(tags) if isinstance(tags, list) else 0
        counts["virtual host limits"] += len(row.get("limits") or ())
    return {kind: count for kind, count in counts.items() if count}


def _rows(definitions: Any, section: str) -> list[dict[str, Any]]:
    rows = definitions.get(section)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


class _Reader:
    """Reads one virtual host."""

    def __init__(self, found: Definitions, document: Document, vhost: str) -> None:
        self._found = found
        self._document = document
        self._vhost = vhost

    def topology(self) -> Topology:
        """The topology, in an order that does not depend on the export."""
        exchanges = [
            Exchange(each.name, each.type, each.durable, each.auto_delete, each.internal, each.arguments)
            for each in self._own("exchanges")
            if each.name and not each.name.startswith(_RESERVED)
        ]
        queues = [self._queue(each) for each in self._own("queues")]
        bindings = list(self._bindings({each.name for each in exchanges}, {each.name for each in queues}))
        policies = [
            Policy(each.name, each.pattern, each.apply_to, each.definition, each.priority)
            for each in self._own("policies")
        ]
        return Topology(
            self._vhost,
            exchanges=tuple(sorted(exchanges, key=lambda each: natural(each.name))),
            queues=tuple(sorted(queues, key=lambda each: natural(each.name))),
            bindings=tuple(_in_order(bindings)),
            policies=tuple(sorted(policies, key=lambda each: natural(each.name))),
        )

    def _own(self, section: str) -> Iterator[Any]:
        """The named objects of the virtual host; invalid names are reported."""
        for index, item in enumerate(getattr(self._found, section)):
            if item.vhost in (None, self._vhost):
                flaw = item.name and name_flaw(item.name)
                if flaw:
                    self._document.report((section, index, "name"), Unquoted(flaw), VALID_NAME)
                yield item

    def _queue(self, found: DefinedQueue) -> Queue:
        arguments = dict(found.arguments)
        kind: Any = arguments.pop("x-queue-type", None) or found.type or "classic"
        if kind not in get_args(QueueType):
            path = ("queues", self._found.queues.index(found), "type")
            self._document.report(path, kind, " or ".join(get_args(QueueType)))
        return Queue(found.name, kind, found.durable, found.auto_delete, arguments=arguments)

    def _bindings(self, exchanges: set[str], queues: set[str]) -> Iterator[Binding]:
        missing: dict[str, int] = {}
        for index, each in enumerate(self._found.bindings):
            is_queue = each.destination_type == "queue"
            is_foreign = each.vhost not in (None, self._vhost)
            if is_foreign or not each.source or (is_queue and each.destination not in queues):
                continue  # a default binding, or of a queue that belongs to a connection
            for name in (each.source, *(() if is_queue else (each.destination,))):
                if name not in exchanges and not name.startswith(_RESERVED):
                    missing.setdefault(name, index)
            destination = each.destination if is_queue else ToExchange(each.destination)
            yield Binding(each.source, destination, each.routing_key, each.arguments)
        for name, index in missing.items():
            error = InvalidValue(
                f"exchange {name!r}",
                Unquoted("bindings but no declaration"),
                "a declaration of every bound exchange",
                "Exports of RabbitMQ 4 can lack internal exchanges: use `rabbit-chx export` instead",
            )
            self._document.add(self._document.positions.of(("bindings", index)), error)


def _in_order(bindings: list[Binding]) -> list[Binding]:
    """By source; those of one source by their numbers if each has one, else in the given order."""
    numbered = {each.source for each in bindings} - {
        each.source for each in bindings if each.sequence is None
    }
    return sorted(
        bindings, key=lambda each: (each.source, (each.sequence or 0) if each.source in numbered else 0)
    )


def to_definitions(topology: Topology) -> dict[str, Any]:
    """The topology as RabbitMQ's definitions, with slots written out.

    The order depends only on names, and on bind order within an exchange. A broker that imports them binds in an
    order of its own: :func:`unordered_rings` names the exchanges that this concerns.
    """
    exchanges = [*topology.exchanges, *(each for slots in topology.slots for each in slots.exchanges)]
    bindings = [*topology.bindings]
    for slots in topology.slots:
        bindings += [*slots.top_bindings, *_slot_bindings(slots)]
    vhost = {"vhost": topology.vhost}
    return {
        "vhosts": [{"name": topology.vhost}],
        "policies": [
            {
                **vhost,
                "name": each.name,
                "pattern": each.pattern,
                "apply-to": each.apply_to,
                "definition": _sorted(each.definition),
                "priority": each.priority,
            }
            for each in sorted(topology.policies, key=lambda each: each.name)
        ],
        "queues": [
            {
                "name": each.name,
                **vhost,
                "durable": each.durable,
                "auto_delete": each.auto_delete,
                "arguments": _sorted(each.declared_arguments),
            }
            for each in sorted(topology.queues, key=lambda each: each.name)
            if not each.exclusive
        ],
        "exchanges": [
            {
                "name": each.name,
                **vhost,
                "type": each.type,
                "durable": each.durable,
                "auto_delete": each.auto_delete,
                "internal": each.internal,
                "arguments": _sorted(each.arguments),
            }
            for each in sorted(exchanges, key=lambda each: each.name)
        ],
        "bindings": [
            {
                "source": each.source,
                **vhost,
                "destination": str(getattr(each.destination, "name", each.destination)),
                "destination_type": "exchange" if isinstance(each.destination, ToExchange) else "queue",
                "routing_key": each.key,
                "arguments": _sorted(each.arguments),
            }
            for each in _in_order(bindings)
        ],
    }


def _sorted(arguments: Any) -> Any:
    return json.loads(json.dumps(dict(arguments), sort_keys=True))


def _slot_bindings(slots: Slots) -> Iterator[Binding]:
    """One queue behind each slot, each queue as often as its weight demands."""
    total = sum(slots.queues.values())
    owed: Counter[str] = Counter()
    for name in slots.names:
        owed.update(slots.queues)
        queue = max(slots.queues, key=lambda each: owed[each])
        owed[queue] -= total
        yield Binding(name, queue, "1")
