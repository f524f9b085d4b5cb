"""Write a topology as YAML or JSON; equal topologies give equal text.

The text loads as the topology that was written. Successive numbered queues become ranges. Needs no library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.base.text import UNPRINTABLE
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.topology.file.names import literal, with_ranges
from rabbit_chx.topology.model import (
    CONSISTENT_HASH,
    DELIVERY_LIMIT,
    HASH_PROPERTIES,
    MODULUS_HASH,
    RESERVED,
    Binding,
    Exchange,
    Queue,
    Topology,
    bound_to,
)

if TYPE_CHECKING:
    from rabbit_chx.topology.file.load import Format

_WIDTH: Final = 100


def dumps(topology: Topology, format: Format) -> str:  # noqa: A002 - the word that users know
    """The text of a file that loads as this topology."""
    if format not in ("yaml", "json"):
        raise InvalidValue("format", format, "yaml or json")
    value = values_of(topology)
    return json_text(value) if format == "json" else yaml_text(value)


def yaml_text(value: Mapping[str, Any]) -> str:
    """A file, or a part of one, as YAML."""
    return "\n".join(_yaml(value, 0)) + "\n"


def excerpt(topology: Topology, exchange: str) -> str:
    """The part of a file, as YAML, that declares an exchange, its bindings and the bound queues."""
    bound = bound_to(topology, exchange)
    part = replace(topology, queues=tuple(each for each in topology.queues if each.name in bound))
    values = values_of(part)
    shown = {"exchanges": {exchange: values["exchanges"][exchange]}, "queues": values.get("queues", {})}
    return yaml_text(_given(shown))


def json_text(value: Any) -> str:
    """A value as JSON without raw characters that would control a terminal."""
    return _escaped(json.dumps(value, indent=2, ensure_ascii=False)) + "\n"


# -- the topology as plain values, with keys in the order of the documentation ----------------------


def values_of(topology: Topology) -> dict[str, Any]:
    """The contents of a file that loads as this topology."""
    own = [each for each in topology.exchanges if not each.name.startswith(RESERVED)]
    exchanges = {each.name: _exchange(topology, each) for each in own}
    for source in dict.fromkeys(bound.source for bound in topology.bindings):
        if source not in exchanges:
            exchanges[source] = {"bindings": [_keyed(bound) for bound in topology.bindings_from(source)]}
    policies = {
        each.name: {
            "pattern": each.pattern,
            "apply-to": each.apply_to,
            "priority": each.priority,
            "definition": dict(each.definition),
        }
        for each in topology.policies
    }
    queues = dict(with_ranges((each.name, _queue(each)) for each in topology.queues))
    sections = {"exchanges": exchanges, "queues": queues, "policies": policies}
    return {"schema": 1, "vhost": topology.vhost, **_given(sections)}


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """The values that differ from their defaults: true for durable, and false or empty for all others."""
    return {name: value for name, value in values.items() if bool(value) != (name == "durable")}


def _exchange(topology: Topology, exchange: Exchange) -> dict[str, Any]:
    arguments = dict(exchange.arguments)
    slots = topology.slots_of(exchange.name)
    keyed = {name: arguments.pop(name) for name in _keys(topology, exchange)}
    if slots and slots.alternate is not None:
        keyed["alternate-exchange"] = slots.alternate
    partners = [second for first, second in topology.co_partitioned if first == exchange.name]
    lists = _bindings(exchange, topology.bindings_from(exchange.name))
    if slots:
        lists = {"slots": slots.count, "queues": dict(with_ranges(slots.queues.items()))}
    values = {
        "type": exchange.type,
        **keyed,
        "order": "unknown" if exchange.name in topology.unordered else None,
        "durable": exchange.durable,
        "auto-delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": arguments,
        "co-partitioned-with": partners[0] if len(partners) == 1 else partners,
    }
    return {**_given(values), **lists}


def _keys(topology: Topology, exchange: Exchange) -> Iterator[str]:
    """The arguments of an exchange that have a key of their own in a file, where the loader accepts their values."""
    found = {name: value for name, value in exchange.arguments.items() if isinstance(value, str) and value}
    if exchange.type == CONSISTENT_HASH and "hash-header" in found:
        yield "hash-header"
    if exchange.type == CONSISTENT_HASH and found.get("hash-property") in HASH_PROPERTIES:
        yield "hash-property"
    alternate = found.get("alternate-exchange", "")
    is_known = alternate.startswith(RESERVED) or (alternate and topology.exchange(alternate) is not None)
    if is_known and topology.slots_of(exchange.name) is None:
        yield "alternate-exchange"


def _bindings(exchange: Exchange, bindings: tuple[Binding, ...]) -> dict[str, Any]:
    """The bindings in the shortest form that can express them."""
    if not bindings:
        return {}
    is_plain = len({bound.destination for bound in bindings}) == len(bindings)
    is_plain &= not any(bound.arguments for bound in bindings)
    if exchange.type == CONSISTENT_HASH:
        is_plain &= all(re.fullmatch("[1-9][0-9]*", bound.key, re.ASCII) for bound in bindings)
    elif exchange.type == MODULUS_HASH:
        is_plain &= not any(bound.key for bound in bindings)
    else:
        is_plain = False
    if not is_plain:
        return {"bindings": [_keyed(bound) for bound in bindings]}
    if any(isinstance(bound.destination, ToExchange) for bound in bindings):
        return {"destinations": [{**_either(bound), "weight": int(bound.key or 1)} for bound in bindings]}
    return {"queues": dict(with_ranges((str(bound.destination), int(bound.key or 1)) for bound in bindings))}


def _either(bound: Binding) -> dict[str, Any]:
    if isinstance(bound.destination, ToExchange):
        return {"exchange": bound.destination.name}
    return {"queue": literal(bound.destination)}


def _keyed(bound: Binding) -> dict[str, Any]:
    return {**_either(bound), **_given({"key": bound.key, "arguments": dict(bound.arguments)})}


def _queue(queue: Queue) -> dict[str, Any]:
    if queue.exclusive:
        hint = "Leave exclusive queues out: they live as long as their connection"
        raise InvalidValue(
            f"queue {queue.name!r}", "an exclusive queue", "a queue that is not exclusive", hint
        )
    arguments = dict(queue.arguments)
    is_single = arguments.get("x-single-active-consumer") is True and queue.type != "stream"
    if is_single:
        del arguments["x-single-active-consumer"]
    limit = arguments.get(DELIVERY_LIMIT)
    is_ordered = is_single and queue.type == "quorum" and type(limit) is int and limit == -1
    if is_ordered:
        del arguments[DELIVERY_LIMIT]
    values = {
        "preset": "ordered" if is_ordered else None,
        "type": None if is_ordered else queue.type,
        "single-active-consumer": is_single and not is_ordered,
        "durable": queue.durable,
        "auto-delete": queue.auto_delete,
        "arguments": arguments,
    }
    return _given(values)


# -- YAML -------------------------------------------------------------------------------------------

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_WORDS: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_NO_YAML: Final = re.compile(r"[\ufeff\ufffe\uffff]")
_MAX_SIMPLE_KEY: Final = 1000


def _escaped(text: str) -> str:
    """JSON or YAML whose strings escape characters that a terminal or a YAML reader would not show."""
    text = UNPRINTABLE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)
    return _NO_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _flow(value: Any) -> str:
    """A value in one line."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_key(key)} {_flow(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_flow, value)) + "]"
        case str():
            is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
            return value if is_plain else _escaped(json.dumps(value, ensure_ascii=False))
        case float():
            text = repr(value)  # YAML wants a point before an exponent
            return text if "." in text else text.replace("e", ".0e")
        case _:
            return json.dumps(value)


def _key(key: str) -> str:
    # YAML looks only 1,024 characters ahead for the colon.
    text = _flow(key)
    return f"{text}:" if len(text) < _MAX_SIMPLE_KEY else f"? {text} :"


def _yaml(value: Mapping[str, Any], indent: int) -> Iterator[str]:
    """The lines of a mapping; below the sections of the file, a value that fits takes one line."""
    for key, item in value.items():
        start = " " * indent + _key(key)
        line = f"{start} {_flow(item)}"
        if not item or not isinstance(item, (dict, list)) or (indent and len(line) <= _WIDTH):
            yield line
        elif len(_flow(key)) >= _MAX_SIMPLE_KEY:
            yield " " * indent + _flow({key: item})[1:-1]
        elif isinstance(item, dict):
            yield start
            yield from _yaml(item, indent + 2)
        else:
            yield start
            yield from (" " * (indent + 2) + "- " + _flow(each) for each in item)
