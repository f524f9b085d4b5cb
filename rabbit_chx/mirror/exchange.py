"""From a message to its destination: the hashed value, its hash, the bucket, and the bucket's destination.

A message is given by its parts. Only the functions of columns import NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from rabbit_chx.errors import BrokerWouldFail, InvalidValue, Unroutable
from rabbit_chx.mirror.fields import Client, check_client
from rabbit_chx.mirror.hashing import HashHeader, HashOn, as_column, hash_of, hash_on, python_values
from rabbit_chx.mirror.kernel.jump import SEED_BITS, jump_consistent_hash
from rabbit_chx.mirror.kernel.terms import Term, format_term
from rabbit_chx.mirror.releases import NEWEST, Release, Store
from rabbit_chx.mirror.ring import Bindings, Destination, Ring

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SEED_MASK: Final = (1 << SEED_BITS) - 1
NO_BUCKET: Final = "the exchange has no bucket; the broker returns mandatory messages and drops the others"
"""Why a message is unroutable."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """How one message is routed, from the hashed value to the destination."""

    what: str
    """The hashed part of the message."""
    term: Term
    """The Erlang term that the broker hashes."""
    hash: int | None
    """``phash2(term)``, or the term itself if it is an integer; None with a single bucket."""
    bucket: int
    buckets: int
    destination: Destination

    @property
    def seed(self) -> int | None:
        """The 21 bits of the hash that choose the bucket."""
        return None if self.hash is None else self.hash & _SEED_MASK

    def __str__(self) -> str:
        term = format_term(self.term)
        if self.hash is None:
            hashed = "none (a single bucket needs no hash)"
        else:
            how = "an integer is its own hash" if isinstance(self.term, int) else f"erlang:phash2({term})"
            hashed = f"{self.hash} ({how}), lowest 21 bits: {self.seed}"
        return (
            f"hashed:      {term} ({self.what})\n"
            f"hash:        {hashed}\n"
            f"bucket:      {self.bucket} of {self.buckets}\n"
            f"destination: {self.destination}"
        )


class _Missing:
    """A missing argument, where None would be a value."""

    def __repr__(self) -> str:
        return "nothing"


_MISSING: Final[Any] = _Missing()


class ConsistentHashExchange:
    """An ``x-consistent-hash`` exchange, which answers where the broker sends a message.

    >>> exchange = ConsistentHashExchange({"q0": 1, "q1": 1, "q2": 2}, release="4.3.6")
    >>> exchange.route("customer-42")
    'q0'

    Bindings are given in the order of the bind commands, which determines the routes, or as a :class:`Ring`.
    The exchange hashes the routing key, or the header or property named by its arguments ``hash-header`` and
    ``hash-property``.
    """

    def __init__(
        self,
        bindings: Bindings | Ring,
        *,
        release: str | Release | None = None,
        store: str | Store | None = None,
        hash_header: str | None = None,
        hash_property: str | None = None,
    ) -> None:
        if isinstance(bindings, Ring):
            if release is not None or store is not None:
                raise InvalidValue(
                    "release",
                    store if release is None else release,
                    "no release together with a Ring",
                    "Pass it to Ring.of() or Ring.read()",
                )
            self.ring: Ring = bindings
        else:
            self.ring = Ring.of(bindings, release=NEWEST if release is None else release, store=store)
            if not self.ring.bindings:
                raise InvalidValue(
                    "list of queues",
                    "no queue",
                    "at least one queue",
                    "Pass Ring() for an exchange without bindings",
                )
        self._hash_on: HashOn = hash_on(hash_header, hash_property)
        self.hash_header = hash_header
        self.hash_property = hash_property

    def __repr__(self) -> str:
        order = dict(self.ring.runs) if self.ring.runs is not None else "order unknown"
        hashed = f", hash_header={self.hash_header!r}" if self.hash_header else ""
        hashed += f", hash_property={self.hash_property!r}" if self.hash_property else ""
        return f"ConsistentHashExchange({order}, release={str(self.release)!r}{hashed})"

    def with_ring(self, ring: Ring) -> ConsistentHashExchange:
        """The same exchange with another ring: after a bind, an unbind, a restart."""
        return ConsistentHashExchange(ring, hash_header=self.hash_header, hash_property=self.hash_property)

    @property
    def release(self) -> Release:
        """The broker release that is mirrored."""
        return self.ring.release

    @property
    def destinations(self) -> tuple[Destination, ...]:
        """The destinations that the indices of :meth:`route_many` refer to."""
        return self.ring.destinations

    @overload
    def route(
        self,
        routing_key: str | bytes = ...,
        *,
        headers: Mapping[str, object] | None = ...,
        message_id: str | bytes | None = ...,
        correlation_id: str | bytes | None = ...,
        timestamp: int | datetime | None = ...,
        client: Client | None = ...,
        explain: Literal[False] = ...,
    ) -> Destination: ...

    @overload
    def route(
        self,
        routing_key: str | bytes = ...,
        *,
        headers: Mapping[str, object] | None = ...,
        message_id: str | bytes | None = ...,
        correlation_id: str | bytes | None = ...,
        timestamp: int | datetime | None = ...,
        client: Client | None = ...,
        explain: Literal[True],
    ) -> Explanation: ...

    def route(
        self,
        routing_key: Any = _MISSING,
        *,
        headers: Any = _MISSING,
        message_id: Any = _MISSING,
        correlation_id: Any = _MISSING,
        timestamp: Any = _MISSING,
        client: Client | None = None,
        explain: bool = False,
    ) -> Destination | Explanation:
        """The destination of one message, given by the part that is hashed.

        ``headers={}`` is a message without the header, and ``message_id=None`` one without the property; the
        broker sends all such messages to one destination. ``client`` names the client that sends the header,
        where clients encode its value differently. ``explain=True`` returns an :class:`Explanation`.
        """
        given = {
            "routing_key": routing_key,
            "headers": headers,
            "message_id": message_id,
            "correlation_id": correlation_id,
            "timestamp": timestamp,
        }
        self._check_parts({name: value for name, value in given.items() if value is not _MISSING})
        explanation = self._explain(given[self._hash_on.part], client=client)
        return explanation if explain else explanation.destination

    def _check_parts(self, given: Mapping[str, object]) -> None:
        """Require the hashed part, and refuse others that the caller may believe to be hashed."""
        part = self._hash_on.part
        if part not in given:
            absent = {"routing_key": "''", "headers": "{}"}.get(part, "None")
            raise InvalidValue(
                "message",
                f"no {part}",
                f"{part}=..., since the exchange hashes {self._hash_on}",
                f"Pass {part}={absent} for a message without it",
            )
        for name, value in given.items():
            if name not in {part, "routing_key"}:
                raise InvalidValue(
                    f"{name} of the message",
                    value,
                    f"nothing, since the exchange hashes {self._hash_on}",
                    "Omit it, or create the exchange with hash_header or hash_property",
                )

    # rabbit_exchange_type_consistent_hash.erl, route/3.
    def _explain(self, value: Any, *, client: Client | None = None) -> Explanation:
        """How a message with this value is routed.

        ``value`` is the routing key, the mapping of headers, or the property, according to ``_hash_on.part``.
        """
        check_client(client)
        bucket_map = self._bucket_map
        if not bucket_map:
            raise Unroutable(NO_BUCKET)
        what, term = self._hash_on.term(value, self.release, client)
        hash_ = None if len(bucket_map) == 1 else hash_of(term, self.release)
        bucket = 0 if hash_ is None else jump_consistent_hash(hash_, len(bucket_map))
        return Explanation(what, term, hash_, bucket, len(bucket_map), bucket_map[bucket])

    @cached_property
    def _bucket_map(self) -> tuple[Destination, ...]:
        return self.ring.bucket_map

    def route_many(self, values: Any, *, client: Client | None = None) -> NDArray[Any]:
        """The destinations of many messages, as indices into :attr:`destinations` (an int32 array).

        ``values`` is a list, a NumPy array or an Arrow column of routing keys, header values or property values.
        Arrow columns are not copied.
        """
        return self._owners.take(self._buckets(values, client), mode="wrap")

    def bucket_many(self, values: Any, *, client: Client | None = None) -> NDArray[Any]:
        """The buckets of many messages (an int32 array); see :meth:`route_many`."""
        return self._buckets(values, client).astype("int32", copy=False)

    def _buckets(self, values: Any, client: Client | None) -> NDArray[Any]:
        """The buckets in the narrowest integer type."""
        import numpy as np

        from rabbit_chx.mirror.kernel.table import bucket_table

        check_client(client)
        if not self._bucket_map:
            raise Unroutable(NO_BUCKET)
        column = as_column(values)
        try:
            hashes = self._hash_on.hashes(column, self.release, client)
        except BrokerWouldFail:
            if len(self._bucket_map) > 1 or not isinstance(self._hash_on, HashHeader):
                raise
            # Those behind the empty array or table must be valid, too.
            for value in python_values(column, self._hash_on.name):
                self._explain({self._hash_on.header: value}, client=client)
        # A single bucket needs no hash; invalid values were refused above.
        if len(self._bucket_map) == 1:
            return np.zeros(len(column), np.int32)
        return bucket_table(len(self._bucket_map))[hashes]

    @cached_property
    def _owners(self) -> NDArray[Any]:
        """For each bucket, the index of its destination in :attr:`destinations` (an int32 array)."""
        import numpy as np

        index = {destination: i for i, destination in enumerate(self.destinations)}
        return np.array([index[destination] for destination in self._bucket_map], np.int32)
