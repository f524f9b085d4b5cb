"""What one message may hold: the numbers by which Arrow batches are checked, and Spark's own columns too.

This file imports neither PySpark nor Arrow and opens no socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rabbit_chx.publishing import max_property_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NEEDED", "OTHER_PROPERTIES", "SIZES", "TEXTS", "YEAR_10000", "Limits"]

NEEDED: Final = ("routing_key", "exchange")
"""Texts that may not be null."""
TEXTS: Final = (
    *("message_id", "correlation_id", "content_type", "content_encoding"),
    *("reply_to", "type", "app_id", "user_id"),
)
"""Texts that may."""
OTHER_PROPERTIES: Final = 2_500
"""Bytes that all properties but the headers can take: nine short strings, and the headers of the task."""
SIZES: Final[Mapping[str, int]] = {"t": 2, "I": 5, "l": 9, "T": 9}
"""Bytes of a field's tag and value, where the tag alone tells."""
YEAR_10000: Final = 253_402_300_800
"""In seconds since 1970: Python has no later moment, and so no client in it could read one."""

_BODY: Final = 16 << 20


@dataclass(frozen=True)
class Limits:
    """What the broker of a connection takes."""

    body: int
    properties: int

    @classmethod
    def unasked(cls, max_message_bytes: int | None) -> Limits:
        """Those of a broker that nobody asks: RabbitMQ 4's own, since older ones take more."""
        return cls(max_message_bytes or _BODY, max_property_bytes())

    @property
    def headers(self) -> int:
        """How long the headers of a message may be."""
        return self.properties - OTHER_PROPERTIES
