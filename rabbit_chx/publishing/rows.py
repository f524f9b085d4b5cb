"""The rows of a bulk: its counters, its failures, and what is pending of them."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rabbit_chx.publishing.messages import Failure, Failures, Outcome, OutgoingMessage, Owner, Totals
from rabbit_chx.publishing.outbox import log

_ROWS_OF_A_PART: Final = 512


class Part(Owner):
    """Consecutive rows of a bulk. A flush begins a new part, and waits for those before it."""

    __slots__ = ("_rows", "first", "pending")

    def __init__(self, rows: Rows, first: int) -> None:
        self._rows = rows
        self.first = first
        self.pending: set[OutgoingMessage] = set()

    def accepted(self, messages: Sequence[OutgoingMessage]) -> None:
        """Note messages that wait to be sent."""
        self._rows.accepted(self, messages)

    def sent_again(self, count: int) -> None:
        """Count messages that are sent again."""
        self._rows.sent_again(count)

    def settled(self, messages: Sequence[OutgoingMessage], outcome: Outcome, reply: str = "") -> None:
        """Note the outcome of messages."""
        self._rows.settled(self, messages, outcome, reply)

    def begin(self, messages: Sequence[OutgoingMessage]) -> None:
        """Note messages as pending."""
        self.pending.update(messages)

    def end(self, messages: Sequence[OutgoingMessage]) -> None:
        """Note that messages are pending no longer."""
        self.pending.difference_update(messages)

    @property
    def open(self) -> int:
        """How many messages have no outcome, or one that is not recorded yet."""
        return len(self.pending)

    def left(self) -> Iterable[OutgoingMessage]:
        """Return the messages that have no outcome."""
        return self.pending


class Rows:
    """The counters of a bulk, which its callers share with the sender's thread."""

    def __init__(self, on_failure: Callable[[Failure], object] | None, part: type[Part]) -> None:
        self._part = part
        self._changed = threading.Condition()  # re-entrant
        self._on_failure = on_failure
        self._when_settled: Callable[[], object] | None = None
        self._outcomes: Counter[Outcome] = Counter()
        self._parts: deque[Part] = deque([part(self, 0)])
        self.published: int = 0
        self.resent: int = 0
        self.duplicates: int = 0
        self._failures = Failures()

    def part(self) -> Part:
        """Return the part to which the next message belongs."""
        with self._changed:
            if self.published - self._parts[-1].first >= _ROWS_OF_A_PART:
                self._parts.append(self._part(self, self.published))
            return self._parts[-1]

    def begin_part(self) -> list[Part]:
        """Return the parts with pending messages; later messages belong to another part."""
        with self._changed:
            pending = [part for part in self._parts if part.pending]
            if pending:
                self._parts.append(self._part(self, self.published))
            return pending

    def wait_for(self, parts: Sequence[Part], deadline: float | None) -> bool:
        """Wait until no message of these parts is pending; return whether that is so at the deadline."""
        left = None if deadline is None else deadline - time.monotonic()
        with self._changed:
            return self._changed.wait_for(lambda: not any(part.pending for part in parts), left)

    def when_settled(self, call: Callable[[], object]) -> None:
        """Call a function once no message is pending."""
        with self._changed:
            if any(part.pending for part in self._parts):
                self._when_settled = call
            else:
                call()

    def accepted(self, part: Part, messages: Sequence[OutgoingMessage]) -> None:
        """Note messages that the outbox accepts."""
        with self._changed:
            if not part.pending and part not in self._parts:  # dropped while its caller waited for room
                self._parts.appendleft(part)
            part.begin(messages)
            self.published += len(messages)

    def sent_again(self, count: int) -> None:
        """Count messages that are sent again."""
        with self._changed:
            self.resent += count

    def settled(self, part: Part, messages: Sequence[OutgoingMessage], outcome: Outcome, reply: str) -> None:
        """Call the hook for failures, and then record the outcome: a caller that waits for it may use what the hook did."""
        has_failed = outcome is not Outcome.CONFIRMED
        if has_failed and self._on_failure is not None:
            for message in messages:
                try:
                    self._on_failure(message.failure(outcome, reply))
                except (Exception, SystemExit):  # noqa: BLE001 - not even ``sys.exit`` affects messages
                    log.exception("the publisher's hook on_failure failed")
        with self._changed:
            self._outcomes[outcome] += len(messages)
            part.end(messages)
            if has_failed:
                self._failures.add(messages, outcome, reply)
            if not part.pending:
                while len(self._parts) > 1 and not self._parts[0].pending:
                    self._parts.popleft()
                self._changed.notify_all()
                if self._when_settled is not None and not any(part.pending for part in self._parts):
                    self._when_settled()

    def leave_out(self, messages: Sequence[OutgoingMessage], why: str) -> None:
        """Record messages of one part that were not accepted as unsent."""
        part = messages[0].owner
        part.accepted(messages)
        part.settled(messages, Outcome.UNSENT, why)

    def unconfirmed(
        self, parts: Sequence[Part], start: int
    ) -> tuple[Failures, list[OutgoingMessage], Totals]:
        """Return all failures but the first ones to come, what is pending of these parts, and the counters, as of one moment."""
        with self._changed:
            pending = [message for part in parts for message in part.left()]
            ahead = sum(part.open for part in parts) - len(pending)
            return self._failures.by_row(start), pending, self.totals(ahead)

    def totals(self, ahead: int = 0) -> Totals:
        """Return the counters as of one moment; so many messages are confirmed, and not recorded yet."""
        with self._changed:
            outcomes = {outcome.value: self._outcomes[outcome] for outcome in Outcome}
            outcomes["confirmed"] += ahead
            return Totals(
                published=self.published,
                **outcomes,
                pending=self.published - sum(outcomes.values()),
                resent=self.resent,
                duplicates=self.duplicates,
            )

    def confirmed_before(self) -> int:
        """Return a row before which every message is confirmed."""
        with self._changed:
            pending = next((part.first for part in self._parts if part.pending), self.published)
            failed = self._failures.first_row
            return pending if failed is None else min(pending, failed)
