"""Which stream a routing key belongs to: the partitions of a super stream, or the streams of a consistent-hash exchange.

The broker tells the streams of both over the stream protocol, but not the ring of an exchange. So `of_exchange` asks where the
broker routes some keys, finds a ring that explains the answers, and asks about the keys that other rings would route elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from rabbit_chx.errors import InvalidValue, StreamUnavailable
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.partitioning import SuperStream
from rabbit_chx.mirror.releases import Release
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.permissions import Access, routing, routing_by_exchange

_KEYS_PER_BUCKET: Final = 8
"""A bucket that no key belongs to is unknown: with so many keys, most rings have none."""
_MOST_KEYS: Final = 4_096
_MOST_PROBES: Final = 256
"""How many keys are asked about to see whether the ring is still the same."""
_MOST_TRIED: Final = 65_536
"""How many keys are tried to find those that tell a ring from others."""


@dataclass(frozen=True)
class Partitions:
    """The streams, and the mirror that selects one of them by the routing key."""

    streams: tuple[str, ...]
    mirror: SuperStream | ConsistentHashExchange
    access: Access
    """Explains a refusal to list them."""
    probes: tuple[str, ...] = ()
    """The keys that tell the ring from others."""

    def of(self, keys: Sequence[str]) -> list[str]:
        """Return the stream of each routing key."""
        streams = self.streams
        return [streams[index] for index in self.mirror.route_many(keys).tolist()]

    def holds(self, connection: StreamConnection, name: str) -> bool:
        """Whether the broker still has these streams, and routes as before."""
        if set(connection.partitions(name, access=self.access)) != set(self.streams):
            return False
        keys = random.sample(self.probes, min(len(self.probes), _MOST_PROBES))
        return [connection.route(name, key, access=self.access) for key in keys] == [
            [stream] for stream in self.of(keys)
        ]


def of_super_stream(connection: StreamConnection, name: str, *, named: bool) -> Partitions:
    """Return the partitions of a super stream, in their order, for a publisher with or without a name."""
    access = routing(name, named=named)
    mirror = SuperStream(connection.partitions(name, access=access))
    return Partitions(mirror.partitions, mirror, access)


def of_exchange(connection: StreamConnection, name: str, *, named: bool) -> Partitions:
    """Return the streams of a consistent-hash exchange that hashes the routing key, and its ring, for a publisher with or without a name.

    Raises:
        InvalidValue: the broker routes in another way, or to queues that are not streams.
        StreamUnavailable: the exchange does not exist, has no stream, or the user lacks a permission.
    """
    access = routing_by_exchange(name, named=named)
    streams = connection.partitions(name, access=access)
    if not streams:
        raise StreamUnavailable(f"no stream is bound to exchange {name!r}", "no such stream", name)
    owners: dict[str, str] = {}

    def ask(keys: Iterable[str]) -> None:
        for key in keys:
            if key not in owners:
                owners[key] = _owner(connection, name, key, access)

    count = 2 * _KEYS_PER_BUCKET * len(streams)
    most = max(_MOST_KEYS, 4 * count)
    while True:
        ask(map(str, range(count)))
        largest = count // _KEYS_PER_BUCKET
        for size in range(len(streams), largest + 1) if set(owners.values()) == set(streams) else ():
            if weights := _weights(owners, size, streams):
                mirror = ConsistentHashExchange(weights, release=connection.release)
                probes = _probes(mirror)
                found = Partitions(tuple(map(str, mirror.destinations)), mirror, access, tuple(probes))
                ask(probes)
                if found.of(probes) == [owners[key] for key in probes]:
                    return found
        if count == most:
            got = f"routes that no ring of at most {largest} buckets explains, if it hashes the routing key"
            raise _not_by_key(name, got)
        count = min(4 * count, most)


def _probes(mirror: ConsistentHashExchange) -> list[str]:
    """Return keys that a ring with other weights, or in another order, would route to other streams.

    They are a key for each bucket, and for each stream, keys that it would lose if the ring were larger, and would get if it
    were smaller.
    """
    owners = [str(each) for each in mirror.ring.bucket_map]
    size = len(owners)
    keys = [str(number) for number in range(min(64 * size * size, _MOST_TRIED))]
    buckets = (_buckets(keys, each) for each in (max(size - 1, 1), size, size + 1))
    found: dict[Hashable, str] = {}
    for key, smaller, now, larger in zip(keys, *buckets, strict=True):
        found.setdefault(now, key)
        if smaller != now:
            found.setdefault(("gets", owners[smaller]), key)
        if larger != now:
            found.setdefault(("loses", owners[now]), key)
    return [*found.values()]


def _buckets(keys: Sequence[str], size: int) -> list[int]:
    found: list[int] = ConsistentHashExchange(map(str, range(size))).route_many(keys).tolist()
    return found


def _owner(connection: StreamConnection, name: str, key: str, access: Access) -> str:
    """Return the stream to which the broker routes a key."""
    try:
        found = connection.route(name, key, access=access)
    except StreamUnavailable as error:
        if Release._of_broker(connection.release)._lists_stream_commands or error.problem != "lost":
            raise
        hint = "RabbitMQ 3.10 does if the exchange hashes a header or a property"
        raise StreamUnavailable(f"{error}, which {hint}", error.problem, name) from None
    if len(found) != 1:
        what = "several streams for one key" if found else "keys that reach no stream"
        raise _not_by_key(name, what)
    return found[0]


def _weights(owners: Mapping[str, str], size: int, streams: Sequence[str]) -> dict[str, int] | None:
    """Return the weight of each stream in the order of the ring, if a ring of this size explains where the keys belong."""
    pins: dict[int, str] = {}
    for bucket, owner in zip(_buckets([*owners], size), owners.values(), strict=True):
        if pins.setdefault(bucket, owner) != owner:
            return None
    runs = [(owner, len(list(buckets))) for owner, buckets in groupby(pins[each] for each in sorted(pins))]
    weights = dict(runs)
    return weights if len(pins) == size and len(weights) == len(runs) == len(streams) else None


def key_texts(keys: Iterable[str | bytes | None]) -> list[str]:
    """Return routing keys as text, which select streams."""
    return [_text(key, row) for row, key in enumerate(keys)]


def _text(key: str | bytes | None, row: int) -> str:
    if key is None:
        raise InvalidValue(f"routing key in row {row}", None, "text, which selects the stream")
    try:
        return key if isinstance(key, str) else bytes(key).decode()
    except UnicodeDecodeError:
        raise InvalidValue(f"routing key in row {row}", key, "UTF-8") from None


def _not_by_key(name: str, got: Any) -> InvalidValue:
    return InvalidValue(
        f"exchange {name!r} of StreamPublisher",
        got,
        "a consistent-hash exchange that hashes the routing key, bound to streams only",
        "For a super stream, pass super_stream",
    )
