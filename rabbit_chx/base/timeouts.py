"""How long a client keeps trying: one type for every client, in which each field has one meaning."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields
from typing import Final

from rabbit_chx.base.limits import check_seconds
from rabbit_chx.errors import InvalidValue

HEARTBEAT: Final = 10
"""Seconds between the heartbeats of a client with a thread of its own, by default: the broker and the client notice a dead
connection within about 30 seconds."""
HEARTBEAT_OF_CALLER: Final = 60
"""The same where heartbeats are sent only while the caller uses the client, who may be busy for two of these intervals."""
_LEAST_SHARE: Final = 1.0
"""Seconds for each address, even where earlier ones took the time of all."""


@dataclass(frozen=True)
class Timeouts:
    """How long a client keeps trying, in seconds. A client refuses a field that it cannot honour."""

    connect: float = 10.0
    """Until the first connection is open, for all addresses together; also the limit of each attempt, and of an answer."""
    reconnect: float = 120.0
    """Until a lost connection is replaced by one that works."""
    retry: float = 10.0
    """For sending a returned or rejected message again."""
    confirm: float = 120.0
    """While the broker confirms nothing of what it received."""
    blocked: float = 120.0
    """While the broker blocks publishing (a memory or disk alarm)."""
    close: float = 30.0
    """At the end, for the outcome of what was accepted: messages to be confirmed, handlers to return."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) not in {int, float} or not 0 < value < math.inf:
                raise InvalidValue(f"{field.name} timeout", value, "a number of seconds greater than 0")

    def _honoured_by(self, client: str, *names: str) -> None:
        """Raise InvalidValue if a field differs from its default, and the client knows only the named fields."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in names and value != field.default:
                expected = f"none, because {client} only has {', '.join(names)}"
                raise InvalidValue(f"{field.name} timeout", value, expected)


DEFAULTS = Timeouts()


def deadline_of(timeout: float | None) -> float | None:
    """When a call that begins now gives up, on the monotonic clock; None: never."""
    return None if timeout is None else time.monotonic() + check_seconds("timeout", timeout)


def share_of(left: float, addresses: int, most: float) -> float:
    """The seconds for the next of several addresses, which share the time that is left."""
    return min(max(left / addresses, _LEAST_SHARE), most)
