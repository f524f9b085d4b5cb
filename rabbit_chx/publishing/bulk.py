"""Many messages with one outcome: rows, totals, failures and a ``flush`` of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, Self, Unpack

from rabbit_chx.base.text import counted
from rabbit_chx.base.timeouts import deadline_of
from rabbit_chx.base.unfair import UnfairCondition
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, PublishFailed, RabbitChxError
from rabbit_chx.messages.message_fields import Headers, Properties, PropertyColumns
from rabbit_chx.publishing.encoder import HeaderColumn
from rabbit_chx.publishing.messages import Failure, Failures, Outcome, OutgoingMessage, Totals
from rabbit_chx.publishing.pipeline import AmqpPipeline, AnyPipeline, Pipeline
from rabbit_chx.publishing.receipts import unconfirmed, withdrawn
from rabbit_chx.publishing.rows import Rows
from rabbit_chx.publishing.sender import CLOSED


class BaseBulk(Generic[AnyPipeline]):
    """What the bulks of all publishers have: see `Bulk`."""

    def __init__(self, pipeline: AnyPipeline, *, on_failure: Callable[[Failure], object] | None) -> None:
        self._pipeline = pipeline
        self._began = pipeline.totals()
        self._since = time.monotonic()
        self._rows = Rows(on_failure, pipeline.part)
        self._adding = UnfairCondition()  # one thread at a time numbers its rows, and a hook may add more
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
            self.flush(self._pipeline.timeouts.close)
        except (PublishFailed, BrokerUnavailable) as failed:
            error.add_note(str(failed))

    def _add_one(self, encoded: Any, timeout: float | None) -> int:
        with self._adding:
            part = self._rows.part()
            row = self._rows.published
            messages = self._pipeline.one(encoded, row, part)
            if not self._pipeline.accept(messages, deadline_of(timeout), self._since):
                self._rows.leave_out(messages, self._pipeline.waited_for(timeout))
        return row

    def _add_columns(self, columns: Any, deadline: float | None, timeout: float | None) -> range:
        with self._adding:
            first, place = self._rows.published, 0
            for messages in self._lots(columns):
                done = self._accept(messages, deadline)
                place += done
                if done < len(messages):
                    break
            self._leave_out(columns, place, self._pipeline.waited_for(timeout))
            return range(first, first + len(columns[0]))

    def _accept(self, messages: Sequence[OutgoingMessage], deadline: float | None) -> int:
        return self._pipeline.accept(messages, deadline, self._since)

    def _lots(self, columns: Any, start: int = 0) -> Iterator[Sequence[OutgoingMessage]]:
        """Make the messages from this place on, some at a time: they are accepted before the next ones are made."""
        for place in range(start, len(columns[0]), self._pipeline.step):
            yield self._pipeline.some(columns, place, self._rows.published, self._rows.part())

    def _leave_out(self, columns: Any, start: int, why: str) -> None:
        """Count the messages of a batch from this place on, which were not accepted, as unsent."""
        for messages in self._lots(columns, start):
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
        """Flush until a time of the monotonic clock; the caller knows it as a timeout."""
        parts = self._rows.begin_part()
        if not (done := self._rows.wait_for(parts, deadline)):
            self._pipeline.withdraw(set(parts), withdrawn(timeout))
            done = self._rows.wait_for(parts, deadline)
        told = getattr(self._told, "failed", 0)
        # Another thread that was adding rows to these parts may have found room for the next ones since they were done.
        failures, pending, rows = self._rows.unconfirmed(() if done else parts, told)
        self._told.failed = told + len(failures)
        if not self._raises:
            failures = Failures()
        totals = self._since_the_beginning(rows)
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
        return self._pipeline.why_given_up(self._since)

    @property
    def totals(self) -> Totals:
        """The current counters."""
        self._pipeline.check_process()
        return self._since_the_beginning(self._rows.totals())

    def _since_the_beginning(self, rows: Totals) -> Totals:
        """Add the counters of the connections to those of the rows."""
        now, began = self._pipeline.totals(), self._began
        return replace(
            rows,
            bytes=now.bytes - began.bytes,
            connections=now.connections - began.connections,
            blocked_seconds=now.blocked_seconds - began.blocked_seconds,
        )

    @property
    def failures(self) -> Sequence[Failure]:
        """The messages that were not confirmed, in the order of their rows."""
        self._pipeline.check_process()
        return self._rows.unconfirmed([], 0)[0]

    @property
    def confirmed_before(self) -> int:
        """A row before which every message is confirmed: exact when nothing is pending, otherwise up to 512 rows too low (streams: 1,512)."""
        self._pipeline.check_process()
        return self._rows.confirmed_before()


class Bulk(BaseBulk[AmqpPipeline]):
    """Messages that are added in any number and confirmed together; `Publisher.bulk` makes one.

    ``add`` and ``add_many`` return when their messages are accepted, and wait only while too many are in flight. ``flush``,
    or the end of the ``with`` block, waits for the outcome of each message and raises `PublishFailed` if one was not
    confirmed. Any number of threads may use a bulk; each of them is told about every failure once.
    """

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
        return self._add_one(encoded, timeout)

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
        return self._add_columns(columns, deadline_of(timeout), timeout)


class Batch(BaseBulk[Pipeline[Any, Any]]):
    """The messages of one call of ``publish_many``."""

    def publish(self, columns: Any, deadline: float | None, timeout: float | None) -> Totals:
        """Publish a batch, and return when the broker has confirmed each message."""
        try:
            self._add_columns(columns, deadline, timeout)
        except (BrokerUnavailable, InvalidValue) as error:  # InvalidValue: `close` came first
            self.leave_out(columns, self.why_not_accepted(error))
        return self._flush_until(deadline, timeout)

    def _accept(self, messages: Sequence[OutgoingMessage], deadline: float | None) -> int:
        return self._pipeline.accept(messages, deadline, self._since, fits=True)

    def add_in_steps(self, columns: Any) -> Iterator[bool]:
        """Accept messages without waiting, some at each step; yield whether there was room for all of the step."""
        for messages in self._lots(columns):
            rest = messages
            while (done := self._accept(rest, 0.0)) < len(rest):
                rest = rest[done:]
                yield False
            yield True

    def why_not_accepted(self, error: BrokerUnavailable | InvalidValue) -> str:
        """Why the last messages of the batch were not accepted; raise the error if none was."""
        if not self.totals.published:
            raise error
        return CLOSED if self._pipeline.state == "closed" else str(error)

    def leave_out(self, columns: Any, why: str) -> None:
        """Count the last messages of the batch, which were not accepted, as unsent."""
        self._leave_out(columns, self._rows.published, why)

    def withdraw(self, why: str) -> None:
        """Give up the messages that were not written."""
        self._pipeline.withdraw(set(self._rows.begin_part()), why)

    def when_settled(self, call: Callable[[], object]) -> None:
        """Call a function once no message is pending: here, or on the thread that records the last outcome."""
        self._rows.when_settled(call)
