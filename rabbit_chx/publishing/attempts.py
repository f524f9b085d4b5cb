"""Which broker is tried next, for how long, and when to give up.

Time counts from the last connection that did its work, not from the last one that opened: a network that
lets connections open and then breaks every one is as good as none. This file knows no thread and no socket;
the clock is the caller's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rabbit_chx.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pika

    from rabbit_chx.broker.reasons import Reason

__all__ = ["Address", "Attempts", "Patience"]


@dataclass(frozen=True)
class Patience:
    """How long to go on, in seconds."""

    connect: float
    """Until the first connection stands; and with each attempt."""
    reconnect: float
    """Without a connection that does its work."""
    retry: float
    """With a message that the broker returns or refuses."""
    confirm: float
    """While the broker confirms nothing of what it was sent."""
    blocked: float
    """While the broker refuses to read."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) not in {int, float} or not 0 < value < math.inf:
                raise InvalidValue(f"{field.name}_timeout", value, "seconds, more than 0")


class ParametersFor(Protocol):
    """Makes the parameters of one attempt, with credentials asked for anew."""

    def __call__(self, *, timeout: float) -> pika.ConnectionParameters:
        """Parameters of an attempt that may last that long."""


class Address(NamedTuple):
    """A broker to try."""

    where: str
    parameters: ParametersFor


class Attempts:
    """The attempts since something last went well."""

    def __init__(self, addresses: Sequence[Address], patience: Patience, now: float) -> None:
        self._addresses = addresses
        self._patience = patience
        self._ever_up = False
        self.went_well(now)

    def went_well(self, now: float) -> None:
        """The connection that has just ended did its work: what was before it is forgotten."""
        self._since = now
        self._left = list(self._addresses)
        self._reasons: dict[str, str] = {}
        self.count: int = 0

    def next(self, now: float) -> tuple[Address, float]:
        """The address to try, and for how many seconds."""
        address = self._left[self.count % len(self._left)]
        return address, min(self._patience.connect, max(self._since + self._limit - now, 1.0))

    def failed(self, address: Address, reason: Reason, *, was_up: bool, now: float) -> str | None:
        """Book why an attempt or its connection ended; the last words if there is no hope, else None."""
        self.count += 1
        if was_up:
            self._ever_up = True
            self._reasons.clear()
        self._reasons[address.where] = reason.text
        if reason.permanent:
            # What stands against one address need not stand against the next; but a connection that was
            # up has met what they have in common.
            self._left = [] if was_up else [other for other in self._left if other is not address]
        if self._left and now - self._since <= self._limit:
            return None
        once = "" if reason.permanent else " (1 attempt)"
        return "; ".join(self._reasons.values()) + (once if self.count == 1 else f" ({self.count} attempts)")

    @property
    def refused(self) -> bool:
        """Whether there is no address left to try, each having answered that it is of no use."""
        return not self._left

    @property
    def _limit(self) -> float:
        return self._patience.reconnect if self._ever_up else self._patience.connect
