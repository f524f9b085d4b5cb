"""Messages as they are given to a publisher to streams, checked and encoded with its defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise
from operator import call
from typing import Any, Final, NamedTuple

from rabbit_chx.base.limits import as_integer
from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.message_fields import Headers
from rabbit_chx.publishing.batch_columns import column
from rabbit_chx.publishing.encoder import BaseEncoder, in_rows
from rabbit_chx.streams.messages.encode import checked_bodies, encode_bodies, encode_message
from rabbit_chx.streams.partitions import key_texts
from rabbit_chx.streams.protocol.requests import check_sizes, max_message

HIGHEST_ID: Final = 2**64 - 1
"""The protocol has 64 bits for a publishing id, and the broker takes them as a number without a sign."""
_SECTIONS: Final = 8 << 10
"""More than the bytes of all sections of a message but its headers and its body."""


class Messages:
    """Encoded messages, which are made as they are taken."""

    __slots__ = ("_made", "_start", "_taken")

    def __init__(self, made: Iterable[bytes]) -> None:
        self._made = iter(made)
        self._start = -1
        self._taken: list[bytes] = []

    def take(self, start: int, most: int) -> list[bytes]:
        """Return the next messages, which begin at this place; once more if they were not accepted."""
        if start != self._start:
            self._start, self._taken = start, list(islice(self._made, most))
        return self._taken


class StreamColumns(NamedTuple):
    """A batch: the key of each row, publishing ids, and the encoded messages."""

    keys: Sequence[str | bytes | None]
    ids: Sequence[int] | None
    messages: Messages


class StreamEncoder(BaseEncoder):
    """Encodes messages; any thread may use it. With ``by_key``, the routing key selects the stream."""

    def __init__(self, properties: Mapping[str, Any] | None, *, by_key: bool) -> None:
        super().__init__(properties)
        self._by_key = by_key
        encode_message(b"", None, self._headers, self._properties)  # raises if one is invalid
        self.frame_max: int = 0
        """The agreed maximum size of a frame; 0 means no limit, or no connection yet."""

    @property
    def max_message_bytes(self) -> int | None:
        """The maximum size of an encoded message; None for no limit, or before the first connection."""
        return max_message(self.frame_max)

    def one(
        self,
        body: bytes | str,
        routing_key: str | bytes | None,
        headers: Headers | None,
        publishing_id: int | None,
        properties: Mapping[str, Any],
    ) -> StreamColumns:
        """Encode one message."""
        if publishing_id is not None:
            publishing_id = checked_id("publishing id", publishing_id)
        headers = self._with_defaults(headers, call)
        message = encode_message(body, routing_key, headers, {**self._properties, **properties})
        check_sizes([message], self.frame_max)
        ids = None if publishing_id is None else [publishing_id]
        return StreamColumns(self._keys([routing_key]), ids, Messages([message]))

    def many(
        self,
        bodies: Iterable[bytes | str],
        routing_keys: str | bytes | Iterable[str | bytes | None] | None,
        headers: Headers | Iterable[Headers | None] | None,
        ids: Iterable[int] | None,
        properties: Mapping[str, Any],
    ) -> StreamColumns:
        """Encode a batch given by columns."""
        rows = checked_bodies(bodies)
        keys = column(routing_keys, len(rows), "routing key")
        headers = self._with_defaults(headers, in_rows)
        messages = encode_bodies(rows, keys, None, headers, {**self._properties, **properties})
        texts = self._keys(keys if isinstance(keys, list) else [keys] * len(rows))
        numbers = None if ids is None else checked_ids(ids, len(rows))
        limit = self.max_message_bytes
        if limit is not None and (headers is not None or max(map(len, rows), default=0) + _SECTIONS > limit):
            whole = list(messages)  # which of them are too large cannot be said before they are encoded
            check_sizes(whole, self.frame_max)
            messages = iter(whole)
        return StreamColumns(texts, numbers, Messages(messages))

    def _keys(self, keys: Sequence[str | bytes | None]) -> Sequence[str | bytes | None]:
        """Return the keys as text if they select streams."""
        return key_texts(keys) if self._by_key else keys


def checked_id(what: str, given: object) -> int:
    """Return a publishing id as an integer of Python."""
    number = as_integer(given)
    if number is None or not 1 <= number <= HIGHEST_ID:
        raise InvalidValue(what, given, f"an integer from 1 to {HIGHEST_ID}")
    return number


def checked_ids(given: Iterable[int], count: int) -> Sequence[int]:
    """Return publishing ids that increase, one for each row."""
    ids: Sequence[int] = given if isinstance(given, range) else list(given)
    if len(ids) != count:
        raise InvalidValue("ids", f"{len(ids)} publishing ids", f"as many as bodies ({count})")
    if not isinstance(ids, range):
        ids = [checked_id(f"publishing id in row {row}", each) for row, each in enumerate(ids)]
    for each in (ids[0], ids[-1]) if ids else ():
        checked_id("publishing id", each)
    for before, after in pairwise(ids):
        if after <= before:
            raise InvalidValue("ids", f"{after} after {before}", "increasing publishing ids")
    return ids
