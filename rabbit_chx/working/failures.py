"""What a handler can raise to say what becomes of its message, and the headers of parked messages. No IO."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from rabbit_chx.base.limits import check_seconds
from rabbit_chx.base.text import described
from rabbit_chx.messages.message import Message

PARKED: Final = "x-rabbit-chx-parked-"
"""The prefix of the headers that a parked message gets."""
EXCHANGE: Final = f"{PARKED}exchange"
ROUTING_KEY: Final = f"{PARKED}routing-key"
QUEUE: Final = f"{PARKED}queue"
OFFSET: Final = f"{PARKED}offset"
"""Only of messages from a stream."""
ADDED: Final = (PARKED, "x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")
"""Beginnings of the names of headers that members and the broker add. A copy leaves out those of the original."""
LEFT_OUT: Final = f"{PARKED}left-out"
"""Only of messages that could not be parked whole."""

_LONGEST: Final = 1_000
"""Characters of an error in a header, and bytes of each header of a message that could not be parked whole."""


class Reject(Exception):
    """Raised by a handler: the message is not tried again, and ``on_failure`` decides at once.

    >>> raise Reject("no such customer")  # doctest: +SKIP
    """


class RetryAfter(Exception):
    """Raised by a handler: the next attempt follows after ``seconds``, instead of the delay that ``backoff`` gives.

    The attempt counts like any other. The delay is at most 60 seconds, or ``backoff``, if longer.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds: float = check_seconds("seconds", seconds)

    def __str__(self) -> str:
        return f"the handler asked for another attempt after {self.seconds:g} s"


def shortened(origin: dict[str, Any], left_out: str) -> dict[str, Any]:
    """The headers of a message that could not be parked whole: short ones, and what was left out."""
    short = {name: _cut(value) if isinstance(value, str) else value for name, value in origin.items()}
    return {**short, LEFT_OUT: left_out}


def _cut(text: str) -> str:
    return text.encode()[:_LONGEST].decode(errors="ignore")


def origin_of(message: Message, group: str, error: BaseException) -> dict[str, Any]:
    """The headers of a parked message: where it came from, and why it was parked."""
    return {
        EXCHANGE: message.exchange,
        ROUTING_KEY: message.routing_key,
        QUEUE: message.queue,
        f"{PARKED}group": group,
        f"{PARKED}attempts": message.attempt,
        f"{PARKED}error": described(error)[:_LONGEST],
        f"{PARKED}time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
