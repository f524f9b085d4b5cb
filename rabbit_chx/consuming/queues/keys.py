"""What ``order="key"`` keeps in order: the part of a message that the exchange hashes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

from rabbit_chx.broker.management import Management
from rabbit_chx.consuming.logs import log
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.hashing import HashHeader, HashOn, hash_on
from rabbit_chx.message import Message
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import CONSISTENT_HASH, Topology

KeyFunction: TypeAlias = Callable[[Message], Hashable]
"""The key of a message."""
KeySource: TypeAlias = Callable[[], KeyFunction]
"""A function that finds out what an exchange hashes."""


def key_source(
    queues: Sequence[str] | Path | None,
    exchange: str,
    apis: Sequence[tuple[str, Callable[[], Management]]],
) -> KeySource:
    """Choose where the arguments of the exchange are read: where its queues are, or for a list in the management API."""
    if isinstance(queues, Path):
        return lambda: key_of(load(queues), exchange)
    if queues is None:
        return partial(_on_broker, exchange, apis)
    return partial(_on_broker_or_routing_key, exchange, apis)


def key_of(topology: Topology, exchange: str) -> KeyFunction:
    """The key of a message that was published to this exchange.

    Raises:
        InvalidValue: the exchange leads to hash exchanges that hash different parts.
    """
    found = topology.exchange(exchange)
    if found is not None and found.type == CONSISTENT_HASH:
        return _part(hash_on(found.hash_header, found.hash_property))
    leads_to = {
        each.name for each in reachable(topology, [ToExchange(exchange)]) if isinstance(each, ToExchange)
    }
    hashed = {
        (each.hash_header, each.hash_property)
        for each in topology.exchanges
        if each.name in leads_to and each.type == CONSISTENT_HASH
    }
    if len(hashed) > 1:
        raise InvalidValue(
            "key",
            None,
            f"a function: exchange {exchange!r} leads to exchanges that hash different parts of a message",
        )
    return _part(hash_on(*hashed.pop())) if hashed else _part(hash_on(None, None))


def _part(on: HashOn) -> KeyFunction:
    if not isinstance(on, HashHeader):
        return attrgetter(on.part)
    header = on.header

    def value_of(message: Message) -> str:
        value = message.headers.get(header)
        return (
            value if isinstance(value, str) else repr(value)
        )  # a list has no hash, and NaN differs from itself

    return value_of


def _on_broker(exchange: str, apis: Sequence[tuple[str, Callable[[], Management]]]) -> KeyFunction:
    *others, last = apis
    for each in others:
        with suppress(BrokerUnavailable):
            return _on_broker_at(exchange, *each)
    return _on_broker_at(exchange, *last)


def _on_broker_at(exchange: str, vhost: str, management: Callable[[], Management]) -> KeyFunction:
    api = management()
    found = api.exchange(vhost, exchange)
    if found.type == CONSISTENT_HASH:
        return key_of(Topology(vhost, exchanges=(found,)), exchange)
    exchanges, bindings = tuple(api.exchanges(vhost)), tuple(api.bindings(vhost))
    return key_of(Topology(vhost, exchanges=exchanges, bindings=bindings), exchange)


def _on_broker_or_routing_key(
    exchange: str, apis: Sequence[tuple[str, Callable[[], Management]]]
) -> KeyFunction:
    try:
        return _on_broker(exchange, apis)
    except RabbitChxError as error:
        text = "order='key' uses the routing key, because what exchange %r hashes could not be read: %s. Pass key= to choose"
        log.warning(text, exchange, error)
        return _part(hash_on(None, None))
