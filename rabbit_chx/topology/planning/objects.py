"""Exchanges, queues and policies: what is missing, what cannot be changed in place, and what is in nobody's file.

A broker never changes a declared thing: declaring it again with other properties fails, and with other hash
arguments it succeeds and does nothing. So a difference is refused here, with the way out, and never repaired
by deleting. Values only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rabbit_chx.topology.checks.lint import missing_types
from rabbit_chx.topology.planning.bindings import is_shard
from rabbit_chx.topology.planning.blue_green import next_name
from rabbit_chx.topology.planning.steps import (
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    SetPolicy,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rabbit_chx.topology.model import Exchange, Observed, Queue, Topology
    from rabbit_chx.topology.planning.steps import Step

__all__ = ["declarations", "is_a_clients", "leftovers", "objections", "policies", "same_value"]


def same_value(one: object, other: object) -> bool:
    """Whether two arguments are the same on the wire, where 1, 1.0 and True are three things."""
    return _text(one) == _text(other)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def declarations(wanted: Topology, observed: Observed) -> Iterator[Step]:
    """What has to be declared: exchanges before queues, and an alternate exchange before those that name it."""
    exchanges = {exchange.name: exchange for exchange in wanted.exchanges}
    there = {exchange.name for exchange in observed.topology.exchanges}
    done: dict[str, Exchange] = {}

    def declare(exchange: Exchange) -> None:
        if exchange.name in done:
            return
        done[exchange.name] = exchange  # before the alternate, or two that name each other had no end
        alternate = exchanges.get(str(exchange.alternate))
        if alternate is not None:
            declare(alternate)
        ordered.append(exchange)

    ordered: list[Exchange] = []
    for exchange in wanted.exchanges:
        declare(exchange)
    yield from (DeclareExchange(exchange) for exchange in ordered if exchange.name not in there)
    queues = {queue.name for queue in observed.topology.queues}
    yield from (DeclareQueue(queue) for queue in wanted.queues if queue.name not in queues)


def objections(wanted: Topology, observed: Observed) -> dict[str, str]:
    """What stands there with other properties or cannot be declared, each with the way out, by what it is."""
    there = observed.topology
    exchanges = {exchange.name: exchange for exchange in there.exchanges}
    queues = {queue.name: queue for queue in there.queues}
    found: dict[str, str] = {}
    lacking = missing_types(wanted, observed)
    for exchange in wanted.exchanges:
        live = exchanges.get(exchange.name)
        if live is None:
            if exchange.type in lacking:
                found[f"exchange {exchange.name!r}"] = (
                    f"exchange {exchange.name!r}: the broker does not know the type {exchange.type}: "
                    f"{lacking[exchange.type]}"
                )
        elif differences := tuple(_differences(exchange, live)):
            name = next_name(exchange.name, [*exchanges, *(each.name for each in wanted.exchanges)])
            found[f"exchange {exchange.name!r}"] = (
                f"exchange {exchange.name!r} {', '.join(differences)}, and a broker changes none of that in place: "
                f"call the new one {name!r} in the file, switch over to it, then delete the old one (blue/green)"
            )
    for queue in wanted.queues:
        standing = queues.get(queue.name)
        if standing is not None and (differences := tuple(_differences(queue, standing))):
            name = next_name(queue.name, [*queues, *(each.name for each in wanted.queues)])
            found[f"queue {queue.name!r}"] = (
                f"queue {queue.name!r} {', '.join(differences)}, and a broker changes none of that in place: call the "
                f"new one {name!r} in the file, drain the old one, then delete it (blue/green)"
            )
    return found


def _differences(wanted: Exchange | Queue, there: Exchange | Queue) -> Iterator[str]:
    for name in ("type", "durable", "auto_delete", "internal", "exclusive"):
        ours, theirs = getattr(wanted, name, None), getattr(there, name, None)
        if ours != theirs:
            yield f"has {name.replace('_', '-')} {_text(theirs)} where the file says {_text(ours)}"
    yield from _argument_differences(wanted.arguments, there.arguments)


def _argument_differences(ours: Mapping[str, object], theirs: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs:
            yield f"has no argument {name} where the file says {_text(ours[name])}"
        elif name not in ours:
            yield f"has the argument {name} {_text(theirs[name])} where the file has none"
        elif not same_value(ours[name], theirs[name]):
            yield f"has the argument {name} {_text(theirs[name])} where the file says {_text(ours[name])}"


def policies(wanted: Topology, there: Topology) -> Iterator[Step]:
    """The policies that are missing or otherwise, which setting them repairs."""
    live = {policy.name: policy for policy in there.policies}
    for policy in wanted.policies:
        found = live.get(policy.name)
        same = found is not None and (
            (policy.pattern, policy.apply_to, policy.priority)
            == (found.pattern, found.apply_to, found.priority)
            and same_value(dict(policy.definition), dict(found.definition))
        )
        if not same:
            yield SetPolicy(policy)


def is_a_clients(thing: Exchange | Queue) -> bool:
    """Whether a broker or a running client made it and takes it away again: no file has a say in that."""
    reserved = not thing.name or thing.name.startswith("amq.") or is_shard(thing.name)
    return reserved or thing.auto_delete or getattr(thing, "exclusive", False)


def leftovers(wanted: Topology, there: Topology, *, force: bool) -> tuple[Step, ...]:
    """What to delete so that only what the file names is left; what clients made stays."""
    exchanges = {exchange.name for exchange in wanted.exchanges}
    queues = {queue.name for queue in wanted.queues}
    named = {policy.name for policy in wanted.policies}
    return (
        *(ClearPolicy(policy.name) for policy in there.policies if policy.name not in named),
        *(
            DeleteExchange(exchange.name)
            for exchange in there.exchanges
            if exchange.name not in exchanges and not is_a_clients(exchange)
        ),
        *(
            DeleteQueue(queue.name, force=force)
            for queue in there.queues
            if queue.name not in queues and not is_a_clients(queue)
        ),
    )
