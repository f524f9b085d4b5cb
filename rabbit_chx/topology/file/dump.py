"""Write a topology as YAML or JSON; equal topologies give equal text.

The text loads as the topology that was written. Queues with numbered names become ranges; the numbers of bind
commands (``x-bind-seq``) are left out, because the order of the file says the same. Needs no library.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import InvalidValue
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.file.ranges import fold, literal
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rabbit_chx.topology.file.load import Format
    from rabbit_chx.topology.model import Binding, Exchange, Queue

__all__ = ["dumps"]

_RESERVED: Final = "amq."
_WIDTH: Final = 100
_KEYED_ARGUMENTS: Final = ("hash-header", "hash-property", "alternate-exchange")
_PROPERTIES: Final = ("message_id", "correlation_id", "timestamp")


def dumps(topology: Topology, format: Format) -> str:  # noqa: A002 - what a user calls it
    """The text of a file that loads as this topology."""
    if format not in ("yaml", "json"):
        raise InvalidValue("format", format, "yaml or json")
    value = _file(topology)
    if format == "json":
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return "\n".join(_yaml(value, 0)) + "\n"


# The topology as plain values, keys in the order of the documentation


def _file(topology: Topology) -> dict[str, Any]:
    declared = {each.name for each in topology.exchanges}
    sources = dict.fromkeys(bound.source for bound in topology.bindings)
    exchanges = {
        each.name: _exchange(topology, each)
        for each in topology.exchanges
        if not each.name.startswith(_RESERVED)
    }
    for source in sources:
        if source not in declared or source.startswith(_RESERVED):
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
    sections = {
        "exchanges": exchanges,
        "queues": dict(fold((each.name, _queue(each)) for each in topology.queues)),
        "policies": policies,
    }
    return {
        "schema": 1,
        "vhost": topology.vhost,
        **{name: section for name, section in sections.items() if section},
    }


def _exchange(topology: Topology, exchange: Exchange) -> dict[str, Any]:
    arguments = dict(exchange.arguments)
    slots = topology.slots_of(exchange.name)
    keyed: dict[str, Any] = {}
    for name in _KEYED_ARGUMENTS:
        found = arguments.get(name)
        is_its_own = exchange.type == CONSISTENT_HASH or name == "alternate-exchange"
        is_known = name != "hash-property" or found in _PROPERTIES
        is_of_slots = slots is not None and name == "alternate-exchange"
        is_declared = (
            name != "alternate-exchange" or str(found).startswith(_RESERVED) or topology.exchange(str(found))
        )
        if isinstance(found, str) and found and is_its_own and is_known and is_declared and not is_of_slots:
            keyed[name] = arguments.pop(name)
    if slots and slots.alternate is not None:
        keyed["alternate-exchange"] = slots.alternate
    partners = [second for first, second in topology.co_partitioned if first == exchange.name]
    if slots:
        wired: dict[str, Any] = {"slots": slots.count, "queues": dict(fold(slots.queues.items()))}
    else:
        wired = _wired(exchange, topology.bindings_from(exchange.name))
    return {
        "type": exchange.type,
        **keyed,
        **({} if exchange.durable else {"durable": False}),
        **({"auto-delete": True} if exchange.auto_delete else {}),
        **({"internal": True} if exchange.internal else {}),
        **({"arguments": arguments} if arguments else {}),
        **({"co-partitioned-with": partners if len(partners) > 1 else partners[0]} if partners else {}),
        **wired,
    }


def _wired(exchange: Exchange, bindings: tuple[Binding, ...]) -> dict[str, Any]:
    """The bindings in the shortest form that says them all."""
    if not bindings:
        return {}
    destinations = {bound.destination for bound in bindings}
    is_plain = len(destinations) == len(bindings) and not any(
        bound.unnumbered.arguments for bound in bindings
    )
    if exchange.type == CONSISTENT_HASH:
        is_plain &= all(re.fullmatch("[1-9][0-9]*", bound.key, re.ASCII) for bound in bindings)
    if exchange.type == MODULUS_HASH:
        is_plain &= not any(bound.key for bound in bindings)
    if exchange.type not in (CONSISTENT_HASH, MODULUS_HASH) or not is_plain:
        return {"bindings": [_keyed(bound) for bound in bindings]}
    if any(isinstance(bound.destination, ToExchange) for bound in bindings):
        return {"destinations": [{**_either(bound), "weight": int(bound.key or 1)} for bound in bindings]}
    return {"queues": dict(fold((str(bound.destination), int(bound.key or 1)) for bound in bindings))}


def _either(bound: Binding) -> dict[str, str]:
    if isinstance(bound.destination, ToExchange):
        return {"exchange": bound.destination.name}
    return {"queue": literal(bound.destination)}


def _keyed(bound: Binding) -> dict[str, Any]:
    arguments = dict(bound.unnumbered.arguments)
    return {
        **_either(bound),
        **({"key": bound.key} if bound.key else {}),
        **({"arguments": arguments} if arguments else {}),
    }


def _queue(queue: Queue) -> dict[str, Any]:
    if queue.exclusive:
        raise InvalidValue(
            f"queue {queue.name!r}",
            "an exclusive queue",
            "a queue that is not exclusive",
            "exportable() leaves exclusive queues out",
        )
    arguments = dict(queue.arguments)
    is_single = arguments.get("x-single-active-consumer") is True and queue.type != "stream"
    if is_single:
        del arguments["x-single-active-consumer"]
    return {
        "type": queue.type,
        **({"single-active-consumer": True} if is_single else {}),
        **({} if queue.durable else {"durable": False}),
        **({"auto-delete": True} if queue.auto_delete else {}),
        **({"arguments": arguments} if arguments else {}),
    }


# Text

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_WORDS: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_ESCAPED: Final = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _quoted(text: str) -> str:
    """Text in double quotes, with JSON's escapes, which YAML shares."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def _number(value: float) -> str:
    """A number with a point before an exponent, as both versions of YAML want it."""
    text = repr(value)
    return text if "e" not in text or "." in text else text.replace("e", ".0e")


def _scalar(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return _number(value)
        case int():
            return str(value)
        case _:
            return _quoted(str(value))


def _yaml_text(text: str) -> str:
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return text if is_plain else _quoted(text)


def _flow(value: Any) -> str:
    """A YAML value in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow_key(key)} {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _yaml_text(value) if isinstance(value, str) else _scalar(value)


def _flow_key(key: str) -> str:
    # A key that is longer than YAML looks ahead says beforehand that it is one.
    text = _yaml_text(key)
    return f"{text}:" if len(text) < 1000 else f"? {text} :"


def _yaml(value: Mapping[str, Any], indent: int) -> Iterator[str]:
    """A mapping in lines; what fits into one line stands in one, below the sections of the file."""
    for key, item in value.items():
        start = " " * indent + _flow_key(key)
        line = f"{start} {_flow(item)}"
        if not item or not isinstance(item, (dict, list)) or (indent and len(line) <= _WIDTH):
            yield line
        elif len(_yaml_text(key)) >= 1000:
            yield " " * indent + _flow({key: item})[1:-1]
        elif isinstance(item, dict):
            yield start
            yield from _yaml(item, indent + 2)
        else:
            yield start
            yield from (" " * (indent + 2) + "- " + _flow(each) for each in item)
