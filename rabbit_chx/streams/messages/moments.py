"""Times as the stream protocol has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from rabbit_chx.errors import InvalidValue

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(time: datetime | int) -> int:
    """Return milliseconds since 1970."""
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise InvalidValue("time", time, "an aware datetime", "Add a time zone, such as tzinfo=datetime.UTC")
    return (time - _EPOCH) // timedelta(milliseconds=1)
