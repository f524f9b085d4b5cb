"""What the publishers of both protocols have in common: `Client`, and what their calls do with messages that are encoded."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Self

from rabbit_chx.errors import RabbitChxError
from rabbit_chx.publishing.messages import Outcome, Totals
from rabbit_chx.publishing.pipeline import AnyPipeline, Many, One, Pipeline
from rabbit_chx.publishing.receipts import (
    Confirmation,
    Receipt,
    publish_failed,
    unconfirmed,
    withdrawn,
)


class Client(Generic[AnyPipeline]):
    """A publisher and its present pipeline: ``begin`` makes one at first, and after each `close`."""

    def __init__(self, begin: Callable[[], AnyPipeline], where: str) -> None:
        self._begin = begin
        self._where = where
        self._pipeline: AnyPipeline = begin()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._where}: {self._pipeline.state}>"

    def _usable(self) -> AnyPipeline:
        """The pipeline; another one after `close` or in a forked process."""
        if not self._pipeline.usable:
            self._renew()
        return self._pipeline

    def _renew(self) -> None:
        self._pipeline = self._begin()

    @property
    def totals(self) -> Totals:
        """The current counters of all messages."""
        return self._pipeline.totals()

    @property
    def error(self) -> RabbitChxError | None:
        """Why the publisher gave up; the next call tries again. None before it gives up, and as soon as it is connected again."""
        return self._pipeline.error


class BlockingClient(Client[AnyPipeline]):
    """A publisher for threads: how it is opened and closed."""

    def __init__(self, begin: Callable[[], AnyPipeline], where: str) -> None:
        super().__init__(begin, where)
        self._opening_by_process: dict[int, threading.RLock] = {}

    def open(self) -> None:
        """Connect, also again after `close` or in a forked process; an error that waiting cannot fix is raised after one attempt.

        An open publisher stays as it is; in a second thread, the call waits until the publisher is open.
        """
        # Another process may hold its lock for ever.
        with self._opening_by_process.setdefault(os.getpid(), threading.RLock()):
            self._usable().open()

    def close(self, timeout: float | None = None) -> None:
        """Wait until every message has its outcome and callbacks have returned, which may publish; then close the connection.

        A message that has no outcome after ``timeout`` seconds (default: ``timeouts.close``) fails.
        """
        self._pipeline.close(timeout)

    def _stop_accepting(self) -> None:
        """Make every call raise `BrokerUnavailable` from now on, even where it waits; safe in a signal handler."""
        self._pipeline.stop_accepting()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def publish(
    pipeline: Pipeline[One, Many], encoded: One, deadline: float | None, timeout: float | None
) -> None:
    """Publish one message, and return when the broker has confirmed it; the caller knows the deadline as a timeout."""
    receipt = Receipt()
    messages = pipeline.one(encoded, 0, receipt)
    if not pipeline.accept(messages, deadline):
        raise publish_failed(messages[0].failure(Outcome.UNSENT, pipeline.waited_for(timeout)))
    try:
        in_time = receipt.wait(None if deadline is None else deadline - time.monotonic())
    except BaseException:  # Ctrl-C
        pipeline.withdraw({receipt}, "withdrawn after an interrupt")
        raise
    if not in_time:
        pipeline.withdraw({receipt}, withdrawn(timeout))
        if not receipt.wait(0):
            raise publish_failed(messages[0].failure(Outcome.UNKNOWN, unconfirmed(timeout)))
    if receipt.failure is not None:
        raise publish_failed(receipt.failure)


def submit(
    pipeline: Pipeline[One, Many], encoded: One, deadline: float | None, timeout: float | None
) -> Future[None]:
    """Accept one message, and return the future of its confirm."""
    confirmation = Confirmation(pipeline.withdraw, pipeline.callbacks)
    messages = pipeline.one(encoded, 0, confirmation)
    if not pipeline.accept(messages, deadline):
        confirmation.settled(messages, Outcome.UNSENT, pipeline.waited_for(timeout))
    return confirmation
