"""From a message to its destination: what is hashed, the hash, the bucket, and who owns the bucket.

Pure: a message is given by its parts, and no socket is opened. NumPy is brought in by the bulk path alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from rabbit_chx.errors import BrokerWouldFail, InvalidValue, Unroutable
from rabbit_chx.hashing import HashOn, as_column, check_client, hash_of, hash_on
from rabbit_chx.kernel.jump import jump_consistent_hash
from rabbit_chx.kernel.terms import Term, format_term
from rabbit_chx.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from numpy.typing import NDArray

    from rabbit_chx.fields import Client
    from rabbit_chx.releases import Release, Store
    from rabbit_chx.ring import Bindings, Destination

__all__ = ["ConsistentHashExchange", "Explanation"]

_SEED_MASK: Final = (1 << 21) - 1
_NO_BUCKET: Final = "the exchange has no bucket: the broker returns a mandatory message and drops any other"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The evidence behind one answer, from the message to the destination."""

    what: str
    """What is hashed, and why."""
    term: Term
    """The Erlang term that the broker hashes."""
    hash: int | None
    """``phash2(term)``, or the term itself where it is an integer; None with a single bucket."""
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
            hashed = "none (with a single bucket nothing is hashed)"
        else:
            how = "an integer is used as it is" if isinstance(self.term, int) else f"erlang:phash2({term})"
            hashed = f"{self.hash} ({how}), of which the lowest 21 bits count: {self.seed}"
        return (
            f"hashed:      {term} ({self.what})\n"
            f"hash:        {hashed}\n"
            f"bucket:      {self.bucket} of {self.buckets}\n"
            f"destination: {self.destination}"
        )


class _Missing:
    """An argument that was not given, where None would be a value."""

    def __repr__(self) -> str:
        return "nothing"


_MISSING: Final[Any] = _Missing()


class ConsistentHashExchange:
    """An ``x-consistent-hash`` exchange: answers where the broker would send a message.

    >>> exchange = ConsistentHashExchange({"q0": 1, "q1": 1, "q2": 2}, release="4.3.6")
    >>> exchange.route("customer-42")
    'q0'

    The order of the bindings is the order of the bind commands: it decides. A :class:`Ring` can be given
    in their place. What is hashed is the routing key, a header or a property, as the exchange's
    arguments ``hash-header`` and ``hash-property`` say.
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
                    "the ring's own",
                    "Leave it out, or give it to Ring.of() or Ring.read()",
                )
            self.ring: Ring = bindings
        else:
            self.ring = Ring.of(bindings, release="4.3" if release is None else release, store=store)
            if not self.ring.bindings:
                raise InvalidValue(
                    "list of queues",
                    "no queue",
                    "at least one queue",
                    "Ring() is the ring of an exchange without bindings",
                )
        self.hash_on: HashOn = hash_on(hash_header, hash_property)
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
        """What the indices of :meth:`route_many` stand for."""
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
        """The destination of one message, given by the parts of it that are hashed.

        ``headers={}`` is a message without the header, and ``message_id=None`` one without the property:
        the broker routes them too, all to one place. ``client`` names the client that sends the header,
        where that makes a difference. With ``explain=True`` the evidence is returned.
        """
        given = {
            "routing_key": routing_key,
            "headers": headers,
            "message_id": message_id,
            "correlation_id": correlation_id,
            "timestamp": timestamp,
        }
        self._check_parts({name: value for name, value in given.items() if value is not _MISSING})
        explanation = self.explain(given[self.hash_on.part], client=client)
        return explanation if explain else explanation.destination

    def _check_parts(self, given: Mapping[str, object]) -> None:
        """What is hashed must be there, and nothing that a caller could wrongly take for hashed."""
        part = self.hash_on.part
        if part not in given:
            absent = {"routing_key": "''", "headers": "{}"}.get(part, "None")
            raise InvalidValue(
                f"message, of which the exchange hashes {self.hash_on},",
                f"no {part}",
                f"{part}=...",
                f"{part}={absent} stands for a message without it",
            )
        for name, value in given.items():
            if name not in {part, "routing_key"}:
                raise InvalidValue(
                    f"{name} of the message",
                    value,
                    f"nothing, since the exchange hashes {self.hash_on}",
                    "Leave it out, or give the exchange its hash_header or hash_property",
                )

    # rabbit_exchange_type_consistent_hash.erl, route/3.
    def explain(self, value: Any, *, client: Client | None = None) -> Explanation:
        """The answer and its evidence, for the one part of a message that this exchange hashes.

        ``value`` is the routing key, the mapping of headers, or the property, as ``hash_on.part`` says.
        """
        check_client(client)
        bucket_map = self._bucket_map
        if not bucket_map:
            raise Unroutable(_NO_BUCKET)
        what, term = self.hash_on.term(value, self.release, client)
        hash_ = None if len(bucket_map) == 1 else hash_of(term, self.release)
        bucket = 0 if hash_ is None else jump_consistent_hash(hash_, len(bucket_map))
        return Explanation(what, term, hash_, bucket, len(bucket_map), bucket_map[bucket])

    @cached_property
    def _bucket_map(self) -> tuple[Destination, ...]:
        return self.ring.bucket_map

    def route_many(self, values: Any, *, client: Client | None = None) -> NDArray[Any]:
        """The destinations of many messages, as indices into :attr:`destinations` (an int32 array).

        ``values`` is a column of what is hashed (routing keys, header values or property values): a
        list, a NumPy array, or an Arrow column, which is read where it lies.
        """
        return self.owners.take(self._buckets(values, client), mode="wrap")

    def bucket_many(self, values: Any, *, client: Client | None = None) -> NDArray[Any]:
        """The buckets of many messages (an int32 array); see :meth:`route_many`."""
        return self._buckets(values, client).astype("int32", copy=False)

    def _buckets(self, values: Any, client: Client | None) -> NDArray[Any]:
        """In the narrowest type that holds them."""
        import numpy as np

        from rabbit_chx.kernel.table import bucket_table

        check_client(client)
        if not self._bucket_map:
            raise Unroutable(_NO_BUCKET)
        column = as_column(values)
        try:
            hashes = self.hash_on.hashes(column, self.release, client)
        except BrokerWouldFail:
            if len(self._bucket_map) > 1 or not self.release.empty_list_fails:
                raise
        if len(self._bucket_map) == 1:
            return np.zeros(len(column), np.int32)  # nothing is hashed; what cannot be sent was refused above
        return bucket_table(len(self._bucket_map))[hashes]

    @cached_property
    def owners(self) -> NDArray[Any]:
        """For every bucket the index of its destination in :attr:`destinations` (an int32 array)."""
        import numpy as np

        index = {destination: i for i, destination in enumerate(self.destinations)}
        return np.array([index[destination] for destination in self._bucket_map], np.int32)
