"""What a group learns of its exchange, from a topology file or the broker: its queues, and with ``order="key"`` what it hashes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias, TypeVar

from rabbit_chx.base.names import check_name
from rabbit_chx.base.text import sentences
from rabbit_chx.broker.management import Management
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.messages.message import Message
from rabbit_chx.mirror.hashing import HashHeader, HashOn, hash_on
from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import CONSISTENT_HASH, Topology
from rabbit_chx.working.settings import log

_T = TypeVar("_T")
QueueSource: TypeAlias = "Callable[[], tuple[str, ...]]"
"""A function that returns the current queues."""
KeyFunction: TypeAlias = Callable[[Message], Hashable]
"""The key of a message."""
KeySource: TypeAlias = Callable[[], KeyFunction]
"""A function that finds out what an exchange hashes."""
Apis: TypeAlias = Sequence[tuple[str, Callable[[], Management]]]
"""The virtual host and the management API of each broker of a client."""


def _from_first(apis: Apis, read: Callable[[Management, str], _T]) -> _T:
    """Read a virtual host from its management API, or from the next one if that does not answer."""
    *others, last = apis
    for vhost, api in others:
        with suppress(BrokerUnavailable):
            return read(api(), vhost)
    vhost, api = last
    return read(api(), vhost)


def queue_source(queues: Sequence[str] | Path | None, exchange: str, apis: Apis) -> QueueSource:
    """Choose the source of the queues' names. Checks a list, but reads no file and no broker yet."""
    if queues is None:
        return partial(_on_broker, exchange, apis)
    if isinstance(queues, Path):
        return partial(_in_file, queues, exchange)
    if isinstance(queues, str) or not queues:
        raise InvalidValue(
            "queues", queues, "a list of names, the Path of a topology file, or None for the bindings"
        )
    names = _in_order(check_name("queue", name) for name in queues)
    return lambda: names


def _on_broker(exchange: str, apis: Apis) -> tuple[str, ...]:
    try:
        return _from_first(apis, partial(_bound, exchange))
    except BrokerUnavailable as error:
        if error.permanent:
            raise
        hint = "Pass its address with management=, or the names of the queues with queues="
        raise BrokerUnavailable(sentences(str(error), hint)) from None


def _bound(exchange: str, api: Management, vhost: str) -> tuple[str, ...]:
    api.exchange(vhost, exchange)
    bindings = tuple(api.bindings(vhost))
    return _behind(Topology(vhost, bindings=bindings), exchange, "the broker")


def _in_file(path: Path, exchange: str) -> tuple[str, ...]:
    topology = load(path)
    if topology.exchange(exchange) is None:
        known = ", ".join(each.name for each in topology.exchanges) or "none"
        raise InvalidValue("exchange", exchange, f"an exchange in {path}", f"It has {known}")
    if slots := topology.slots_of(exchange):
        return _in_order(slots.queues)
    return _behind(topology, exchange, str(path))


def _behind(topology: Topology, exchange: str, where: str) -> tuple[str, ...]:
    found = _in_order(each for each in reachable(topology, [ToExchange(exchange)]) if isinstance(each, str))
    if not found:
        raise InvalidValue(
            "exchange", exchange, "an exchange with queues", f"In {where} no binding leads from it to a queue"
        )
    return found


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    # All members must number the queues in the same way, and the API returns bindings in no defined order.
    return tuple(sorted(set(names)))


# ---- what ``order="key"`` keeps in order: the part of a message that the exchange hashes


def key_source(queues: Sequence[str] | Path | None, exchange: str, apis: Apis) -> KeySource:
    """Choose where the arguments of the exchange are read: where its queues are, or for a list in the management API."""
    if isinstance(queues, Path):
        return lambda: key_of(load(queues), exchange)
    on_broker = partial(_from_first, apis, partial(_hashed_on, exchange))
    return on_broker if queues is None else partial(_or_routing_key, exchange, on_broker)


def key_of(topology: Topology, exchange: str) -> KeyFunction:
    """The key of a message that was published to this exchange.

    Raises:
        InvalidValue: the exchange leads to hash exchanges that hash different parts.
    """
    found = topology.exchange(exchange)
    if found is not None and found.type == CONSISTENT_HASH:
        return _part(hash_on(found.hash_header, found.hash_property))
    behind = reachable(topology, [ToExchange(exchange)])
    there = [each for each in topology.hash_exchanges if ToExchange(each.name) in behind]
    hashed = {(each.hash_header, each.hash_property) for each in there}
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
        # As text, since a list has no hash, and NaN differs from itself.
        return value if isinstance(value, str) else repr(value)

    return value_of


def _hashed_on(exchange: str, api: Management, vhost: str) -> KeyFunction:
    found = api.exchange(vhost, exchange)
    if found.type == CONSISTENT_HASH:
        return key_of(Topology(vhost, exchanges=(found,)), exchange)
    exchanges, bindings = tuple(api.exchanges(vhost)), tuple(api.bindings(vhost))
    return key_of(Topology(vhost, exchanges=exchanges, bindings=bindings), exchange)


def _or_routing_key(exchange: str, on_broker: KeySource) -> KeyFunction:
    try:
        return on_broker()
    except RabbitChxError as error:
        text = "order='key' uses the routing key, because what exchange %r hashes could not be read: %s. Pass key= to choose"
        log.warning(text, exchange, error)
        return _part(hash_on(None, None))
