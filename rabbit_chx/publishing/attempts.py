"""Which broker is tried next, for how long, and when to give up.

Time counts from the last connection that confirmed messages, not from the last one that opened: a network that
lets connections open and then breaks each of them is as bad as none. The addresses share what is left of the time, and
each is tried at least once, so that one that does not answer leaves time for the others. The caller supplies the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pika

from rabbit_chx.base.timeouts import Timeouts, share_of
from rabbit_chx.errors import BrokerUnavailable


class Address(NamedTuple):
    """A broker to try."""

    where: str
    parameters: Callable[..., pika.ConnectionParameters]
    """Called with ``timeout`` for the parameters of one attempt, with current credentials."""


class Attempts:
    """The attempts since the last connection that worked."""

    def __init__(self, addresses: Sequence[Address], timeouts: Timeouts, now: float) -> None:
        self._addresses = addresses
        self._timeouts = timeouts
        self._ever_up = False
        self.succeeded(now)

    def succeeded(self, now: float) -> None:
        """Forget earlier failures: the connection that has just ended confirmed messages."""
        self._since = now
        self._left = self._round = list(self._addresses)
        self._reasons: dict[str, str] = {}
        self.count: int = 0

    def next(self, now: float) -> tuple[Address, float]:
        """Return the address to try, and for how many seconds."""
        left = self._since + self._limit - now
        return self._round[0], share_of(left, len(self._round), self._timeouts.connect)

    def failed(self, address: Address, reason: BrokerUnavailable, *, was_up: bool, now: float) -> str | None:
        """Record why an attempt or its connection ended; return the final error, or None to try again."""
        self.count += 1
        if was_up:
            self._ever_up = True
            self._reasons.clear()
        self._reasons[address.where] = str(reason)
        if reason.permanent:
            # An address that refuses is dropped. A connection that was up was ended for what it sent, which every
            # address would refuse.
            self._left = [] if was_up else [other for other in self._left if other is not address]
        self._round = [
            other for other in self._round if other is not address and other in self._left
        ] or self._left
        if self._left and (now - self._since <= self._limit or self.count < len(self._addresses)):
            return None
        once = "" if reason.permanent else " (1 attempt)"
        return "; ".join(self._reasons.values()) + (once if self.count == 1 else f" ({self.count} attempts)")

    @property
    def refused(self) -> bool:
        """Whether every address has refused, so that waiting cannot help."""
        return not self._left

    @property
    def _limit(self) -> float:
        return self._timeouts.reconnect if self._ever_up else self._timeouts.connect
