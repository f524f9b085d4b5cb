"""RabbitMQ's ``definitions.json``, read as topologies and written from one.

A broker that imports definitions binds with many processes at once, so neither the order of the bindings in such a
file nor that of the imported rings means anything; ``rabbit-chx apply`` binds in order. Exports of RabbitMQ 4.3 list
the bindings of internal exchanges but not the exchanges themselves; such a file is incomplete and is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, get_args

from rabbit_chx.base.names import VALID_NAME, name_flaw
from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.mirror.ring import ToExchange, name_of
from rabbit_chx.topology.file.exportable import by_name
from rabbit_chx.topology.file.problems import Document
from rabbit_chx.topology.model import (
    OWN,
    RESERVED,
    Binding,
    Exchange,
    Policy,
    Queue,
    QueueType,
    Topology,
    order_matters,
)
from rabbit_chx.topology.slots.slot_division import divide

if TYPE_CHECKING:
    from rabbit_chx.topology.file.schema import DefinedBinding, DefinedQueue, Definitions


def looks_like_definitions(value: Any) -> bool:
    """Whether RabbitMQ wrote this, and not a person for this tool."""
    if not isinstance(value, dict) or "schema" in value:
        return False
    marks = {"rabbit_version", "rabbitmq_version", "rabbitmq_definition_format"}
    return bool(marks & set(value)) or isinstance(value.get("exchanges"), list)


def read_definitions(document: Document, vhosts: Sequence[str] = ()) -> tuple[Topology, ...]:
    """The topologies of some virtual hosts in a document, or of all of them."""
    from rabbit_chx.topology.file.schema import Definitions
    from rabbit_chx.topology.file.schema_errors import validated

    found, _ = validated(Definitions, document)
    document.raise_problems()
    assert found
    topologies = tuple(_topology(found, document, each) for each in _vhosts(found, vhosts, document))
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
    return [each.name for each in topology.hash_exchanges if order_matters(topology.bindings_from(each.name))]


# Of the parameters in an export, those with a name of their own.
_COMPONENTS: Final = {"operator_policy": "operator policies", "vhost-limits": "virtual host limits"}


def left_out(definitions: Any, vhosts: Iterable[str]) -> dict[str, int]:
    """What definitions hold for some virtual hosts that is not part of a topology, by kind and count."""
    kept = [None, *vhosts]  # nothing has checked the rows, whose values may have no hash
    counts: Counter[str] = Counter()
    for section in ("users", "permissions", "topic_permissions", "global_parameters"):
        rows = _rows(definitions, section)
        counts[section.replace("_", " ")] = sum(row.get("vhost") in kept for row in rows)
    # Limits are parameters; the row of a virtual host repeats them.
    for row in _rows(definitions, "parameters"):
        if row.get("vhost") in kept:
            component, value = str(row.get("component")), row.get("value")
            items = value if component == "vhost-limits" and isinstance(value, dict) else (value,)
            counts[_COMPONENTS.get(component, "parameters")] += len(items)
    for row in _rows(definitions, "vhosts"):
        if row.get("name") in kept:
            metadata = row.get("metadata")
            tags = row.get("tags") or (metadata.get("tags") if isinstance(metadata, dict) else None)
            counts["virtual host tags"] += len(tags) if isinstance(tags, list) else 0
    return {kind: count for kind, count in counts.items() if count}


def _rows(definitions: Any, section: str) -> list[dict[str, Any]]:
    rows = definitions.get(section)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _topology(found: Definitions, document: Document, vhost: str) -> Topology:
    """One virtual host, in an order that does not depend on the export."""

    def own(section: str) -> Iterator[tuple[int, Any]]:
        objects = enumerate(getattr(found, section))
        return ((index, each) for index, each in objects if each.vhost in (None, vhost))

    for section in ("exchanges", "queues", "policies"):
        for index, each in own(section):
            if flaw := each.name and name_flaw(each.name):
                document.report((section, index, "name"), Unquoted(flaw), VALID_NAME)
    exchanges = [
        Exchange(each.name, each.type, each.durable, each.auto_delete, each.internal, each.arguments)
        for _, each in own("exchanges")
        if each.name and not each.name.startswith((RESERVED, OWN))
    ]
    queues = [_queue(index, each, document) for index, each in own("queues") if not each.name.startswith(OWN)]
    policies = [
        Policy(each.name, each.pattern, each.apply_to, each.definition, each.priority)
        for _, each in own("policies")
    ]
    names = {each.name for each in exchanges}, {each.name for each in queues}
    topology = Topology(
        vhost,
        exchanges=by_name(exchanges),
        queues=by_name(queues),
        bindings=tuple(sorted(_bindings(own("bindings"), *names, document), key=attrgetter("source"))),
        policies=by_name(policies),
    )
    return replace(topology, unordered=frozenset(unordered_rings(topology)))


def _queue(index: int, found: DefinedQueue, document: Document) -> Queue:
    arguments = dict(found.arguments)
    kind: Any = arguments.pop("x-queue-type", None) or found.type or "classic"
    if kind not in get_args(QueueType):
        document.report(("queues", index, "type"), kind, " or ".join(get_args(QueueType)))
    return Queue(found.name, kind, found.durable, found.auto_delete, arguments=arguments)


def _bindings(
    found: Iterable[tuple[int, DefinedBinding]], exchanges: set[str], queues: set[str], document: Document
) -> Iterator[Binding]:
    missing: dict[str, int] = {}
    for index, each in found:
        is_queue = each.destination_type == "queue"
        if not each.source or each.source.startswith(OWN) or (is_queue and each.destination not in queues):
            continue  # a default binding, the record of an order, or of a queue that belongs to a connection
        for name in (each.source,) if is_queue else (each.source, each.destination):
            if name not in exchanges and not name.startswith(RESERVED):
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
        document.add(("bindings", index), error)


def to_definitions(topology: Topology) -> dict[str, Any]:
    """The topology as RabbitMQ's definitions, with slots written out.

    The order depends only on names, and on bind order within an exchange. A broker that imports them binds in an
    order of its own: :func:`unordered_rings` names the exchanges that this concerns.
    """
    queue_of: dict[str, str] = {}
    for slots in topology.slots:
        queue_of |= divide(slots.names, slots.queues)
    whole = topology.expanded(queue_of)
    kept = [each for each in whole.queues if not each.exclusive]
    rows = {
        "policies": [
            {**_row(each, "name", "pattern", "definition", "priority"), "apply-to": each.apply_to}
            for each in sorted(whole.policies, key=lambda each: each.name)
        ],
        "queues": [
            {**_row(each, "name", "durable", "auto_delete"), "arguments": _sorted(each._declared_arguments)}
            for each in sorted(kept, key=lambda each: each.name)
        ],
        "exchanges": [
            _row(each, "name", "type", "durable", "auto_delete", "internal", "arguments")
            for each in sorted(whole.exchanges, key=lambda each: each.name)
        ],
        "bindings": [
            {
                **_row(each, "source", "arguments"),
                "destination": name_of(each.destination),
                "destination_type": "exchange" if isinstance(each.destination, ToExchange) else "queue",
                "routing_key": each.key,
            }
            for each in sorted(whole.bindings, key=attrgetter("source"))
        ],
    }
    owned = {name: [{"vhost": topology.vhost, **row} for row in found] for name, found in rows.items()}
    return {"vhosts": [{"name": topology.vhost}], **owned}


def _row(thing: object, *names: str) -> dict[str, Any]:
    values = {name: getattr(thing, name) for name in names}
    return {name: _sorted(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _sorted(arguments: Any) -> Any:
    return json.loads(json.dumps(dict(arguments), sort_keys=True))
