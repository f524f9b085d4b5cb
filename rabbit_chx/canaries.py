"""The headers of canaries: messages that `rabbit-chx watch --canary` sends, and that members of groups report. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rabbit_chx.replies import is_direct

CANARY: Final = "x-rabbit-chx-canary"
"""The header that distinguishes a canary from a message; its value identifies the canary."""
_QUEUE: Final = "x-rabbit-chx-canary-queue"
_DIED: Final = "x-death"
_LONGEST: Final = 100
"""The longest value to report; that of a watch is shorter."""
_LONGEST_QUEUE: Final = 255


def is_canary(headers: Mapping[str, Any] | None) -> bool:
    """Whether a message with these headers is a canary."""
    return headers is not None and CANARY in headers


def report_of(headers: Mapping[str, Any], reply_to: object, queue: str) -> dict[str, str] | None:
    """The headers of the report on a canary from this queue, or None if it must not be reported.

    Only the channel that sent a canary can get its report: otherwise every publisher could have members write to any queue.
    A dead-lettered canary says nothing about the routes of the exchange.
    """
    canary = headers[CANARY]
    known = isinstance(canary, str) and len(canary) <= _LONGEST
    return {CANARY: canary, _QUEUE: queue} if known and is_direct(reply_to) and _DIED not in headers else None


def reported(headers: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """The canary and the queue of a report."""
    canary, queue = ((headers or {}).get(name) for name in (CANARY, _QUEUE))
    if not isinstance(canary, str) or not isinstance(queue, str) or len(queue) > _LONGEST_QUEUE:
        return None
    return canary, queue
