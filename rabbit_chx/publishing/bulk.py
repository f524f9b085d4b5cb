"""Many messages with one outcome: rows, totals, failures and a ``flush`` of their own."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Final, Protocol, Self, Unpack

from rabbit_chx.base.text import counted
from rabbit_chx.base.timeouts import deadline_of
from rabbit_chx.errors import BrokerUnavailable, PublishFailed, RabbitChxError
from rabbit_chx.messages.message_fields import Headers, Properties, PropertyColumns
from rabbit_chx.publishing.encoder import Columns, Encoder, HeaderColumn
from rabbit_chx.publishing.failures import Failures
from rabbit_chx.publishing.messages import Failure, Outcome, OutgoingMessage, Owner, Totals
from rabbit_chx.publishing.outbox import Outbox, log_errors
from rabbit_chx.publishing.receipts import no_room, unconfirmed, withdrawn

_ROWS_OF_A_PART: Final = 512


class _Pipeline(Protocol):
    """What a bulk uses of its publisher: see `Pipeline`."""

    encoder: Encoder
    outbox: Outbox

    def check(self) -> None:
        """Raise if the caller may not publish."""

    def accept(
        self, messages: Sequence[OutgoingMessage], deadline: float | None, given_up: int | None
    ) -> int:
        """Accept messages until the deadline, and return how many."""
        ...

    def totals(self) -> Totals:
        """Return the counters of all messages."""
        ...


class Bulk:
    """Messages that are added in any number and confirmed together; `Publisher.bulk` makes one.

    ``add`` and ``add_many`` return when their messages are accepted, and wait only while too many are in flight. ``flush``,
    or the end of the ``with`` block, waits for the outcome of each message and raises `PublishFailed` if one was not
    confirmed. Any number of threads may use a bulk; each of them is told about every failure once.
    """

    def __init__(
        self,
        pipeline: _Pipeline,
        *,
        grace: float,
        on_failure: Callable[[Failure], object] | None,
    ) -> None:
        self._pipeline = pipeline
        self._grace = grace
        self._began = pipeline.totals()
        self._given_up = pipeline.outbox.given_up
        self._rows = _Rows(on_failure)
        self._adding = threading.RLock()  # one thread at a time numbers its rows, and a hook may add more
        self._told = threading.local()
        self._raises = on_failure is None

    def __repr__(self) -> str:
        return f"<Bulk: {self.totals}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.flush()
            return
        # Raise the caller's own error, but give accepted messages time to be confirmed.
        try:
            self.flush(self._grace)
        except (PublishFailed, BrokerUnavailable) as failed:
            error.add_note(str(failed))

    def add(
        self,
        body: bytes | str,
        routing_key: str | bytes = "",
        *,
        exchange: str | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
        **properties: Unpack[Properties],
    ) -> int:
        """Accept one message and return its row number, which identifies it in failures.

        A message that is not accepted within ``timeout`` seconds, 0 for at once, fails unsent.
        """
        self._pipeline.check()
        encoded = self._pipeline.encoder.one(body, routing_key, exchange, headers, properties)
        with self._adding:
            part = self._rows.part()
            row = self._rows.published
            message = OutgoingMessage(row, *encoded, part)
            if not self._pipeline.accept([message], deadline_of(timeout), self._given_up):
                self._rows.leave_out([message], no_room(timeout))
        return row

    def add_many(
        self,
        bodies: Iterable[bytes | str],
        routing_keys: str | bytes | Iterable[str | bytes] = "",
        *,
        exchange: str | Iterable[str | bytes] | None = None,
        headers: HeaderColumn = None,
        timeout: float | None = None,
        **properties: Unpack[PropertyColumns],
    ) -> range:
        """Accept a batch given by columns and return its rows.

        Keys, exchanges, headers and each property are one value for all rows, or a column: a list, tuple or Arrow array; keys and
        exchanges may be any iterable. The whole batch is checked before its first message is sent. Messages that
        are not accepted within ``timeout`` seconds fail unsent.
        """
        self._pipeline.check()
        columns = self._pipeline.encoder.many(bodies, routing_keys, exchange, headers, properties)
        return self._add_encoded(columns, deadline_of(timeout), timeout)

    def _add_encoded(self, columns: Columns, deadline: float | None, timeout: float | None) -> range:
        with self._adding:
            first, count = self._rows.published, len(columns[0])
            for messages in self._lots(columns):
                if self._pipeline.accept(messages, deadline, self._given_up) < len(messages):
                    break
            self._leave_out(columns, first, no_room(timeout))
            return range(first, first + count)

    def _lots(self, columns: Columns) -> Iterator[list[OutgoingMessage]]:
        """Make the next messages of this bulk, some at a time: they are accepted before the next ones are made."""
        first, count = self._rows.published, len(columns[0])
        for start in range(0, count, _ROWS_OF_A_PART):
            end = min(start + _ROWS_OF_A_PART, count)
            rows, own = range(first + start, first + end), (column[start:end] for column in columns)
            yield list(map(OutgoingMessage, rows, *own, repeat(self._rows.part())))

    def _leave_out(self, columns: Columns, first: int, why: str) -> None:
        rest = tuple(column[self._rows.published - first :] for column in columns)
        for messages in self._lots(rest):
            self._rows.leave_out(messages, why)

    def flush(self, timeout: float | None = None) -> Totals:
        """Wait for the outcome of each message that was added to this bulk before, and return the totals.

        After ``timeout`` seconds, messages that were not written are withdrawn; those that were written may still arrive.

        Raises:
            PublishFailed: messages were not confirmed, or not within the timeout.
        """
        self._pipeline.check()
        return self._flush_until(deadline_of(timeout), timeout)

    def _flush_until(self, deadline: float | None, timeout: float | None) -> Totals:
        parts = self._rows.begin_part()
        if not self._rows.wait_for(parts, deadline):
            self._pipeline.outbox.withdraw(set(parts), withdrawn(timeout))
            self._rows.wait_for(parts, deadline)
        told = getattr(self._told, "failed", 0)
        failures, pending = self._rows.unconfirmed(parts, told)
        self._told.failed = told + len(failures)
        if not self._raises:
            failures = Failures()
        totals = self.totals
        problems: list[str] = []
        if failures:
            problems.append(
                f"{len(failures)} of {totals.published} messages were not confirmed; the first: {failures[0]}"
            )
        if pending:
            late = unconfirmed(timeout)
            problems.append(f"{late}: {counted(len(pending), 'message')}")
            failures.add(pending, Outcome.UNKNOWN, late)
        if problems:
            raise PublishFailed("; ".join(problems), totals, failures.by_row())
        return totals

    @property
    def error(self) -> RabbitChxError | None:
        """Why the publisher has given up since this bulk began, so that it takes no more messages; otherwise None."""
        outbox = self._pipeline.outbox
        return outbox.why_given_up if outbox.given_up != self._given_up else None

    @property
    def totals(self) -> Totals:
        """The current counters."""
        now, began = self._pipeline.totals(), self._began
        return replace(
            self._rows.totals(),
            bytes=now.bytes - began.bytes,
            connections=now.connections - began.connections,
            blocked_seconds=now.blocked_seconds - began.blocked_seconds,
        )

    @property
    def failures(self) -> Sequence[Failure]:
        """The messages that were not confirmed, in the order of their rows."""
        return self._rows.unconfirmed([], 0)[0]

    @property
    def confirmed_before(self) -> int:
        """A row before which every message is confirmed: exact when nothing is pending, otherwise up to 512 rows too low."""
        return self._rows.confirmed_before()


class Batch(Bulk):
    """The messages of one call of ``publish_many``."""

    def add_encoded(self, columns: Columns, deadline: float | None, timeout: float | None) -> None:
        """Accept messages that an encoder has encoded; those that are not accepted by the deadline fail unsent."""
        self._add_encoded(columns, deadline, timeout)

    def add_in_steps(self, columns: Columns) -> Iterator[bool]:
        """Accept messages without waiting, some at each step; yield whether there was room for all of the step."""
        for messages in self._lots(columns):
            rest = messages
            while (done := self._pipeline.accept(rest, 0.0, self._given_up)) < len(rest):
                rest = rest[done:]
                yield False
            yield True

    def leave_out(self, columns: Columns, why: str) -> None:
        """Count the last messages of the batch, which were not accepted, as unsent."""
        self._leave_out(columns, 0, why)

    def withdraw(self, why: str) -> None:
        """Give up the messages that were not written."""
        self._pipeline.outbox.withdraw(set(self._rows.begin_part()), why)

    def when_settled(self, call: Callable[[], object]) -> None:
        """Call a function once no message is pending: here, or on the thread that records the last outcome."""
        self._rows.when_settled(call)

    def flush_until(self, deadline: float | None, timeout: float | None) -> Totals:
        """Flush until a time of the monotonic clock; the caller knows it as a timeout."""
        return self._flush_until(deadline, timeout)


class _Part(Owner):
    """Consecutive rows of a bulk. A flush begins a new part, and waits for those before it."""

    __slots__ = ("_rows", "first", "pending")

    def __init__(self, rows: _Rows, first: int) -> None:
        self._rows = rows
        self.first = first
        self.pending: set[OutgoingMessage] = set()

    def accepted(self, messages: Sequence[OutgoingMessage]) -> None:
        self._rows.accepted(self, messages)

    def sent_again(self) -> None:
        self._rows.resent += 1  # only the sender's thread writes it

    def settled(self, messages: Sequence[OutgoingMessage], outcome: Outcome) -> None:
        self._rows.settled(self, messages, outcome)


class _Rows:
    """The counters of a bulk, which its callers share with the sender's thread."""

    def __init__(self, on_failure: Callable[[Failure], object] | None) -> None:
        self._changed = threading.Condition()
        self._on_failure = on_failure
        self._when_settled: Callable[[], object] | None = None
        self._outcomes: Counter[Outcome] = Counter()
        self._parts: deque[_Part] = deque([_Part(self, 0)])
        self.published: int = 0
        self.resent: int = 0
        self._failures = Failures()

    def part(self) -> _Part:
        """Return the part to which the next message belongs."""
        with self._changed:
            if self.published - self._parts[-1].first >= _ROWS_OF_A_PART:
                self._parts.append(_Part(self, self.published))
            return self._parts[-1]

    def begin_part(self) -> list[_Part]:
        """Return the parts with pending messages; later messages belong to another part."""
        with self._changed:
            pending = [part for part in self._parts if part.pending]
            if pending:
                self._parts.append(_Part(self, self.published))
            return pending

    def wait_for(self, parts: Sequence[_Part], deadline: float | None) -> bool:
        """Wait until no message of these parts is pending; return whether that is so at the deadline."""
        left = None if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
        with self._changed:
            return self._changed.wait_for(lambda: not any(part.pending for part in parts), left)

    def when_settled(self, call: Callable[[], object]) -> None:
        """Call a function once no message is pending."""
        with self._changed:
            if any(part.pending for part in self._parts):
                self._when_settled = call
            else:
                call()

    def accepted(self, part: _Part, messages: Sequence[OutgoingMessage]) -> None:
        """Note messages that the outbox accepts."""
        with self._changed:
            if not part.pending and part not in self._parts:  # dropped while its caller waited for room
                self._parts.appendleft(part)
            part.pending.update(messages)
            self.published += len(messages)

    def settled(self, part: _Part, messages: Sequence[OutgoingMessage], outcome: Outcome) -> None:
        """Call the hook for failures, and then record the outcome: a caller that waits for it may use what the hook did."""
        has_failed = outcome is not Outcome.CONFIRMED
        if has_failed and self._on_failure is not None:
            for message in messages:
                with log_errors("on_failure"):
                    self._on_failure(message.failure(outcome))
        with self._changed:
            self._outcomes[outcome] += len(messages)
            part.pending.difference_update(messages)
            if has_failed:
                self._failures.add(messages, outcome)
            if not part.pending:
                while len(self._parts) > 1 and not self._parts[0].pending:
                    self._parts.popleft()
                self._changed.notify_all()
                if self._when_settled is not None and not any(part.pending for part in self._parts):
                    self._when_settled()

    def leave_out(self, messages: Sequence[OutgoingMessage], why: str) -> None:
        """Record messages of one part that were not accepted as unsent."""
        for message in messages:
            message.reply = why
        part = messages[0].owner
        part.accepted(messages)
        part.settled(messages, Outcome.UNSENT)

    def unconfirmed(self, parts: Sequence[_Part], start: int) -> tuple[Failures, list[OutgoingMessage]]:
        """Return all failures but the first ones to come, and what is pending of these parts, as of one moment."""
        with self._changed:
            pending = [message for part in parts for message in part.pending]
            return self._failures.by_row(start), pending

    def totals(self) -> Totals:
        """Return the counters as of one moment."""
        with self._changed:
            return Totals(
                published=self.published,
                **{outcome.value: self._outcomes[outcome] for outcome in Outcome},
                pending=self.published - self._outcomes.total(),
                resent=self.resent,
            )

    def confirmed_before(self) -> int:
        """Return a row before which every message is confirmed."""
        with self._changed:
            pending = next((part.first for part in self._parts if part.pending), self.published)
            failed = self._failures.first_row
            return pending if failed is None else min(pending, failed)
