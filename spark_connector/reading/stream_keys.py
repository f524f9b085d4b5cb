"""Which streams can hold the rows of a routing key, computed by the mirror. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rabbit_chx import AnyOf, InvalidValue, RabbitChxError
from rabbit_chx.topology import Exchange, Observed, Router, ToExchange, Topology, reachable


def bound_queues(topology: Topology, exchange: str) -> set[str]:
    """The queues that are bound to an exchange, directly or through other exchanges."""
    return {one for one in reachable(topology, [ToExchange(exchange)]) if isinstance(one, str)}


def streams_of_keys(keys: Iterable[str], observed: Observed, exchange: str) -> set[str]:
    """The queues to which an exchange routes messages with these routing keys.

    Raises:
        InvalidValue: the route depends on more than the key, or on the unknown order of a ring.
    """
    chosen = tuple(keys)
    if other := next(_routed_otherwise(observed.topology, exchange), None):
        raise no_keys(
            chosen, f"exchange {exchange!r}", f"Exchange {other!r} does not route by the routing key"
        )
    router = Router(observed.topology, release=observed.release, rings=observed.rings)
    try:
        found = [one for key in chosen for one in router.route(exchange, key)]
    except RabbitChxError as error:
        raise no_keys(chosen, f"exchange {exchange!r}", str(error)) from None
    return {str(name) for one in found for name in (one.destinations if isinstance(one, AnyOf) else [one])}


def no_keys(keys: Iterable[str], source: str, reason: str = "") -> InvalidValue:
    """The error for a source whose streams cannot be chosen by key."""
    listed = ", ".join(f"'{key}'" for key in keys)
    where = f'Leave keys out and filter the rows: where("routing_key in ({listed})")'
    expected = "the option superStream, or an exchange whose routes are known"
    return InvalidValue(
        "option keys",
        f"a read of {source}",
        expected,
        f"{reason[:1].upper()}{reason[1:]}. {where}" if reason else where,
    )


def _routed_otherwise(topology: Topology, exchange: str) -> Iterator[str]:
    """The exchanges, from this one on, that route by headers or properties."""
    names = sorted(
        one.name for one in reachable(topology, [ToExchange(exchange)]) if isinstance(one, ToExchange)
    )
    return (name for name in names if (found := topology.exchange(name)) and not _by_key(found))


def _by_key(exchange: Exchange) -> bool:
    return exchange.type != "headers" and exchange.hash_header is None and exchange.hash_property is None
