"""A message on its way, its outcome, and the counters of a publisher."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """What finally became of a message."""

    CONFIRMED = "confirmed"
    """The broker routed it and took responsibility for it."""
    RETURNED = "returned"
    """The broker returned it as unroutable until the retry timeout."""
    REJECTED = "rejected"
    """The broker rejected it (basic.nack) until the retry timeout, for example because a queue was full. If the exchange
    routes to several queues, the others may hold it."""
    UNKNOWN = "unknown"
    """It was sent, and the connection ended before its confirm: it may or may not be in its queue."""
    UNSENT = "unsent"
    """The publisher gave up before the message was sent."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that was not confirmed."""

    row: int
    """The number that ``publish`` returned for it."""
    outcome: Outcome
    exchange: str
    routing_key: str
    reply: str
    """The broker's reply, or why the publisher gave up."""

    def __str__(self) -> str:
        target = f"exchange {self.exchange!r} with key {self.routing_key!r}"
        return f"row {self.row} {self.outcome.value} ({target}): {self.reply}"


@dataclass(frozen=True, slots=True)
class Totals:
    """A publisher's counters; ``published`` is the sum of the five outcomes and of ``pending``."""

    published: int = 0
    confirmed: int = 0
    returned: int = 0
    rejected: int = 0
    unknown: int = 0
    unsent: int = 0
    pending: int = 0
    resent: int = 0
    """How often a message was sent again, after a nack, a return or a lost connection; not an outcome."""
    bytes: int = 0
    """Bytes of all frames sent."""
    connections: int = 0
    """Connections opened; all but the first are reconnects."""
    blocked_seconds: float = 0.0
    """How long the broker blocked publishing (a memory or disk alarm)."""

    @property
    def failed(self) -> int:
        """Messages that were not confirmed."""
        return self.returned + self.rejected + self.unknown + self.unsent


@dataclass(slots=True)
class OutgoingMessage:
    """A message that a publisher accepted, and the state of its attempts."""

    row: int
    """Its number, counted from 0 in the order in which the publisher accepted messages."""
    exchange: bytes
    routing_key: bytes
    properties: bytes
    """Encoded as in a content header: flags and values."""
    body: bytes | memoryview
    attempts: int = 0
    retry_until: float = 0.0
    """When a returned or rejected message is given up; 0.0 before the first return or nack."""
    reply: str = ""
    """Why it came back last, in the broker's words."""
    returned: bool = False
    """The current attempt was returned; its ack is still to follow."""
    verdict: Outcome | None = None
    """The broker's answer to the last attempt, if it was returned or rejected; None while an attempt is in flight."""
    doubtful: bool = False
    """An attempt was in flight when its connection ended: that copy may be in its queue."""

    def failure(self, outcome: Outcome) -> Failure:
        """What is reported of this message when it was not confirmed."""
        return Failure(
            self.row,
            outcome,
            self.exchange.decode("utf-8", "replace"),
            self.routing_key.decode("utf-8", "replace"),
            self.reply,
        )
