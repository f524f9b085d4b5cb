"""How long a client keeps trying: one type for every client, in which each field has one meaning."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields
from typing import ClassVar, Final

from rabbit_chx.base.limits import LONGEST, check_seconds
from rabbit_chx.errors import InvalidValue

CONNECT: Final = 10.0
"""Seconds until a connection is open, by default."""
HEARTBEAT: Final = 10
"""Seconds between the heartbeats of a client with a thread of its own, by default: the broker and the client notice a dead
connection within about 30 seconds."""
HEARTBEAT_OF_CALLER: Final = 60
"""The same where heartbeats are sent only while the caller uses the client, who may be busy for two of these intervals."""
_LEAST_SHARE: Final = 1.0
"""Seconds for each address, even where earlier ones took the time of all."""


@dataclass(frozen=True, repr=False)
class Timeouts:
    """How long a client keeps trying, in seconds. The signature of a client shows the fields that it honours; it refuses others."""

    connect: float = CONNECT
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
    _honoured: ClassVar[tuple[str, ...]] = ("connect", "reconnect", "retry", "confirm", "blocked", "close")

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) not in {int, float} or not 0 < value < math.inf:
                raise InvalidValue(f"{field.name} timeout", value, "a number of seconds greater than 0")
            object.__setattr__(self, field.name, min(value, LONGEST))

    def __repr__(self) -> str:
        return f"Timeouts({', '.join(f'{name}={getattr(self, name)!r}' for name in self._honoured)})"

    def _honoured_by(self, client: str, defaults: Timeouts) -> None:
        """Raise InvalidValue if a field differs from its default, and the client's `defaults_of` do not name it."""
        names = defaults._honoured
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in names and value != field.default:
                expected = f"none, because {client} only has {', '.join(names)}"
                raise InvalidValue(f"{field.name} timeout", value, expected)


def defaults_of(*honoured: str) -> Timeouts:
    """The defaults of a client that honours only these fields, so that its signature shows no others."""
    defaults = Timeouts()
    object.__setattr__(defaults, "_honoured", honoured)
    return defaults


DEFAULTS: Final = Timeouts()


def deadline_of(timeout: float | None) -> float | None:
    """When a call that begins now gives up, on the monotonic clock; None: never."""
    return None if timeout is None else time.monotonic() + check_seconds("timeout", timeout)


def share_of(left: float, addresses: int, most: float) -> float:
    """The seconds for the next of several addresses, which share the time that is left."""
    return min(max(left / addresses, _LEAST_SHARE), most)
