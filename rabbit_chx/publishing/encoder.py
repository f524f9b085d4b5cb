"""Messages as they are given to a publisher, checked and encoded with its defaults and its limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import call
from typing import Any, Final, TypeAlias

from rabbit_chx.base.limits import check_integer
from rabbit_chx.messages.message_fields import Headers
from rabbit_chx.messages.traces import context_headers
from rabbit_chx.mirror.hashing import shortstr
from rabbit_chx.publishing.batch_columns import (
    body_column,
    checked_body,
    column,
    key_column,
    property_column,
    values,
)
from rabbit_chx.publishing.properties import DEFAULT_FRAME_MAX, encode_properties, max_property_bytes

_MAX_MESSAGE: Final = 16 << 20
_MAX_MESSAGE_BEFORE_4: Final = 128 << 20

HeaderColumn: TypeAlias = Headers | Iterable[Headers | None] | None
"""The headers of all rows of a batch, or a column of them."""
Encoded: TypeAlias = tuple[bytes, bytes, bytes, bytes]
"""Exchange, routing key, properties and body, as they are sent."""
Columns: TypeAlias = tuple[list[bytes], ...]
"""The same for each row of a batch."""


class BaseEncoder:
    """What the encoders of both protocols add to messages: properties, headers, and the context of a trace."""

    def __init__(self, properties: Mapping[str, Any] | None) -> None:
        self._properties = dict(properties or {})
        self._headers = self._properties.pop("headers", None)
        self._context: Callable[[], dict[str, str]] | None = context_headers()

    def _with_defaults(self, headers: Any, apply: Callable[..., Any]) -> Any:
        """Add the headers of all messages and the context of a trace, as one table or as that of each row."""
        if self._headers is not None:
            headers = apply(_merged, self._headers, headers)
        if self._context is not None and (context := self._context()):
            headers = apply(_in_context, context, headers)
        return headers


class Encoder(BaseEncoder):
    """Encodes messages; any thread may use it."""

    def __init__(
        self, exchange: str, properties: Mapping[str, Any] | None, max_message_bytes: int | None
    ) -> None:
        super().__init__(properties)
        self._frame_max = DEFAULT_FRAME_MAX
        self._exchange = shortstr(exchange, "exchange")
        self._plain, self._plain_fits = self._encode({}, self._headers), True
        self._max_message = max_message_bytes
        if max_message_bytes is not None:
            check_integer("max_message_bytes", max_message_bytes, 1, 2**63 - 1)

    @property
    def max_message_bytes(self) -> int:
        """The largest body that is accepted; before the first connection the largest that any release accepts."""
        return self._max_message or _MAX_MESSAGE_BEFORE_4

    @property
    def max_property_bytes(self) -> int:
        """How long the properties of a message may be, headers included."""
        return max_property_bytes(self._frame_max)

    def learn_limits(self, server_version: str, frame_max: int) -> None:
        """Take over the limits of a connection."""
        self._frame_max = frame_max
        # If they do not fit, they are encoded again for each message, which raises.
        self._plain_fits = len(self._plain) <= self.max_property_bytes
        if self._max_message is None:
            before_4 = server_version.partition(".")[0] in {"", "3"}
            self._max_message = _MAX_MESSAGE_BEFORE_4 if before_4 else _MAX_MESSAGE

    def one(
        self,
        body: bytes | str,
        routing_key: str | bytes,
        exchange: str | None,
        headers: Mapping[str, Any] | None,
        properties: Mapping[str, Any],
    ) -> Encoded:
        """Encode one message."""
        # In the order of `many`: of several invalid values, both name the same one.
        checked, key = checked_body(body, self.max_message_bytes), shortstr(routing_key, "routing key")
        target = self._exchange if exchange is None else shortstr(exchange, "exchange")
        headers = self._with_defaults(headers, call)
        plain = self._plain_fits and not properties and (not headers or headers is self._headers)
        return target, key, self._plain if plain else self._encode(properties, headers), checked

    def many(
        self,
        bodies: Iterable[bytes | str],
        routing_keys: str | bytes | Iterable[str | bytes],
        exchange: str | Iterable[str | bytes] | None,
        headers: HeaderColumn,
        properties: Mapping[str, Any],
    ) -> Columns:
        """Encode a batch given by columns."""
        checked = body_column(bodies, self.max_message_bytes)
        count = len(checked)
        keys = key_column(routing_keys, count)
        targets = key_column(self._exchange if exchange is None else exchange, count, "exchange")
        headers = self._with_defaults(headers, in_rows)
        return targets, keys, self._encode_column(count, headers, properties), checked

    def _encode(self, properties: Mapping[str, Any], headers: Mapping[str, Any] | None) -> bytes:
        return encode_properties(
            {**self._properties, **properties, "headers": headers}, frame_max=self._frame_max
        )

    def _encode_column(self, count: int, headers: HeaderColumn, properties: Mapping[str, Any]) -> list[bytes]:
        """Encode the properties of each row; only once if all rows have the same."""
        columns = {name: column(value, count, name) for name, value in properties.items()}
        if headers is not None:
            is_one = hasattr(headers, "items")
            columns["headers"] = headers if is_one else column(list(values(headers)), count, "headers")
        varying = {name: found for name, found in columns.items() if isinstance(found, list)}
        constant = self._properties | {name: columns[name] for name in columns.keys() - varying.keys()}
        return property_column(constant, varying, count, frame_max=self._frame_max)


def in_rows(merge: Callable[[Any, Any], Any], table: Any, headers: Any) -> Any:
    """Merge a table with the headers of all rows, or with those of each row."""
    if headers is None or hasattr(headers, "items"):
        return merge(table, headers)
    return [merge(table, own) for own in values(headers)]


def _in_context(context: Mapping[str, str], headers: Any) -> Any:
    """Add the context of a trace to headers without one: a part of it would change the meaning of theirs."""
    has_own = hasattr(headers, "keys") and not context.keys().isdisjoint(headers.keys())
    return headers if has_own else _merged(context, headers)


def _merged(headers: Any, more: Any) -> Any:
    """Merge two mappings of headers; return anything else unchanged, to be refused by the encoder."""
    if more is None:
        return headers
    return {**headers, **more} if hasattr(more, "keys") else more
