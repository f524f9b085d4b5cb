"""RabbitMQ's own ``definitions.json``: of a whole broker or of one virtual host, read and written.

A warning to whoever imports such a file into a broker: it binds with many processes at once, so the order of the
buckets of every consistent-hash exchange, and with it the routing, is left to chance. ``apply`` binds in order.

Users, permissions, parameters and limits are no part of a topology and are passed over. Exports of RabbitMQ 4.3
lack internal exchanges although they list their bindings; such a file is refused, since it is not all there.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, get_args

from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.file.problems import Document, check_values
from rabbit_chx.topology.model import (
    Binding,
    Exchange,
    Policy,
    Queue,
    QueueType,
    Slots,
    Topology,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rabbit_chx.topology.file.schema import DefinedQueue, Definitions

__all__ = ["from_definitions", "looks_like_definitions", "read_definitions", "to_definitions"]

_RESERVED: Final = "amq."


def looks_like_definitions(value: Any) -> bool:
    """Whether RabbitMQ wrote this, and not a person for this tool."""
    if not isinstance(value, dict) or "schema" in value:
        return False
    marks = {"rabbit_version", "rabbitmq_version", "rabbitmq_definition_format"}
    return bool(marks & set(value)) or isinstance(value.get("exchanges"), list)


def from_definitions(value: Any, vhost: str | None = None) -> Topology:
    """The topology of a virtual host in parsed definitions; it has to be named where there are several.

    Where all bindings of an exchange carry ``x-bind-seq``, they are put in that order. Importing such a file
    into a broker randomises the order, and with it the routing.
    """
    document = Document("definitions", value)
    check_values(document)
    return read_definitions(document, vhost)


def read_definitions(document: Document, vhost: str | None = None) -> Topology:
    """As :func:`from_definitions`, for a parsed file: problems have lines and columns."""
    from rabbit_chx.topology.file.schema import Definitions, checked
    from rabbit_chx.topology.file.schema_errors import report_errors

    found, errors = checked(Definitions, document.value)
    report_errors(errors, document)
    document.raise_problems()
    assert found
    topology = _Reader(found, document, _vhost(found, vhost, document)).topology()
    document.raise_problems()
    return topology


def _vhost(found: Definitions, wanted: str | None, document: Document) -> str:
    """The virtual host that is meant; what names none of its own belongs to the one of the file."""
    sections: Iterable[Any] = (*found.exchanges, *found.queues, *found.bindings, *found.policies)
    known = {each.name for each in found.vhosts} | {each.vhost for each in sections if each.vhost is not None}
    if found.original_vhost_name is not None or not known:
        return wanted or found.original_vhost_name or "/"
    if wanted not in known and (wanted is not None or len(known) > 1):
        document.fail(
            None,
            "virtual host",
            Unquoted("none") if wanted is None else wanted,
            "one of " + ", ".join(repr(name) for name in sorted(known)),
            "A topology belongs to one virtual host",
        )
    return wanted or known.pop()


class _Reader:
    """Reads what belongs to one virtual host."""

    def __init__(self, found: Definitions, document: Document, vhost: str) -> None:
        self._found = found
        self._document = document
        self._vhost = vhost

    def topology(self) -> Topology:
        """All of it, in the one order that does not depend on the export."""
        exchanges = [
            Exchange(each.name, each.type, each.durable, each.auto_delete, each.internal, each.arguments)
            for _, each in self._own(self._found.exchanges)
            if each.name and not each.name.startswith(_RESERVED)
        ]
        queues = [self._queue(index, each) for index, each in self._own(self._found.queues)]
        bindings = list(self._bindings({each.name for each in exchanges}, {each.name for each in queues}))
        policies = [
            Policy(each.name, each.pattern, each.apply_to, each.definition, each.priority)
            for _, each in self._own(self._found.policies)
        ]
        return Topology(
            self._vhost,
            exchanges=tuple(sorted(exchanges, key=lambda each: each.name)),
            queues=tuple(sorted(queues, key=lambda each: each.name)),
            bindings=tuple(_in_order(bindings)),
            policies=tuple(sorted(policies, key=lambda each: each.name)),
        )

    def _own(self, items: list[Any]) -> Iterator[tuple[int, Any]]:
        return ((index, item) for index, item in enumerate(items) if item.vhost in (None, self._vhost))

    def _queue(self, index: int, found: DefinedQueue) -> Queue:
        arguments = dict(found.arguments)
        kind: Any = arguments.pop("x-queue-type", None) or found.type or "classic"
        if kind not in get_args(QueueType):
            self._document.report(("queues", index, "type"), kind, " or ".join(get_args(QueueType)))
        return Queue(found.name, kind, found.durable, found.auto_delete, arguments=arguments)

    def _bindings(self, exchanges: set[str], queues: set[str]) -> Iterator[Binding]:
        missing: dict[str, int] = {}
        for index, each in self._own(self._found.bindings):
            is_queue = each.destination_type == "queue"
            if not each.source or (is_queue and each.destination not in queues):
                continue  # the default exchange's own, or of a queue that belongs to a connection
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
                "Exports of RabbitMQ 4 can lack internal exchanges: export from the broker with rabbit-chx",
            )
            self._document.add(self._document.positions.of(("bindings", index)), error)


def _in_order(bindings: list[Binding]) -> list[Binding]:
    """By source, and those of one source by their numbers where each has one, else as they stood."""
    sequences: dict[str, list[int | None]] = {}
    for each in bindings:
        sequences.setdefault(each.source, []).append(each.sequence)

    def place(bound: Binding) -> tuple[str, int]:
        is_numbered = None not in sequences[bound.source]
        return (bound.source, (bound.sequence or 0) if is_numbered else 0)

    return sorted(bindings, key=place)


def to_definitions(topology: Topology) -> dict[str, Any]:
    """The topology as RabbitMQ's definitions, slots written out, in an order that depends on names alone.

    Only the bindings of one exchange keep their order. Whoever imports this should know that the broker
    binds in an order of its own, so that the ring, and with it the routing, is left to chance.
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
    """One queue behind each slot, every queue as often as its weight asks, slot after slot in the order given."""
    total = sum(slots.queues.values())
    owed: Counter[str] = Counter()
    for name in slots.names:
        owed.update(slots.queues)
        queue = max(slots.queues, key=lambda each: owed[each])
        owed[queue] -= total
        yield Binding(name, queue, "1")
