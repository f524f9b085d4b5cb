"""Where a group's queues come from: a list, a topology file, or the bindings on the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

from rabbit_chx.broker.management import Management
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.names import check_name
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import Topology

QueueSource: TypeAlias = "Callable[[], tuple[str, ...]]"
"""A function that returns the current queues."""


def queue_source(
    queues: Sequence[str] | Path | None,
    exchange: str,
    apis: Sequence[tuple[str, Callable[[], Management]]],
) -> QueueSource:
    """Choose the source of the queues' names. Checks a list, but reads no file and no broker yet.

    The bindings are those in a virtual host, read from its management API, or from the next one if that does not answer.
    """
    if queues is None:
        return partial(_bound, exchange, apis)
    if isinstance(queues, Path):
        return partial(_in_file, queues, exchange)
    if isinstance(queues, str) or not queues:
        raise InvalidValue(
            "queues", queues, "a list of names, the Path of a topology file, or None for the bindings"
        )
    names = _in_order(check_name("queue", name) for name in queues)
    return lambda: names


def _bound(exchange: str, apis: Sequence[tuple[str, Callable[[], Management]]]) -> tuple[str, ...]:
    *others, last = apis
    for each in others:
        with suppress(BrokerUnavailable):
            return _bound_at(exchange, *each)
    return _bound_at(exchange, *last)


def _bound_at(exchange: str, vhost: str, management: Callable[[], Management]) -> tuple[str, ...]:
    api = management()
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
