"""A message on its way, its outcome, whom it is reported to, and the counters of a publisher."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, overload

from rabbit_chx.base.text import counted


class Outcome(Enum):
    """The final outcome of a message."""

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
    """It was never sent: the publisher gave up, or the caller withdrew the message by a timeout or ``cancel``."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that was not confirmed."""

    row: int
    """The number that `Bulk.add` returned for it; 0 for the message of `Publisher.publish`."""
    outcome: Outcome
    exchange: str
    routing_key: str
    reply: str
    """The broker's reply, or why the publisher gave up."""
    may_have_arrived: bool = True
    """Whether the message may be in a queue all the same, so that publishing it again may duplicate it."""
    stream: str = ""
    """The stream of a message of `StreamPublisher`, which has no exchange."""

    def __str__(self) -> str:
        return f"row {self.row} {self.reason}"

    @property
    def reason(self) -> str:
        """The outcome, the target and the reply."""
        target = f"stream {self.stream!r}" if self.stream else f"exchange {self.exchange!r}"
        if self.routing_key or not self.stream:
            target += f" with key {self.routing_key!r}"
        return f"{self.outcome.value} ({target}): {self.reply}"


class Reason(NamedTuple):
    """What the failures of many messages may have in common."""

    outcome: Outcome
    exchange: bytes
    reply: str
    may_have_arrived: bool
    stream: str = ""

    def failure(self, row: int, routing_key: bytes) -> Failure:
        """What is reported of the message with this row and key."""
        return Failure(
            row,
            self.outcome,
            self.exchange.decode("utf-8", "replace"),
            routing_key.decode("utf-8", "replace"),
            self.reply,
            self.may_have_arrived,
            self.stream,
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """The counters of a publisher or of a bulk; ``published`` is the sum of the five outcomes and of ``pending``."""

    published: int = 0
    confirmed: int = 0
    returned: int = 0
    rejected: int = 0
    unknown: int = 0
    unsent: int = 0
    pending: int = 0
    duplicates: int = 0
    """Of the confirmed: messages of a `StreamPublisher` that the broker dropped, because the stream already had their publishing ids
    under this name; not an outcome."""
    resent: int = 0
    """How often a message was sent again, after a nack, a return or a lost connection; not an outcome."""
    bytes: int = 0
    """Bytes of all frames that the publisher sent, or of the encoded messages of a `StreamPublisher`, including what was sent again;
    for a bulk, since the bulk began."""
    connections: int = 0
    """Connections that the publisher opened; for a bulk, since the bulk began."""
    blocked_seconds: float = 0.0
    """How long the broker blocked publishing (a memory or disk alarm); for a bulk, since the bulk began."""

    @property
    def failed(self) -> int:
        """Messages that were not confirmed."""
        return self.returned + self.rejected + self.unknown + self.unsent


class Owner:
    """Who is told what becomes of messages: a bulk, or a caller that waits for one message. This one tells no other.

    The methods are called from the threads named here, and must not wait.
    """

    __slots__ = ()

    def accepted(self, messages: Sequence[OutgoingMessage]) -> None:
        """Note that these messages wait to be sent; called by the caller's thread while the outbox is locked."""

    def sent_again(self, count: int) -> None:
        """Note that so many messages are sent again; called by the sender's thread."""

    def settled(self, messages: Sequence[OutgoingMessage], outcome: Outcome, reply: str = "") -> None:
        """Note that these messages have their outcome, and why, if that is not the last reply of each."""


NO_OWNER: Final = Owner()


# Compared by identity: identical messages are different ones.
@dataclass(slots=True, eq=False)
class OutgoingMessage:
    """A message that a publisher accepted, and the state of its attempts."""

    row: int
    """Its number among the messages of its owner, from 0."""
    exchange: bytes
    routing_key: bytes
    properties: bytes
    """Encoded as in a content header: flags and values."""
    body: bytes | memoryview
    owner: Owner = NO_OWNER
    attempts: int = 0
    """How often it was handed to a connection; from the first time on, it may have arrived and cannot be withdrawn."""
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
    nacked: bool = False
    """An attempt was rejected with a nack, which says nothing about the other queues of the route."""
    refused: bool = False
    """The broker closed the channel because of this message, which reached no queue."""
    stream: str = ""
    """The stream of a message of `StreamPublisher`, which has no exchange."""

    @property
    def end(self) -> Outcome:
        """What becomes of it if it is given up while it waits to be sent, perhaps again."""
        return Outcome.UNKNOWN if self.doubtful else self.verdict or Outcome.UNSENT

    def reason(self, outcome: Outcome, reply: str = "") -> Reason:
        """Why it was not confirmed, with this reply or its last one."""
        is_open = outcome in {Outcome.REJECTED, Outcome.UNKNOWN} and not self.refused
        return Reason(outcome, self.exchange, reply or self.reply, self.nacked or is_open, self.stream)

    def failure(self, outcome: Outcome, reply: str = "") -> Failure:
        """What is reported of this message when it was not confirmed."""
        return self.reason(outcome, reply).failure(self.row, self.routing_key)


class Failures(Sequence[Failure]):
    """A `Failure` for each message, made when it is looked at: a million of them cost some megabytes."""

    def __init__(self) -> None:
        self._rows = array("Q")
        self._keys: list[bytes] = []
        self._reasons: list[Reason] = []
        self._known: dict[Reason, Reason] = {}
        """The reasons that differ: many messages share one."""
        self.first_row: int | None = None
        """The lowest row."""

    def add(self, messages: Iterable[OutgoingMessage], outcome: Outcome, reply: str = "") -> None:
        """Add messages, with this reply or their last ones."""
        for message in messages:
            self.add_row(message.row, message.routing_key, message.reason(outcome, reply))

    def add_row(self, row: int, routing_key: bytes, reason: Reason) -> None:
        """Add the message with this row and key."""
        self._rows.append(row)
        self._keys.append(routing_key)
        self._reasons.append(self._known.setdefault(reason, reason))
        if self.first_row is None or row < self.first_row:
            self.first_row = row

    def by_row(self, start: int = 0) -> Failures:
        """Return those that were added after the first ``start``, in the order of their rows."""
        order = sorted(range(start, len(self)), key=self._rows.__getitem__)
        found = Failures()
        found._rows.extend(map(self._rows.__getitem__, order))
        found._keys.extend(map(self._keys.__getitem__, order))
        found._reasons.extend(map(self._reasons.__getitem__, order))
        found.first_row = found._rows[0] if order else None
        return found

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'message')} without a confirm>"

    @overload
    def __getitem__(self, index: int) -> Failure: ...

    @overload
    def __getitem__(self, index: slice) -> list[Failure]: ...

    def __getitem__(self, index: int | slice) -> Failure | list[Failure]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        return self._reasons[index].failure(self._rows[index], self._keys[index])
