"""The other exchanges that spread messages: modulus hash, super streams and random exchanges.

Each has the methods of the consistent-hash exchange: ``route`` and, where the route is determined, ``route_many``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from rabbit_chx.errors import InvalidValue, MissingDependency, Unpredictable, Unroutable
from rabbit_chx.mirror.hashing import MAX_SHORTSTR, as_column, python_values, shortstr
from rabbit_chx.mirror.kernel.phash2 import PHASH2_BITS, phash2
from rabbit_chx.mirror.releases import NEWEST, Release, Store
from rabbit_chx.mirror.ring import Destination, as_destinations, check_destination, destination_sort_key, each

if TYPE_CHECKING:
    from numpy.typing import NDArray

HASHES: Final = 1 << PHASH2_BITS
"""The number of values of phash2."""
_NO_BINDING: Final = "the exchange has no binding; the broker returns mandatory messages and drops the others"


class ModulusHashExchange:
    """An ``x-modulus-hash`` exchange: ``phash2`` of the list of routing keys, modulo the bindings.

    >>> ModulusHashExchange(["q0", "q1", "q2"]).route("customer-42")
    'q2'

    Bindings are destinations, or pairs of a destination and its binding key. A destination bound under two keys
    counts twice. The order of the bindings does not matter: the broker sorts destinations from 4.3 on, and
    earlier uses the order of its Mnesia table. An exchange without bindings routes nothing.
    """

    def __init__(
        self,
        bindings: Iterable[Destination | tuple[Destination, str]],
        *,
        release: str | Release = NEWEST,
        store: str | Store | None = None,
    ) -> None:
        self.release: Release = Release.parse(release, store=store)
        of = "destinations, or of pairs of a destination and its binding key"
        pairs = [_pair(item) for item in each(bindings, "list of bindings", of)]
        if len(set(pairs)) < len(pairs):
            raise InvalidValue(
                "list of bindings",
                "one binding twice",
                "each pair of destination and binding key once",
                "The broker ignores a repeated binding; use another key to count a destination twice",
            )
        self.destinations: tuple[Destination, ...] = modulus_destinations(pairs, self.release)
        """The destinations that the indices of :meth:`route_many` refer to, one for each binding."""

    def route(
        self, routing_key: str | bytes, *, cc: Sequence[str | bytes] = (), bcc: Sequence[str | bytes] = ()
    ) -> Destination:
        """The destination of one message; its CC and BCC keys are hashed along with the routing key."""
        self._check_bound()
        keys = [routing_key, *each(cc, "cc", "keys"), *each(bcc, "bcc", "keys")]
        return modulus_destination(self.destinations, [shortstr(key, "routing key") for key in keys])

    def route_many(self, routing_keys: Any) -> NDArray[Any]:
        """The destinations of many messages without CC and BCC, as indices into :attr:`destinations`."""
        import numpy as np

        from rabbit_chx.mirror.kernel.batch import phash2_lists_column

        self._check_bound()
        hashes = phash2_lists_column(as_column(routing_keys), what="routing key", limit=MAX_SHORTSTR)
        return (hashes % np.uint32(len(self.destinations))).astype(np.int32)

    def _check_bound(self) -> None:
        if not self.destinations:
            raise Unroutable(_NO_BINDING)


def modulus_destinations(
    bindings: Iterable[tuple[Destination, str | bytes]], release: Release
) -> tuple[Destination, ...]:
    """The destination of each binding of an x-modulus-hash exchange, in the order in which the broker counts them.

    A destination counts once for each binding, even if two bindings differ only in their arguments.
    """
    if release.modulus_has_no_order:
        raise Unpredictable(
            f"RabbitMQ {release} on Khepri uses the destinations of x-modulus-hash in no defined order; use 4.3 or "
            "later, or Mnesia"
        )
    return _counted(map(_pair, bindings), release)


def modulus_destination(destinations: Sequence[Destination], keys: Sequence[bytes]) -> Destination:
    """The one of these destinations, in the order of :func:`modulus_destinations`, that a message with these keys reaches."""
    return destinations[phash2([*keys]) % len(destinations)]


def modulus_shares(
    bindings: Iterable[tuple[Destination, str]], release: str | Release = NEWEST
) -> dict[Destination, float]:
    """The exact share of all hashes that an x-modulus-hash exchange sends to each destination.

    The order of the destinations decides about fewer hashes than there are bindings, so where the broker has none, the
    shares are as exact as that.
    """
    counted = _counted(map(_pair, bindings), Release.parse(release))
    found: dict[Destination, float] = dict.fromkeys(counted, 0.0)
    for place, destination in enumerate(counted):
        found[destination] += len(range(place, HASHES, len(counted))) / HASHES
    return found


def _counted(pairs: Iterable[tuple[Destination, bytes]], release: Release) -> tuple[Destination, ...]:
    """The destination of each binding in the order in which the broker counts them."""
    if release.modulus_sorts_destinations:
        # rabbit_exchange_type_modulus_hash.erl, route/3: lists:sort(Destinations)
        ordered = sorted(pairs, key=lambda pair: destination_sort_key(pair[0]))
    else:
        # rabbit_sharding_exchange_type_modulus_hash.erl, route/2: in the order of the table rabbit_route, by key and
        # then by destination
        ordered = sorted(pairs, key=lambda pair: (pair[1], destination_sort_key(pair[0])))
    return tuple(destination for destination, _ in ordered)


def _pair(item: Any) -> tuple[Destination, bytes]:
    destination, key = item if isinstance(item, tuple) and len(item) == 2 else (item, "")
    return check_destination(destination), shortstr(key, "binding key")


class SuperStream:
    """A super stream, whose clients hash the key with murmur3 and choose the partition.

    >>> SuperStream(["invoices-0", "invoices-1", "invoices-2"]).route("hello1")
    'invoices-1'

    ``flavor="official"`` is the hash of the Java, Go, .NET and Rust clients. ``flavor="rstream"`` is the different
    hash of the Python client rstream up to 1.1.1: it sends most keys to other partitions.
    """

    # HashRoutingStrategy of the official clients
    _SEED = 104729

    def __init__(
        self, partitions: Sequence[str], *, flavor: Literal["official", "rstream"] = "official"
    ) -> None:
        if flavor not in ("official", "rstream"):
            raise InvalidValue(
                "flavor of a super stream",
                flavor,
                "official or rstream",
                "Use rstream for producers with the Python client rstream, official for all others",
            )
        names = list(each(partitions, "list of partitions", "names"))
        if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise InvalidValue(
                "list of partitions",
                names,
                "at least one name, each once",
                "`rabbitmq-streams list_super_stream_partitions` prints them in order",
            )
        self.partitions: tuple[str, ...] = tuple(names)
        self.flavor = flavor

    def route(self, key: str) -> str:
        """The partition of one message."""
        return self.partitions[self._hash(key) % len(self.partitions)]

    def route_many(self, keys: Iterable[str]) -> NDArray[Any]:
        """The partitions of many messages, as indices into ``partitions``."""
        import numpy as np

        count = len(self.partitions)
        return np.fromiter(
            (self._hash(key) % count for key in python_values(as_column(keys), "key")), np.int32
        )

    def _hash(self, key: str) -> int:
        try:
            import mmh3
        except ImportError as error:
            raise MissingDependency("super streams need mmh3: pip install mmh3") from error
        try:
            if self.flavor == "official":
                return mmh3.hash(key.encode(), self._SEED, signed=False)
            # rstream/superstream.py: 128 bits of UTF-16 with a byte order mark, as a little-endian integer
            return int.from_bytes(mmh3.hash_bytes(key.encode("utf-16"), self._SEED), "little")
        except (AttributeError, UnicodeEncodeError):
            raise InvalidValue(
                "key",
                key,
                "text without lone surrogates",
            ) from None


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The answer of a random exchange: the message lands on one of these destinations."""

    destinations: frozenset[Destination]

    def __str__(self) -> str:
        return "any of " + ", ".join(sorted(map(str, self.destinations)))


class RandomExchange:
    """An ``x-random`` or ``x-local-random`` exchange, whose route cannot be predicted."""

    def __init__(self, destinations: Iterable[Destination]) -> None:
        self.destinations: frozenset[Destination] = frozenset(
            as_destinations(destinations, "list of destinations")
        )

    def route(self, routing_key: str | bytes = "") -> AnyOf:
        """All destinations; the broker chooses one of them at random."""
        shortstr(routing_key, "routing key")
        if not self.destinations:
            raise Unroutable(_NO_BINDING)
        return AnyOf(self.destinations)
