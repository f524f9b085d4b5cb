"""Check that a checkpoint belongs to the source of the query. Values in, values out.

A read of streams saves ``{"events": {"offset": 20, ...}}``, and a read of a queue ``{"queue": "orders.0", "session": ..., "rows": 120}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rabbit_chx import InvalidValue
from rabbit_chx.errors import Unquoted


def check_of_streams(saved: Mapping[str, Any]) -> None:
    """Raise unless a read of streams has saved these offsets."""
    if not is_of_streams(saved):
        raise _another_source(saved, "streams")


def check_of_queue(saved: Mapping[str, Any], queue: str) -> None:
    """Raise unless a read of this queue has saved this offset."""
    if _queue_of(saved) != queue:
        raise _another_source(saved, f"queue {queue!r}")


def is_of_streams(saved: Mapping[str, Any]) -> bool:
    """Whether a read of streams has saved these offsets."""
    return all(isinstance(one, Mapping) and "offset" in one for one in saved.values())


def _queue_of(saved: Mapping[str, Any]) -> str | None:
    queue = saved.get("queue")
    return queue if isinstance(queue, str) else None


def _another_source(saved: Mapping[str, Any], expected: str) -> InvalidValue:
    queue = _queue_of(saved)
    owner = f"queue {queue!r}" if queue is not None else f"streams {sorted(saved)}"
    if queue is None and not is_of_streams(saved):
        owner = f"another format: {dict(saved)}"
    hint = "A query with another source needs another checkpointLocation"
    return InvalidValue(
        "checkpoint of the query", Unquoted(f"offsets of {owner}"), f"offsets of {expected}", hint
    )
