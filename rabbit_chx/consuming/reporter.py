"""Report canaries to the watch that sent them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, NamedTuple

from pika import BasicProperties, BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from rabbit_chx.broker.amqp import expecting_refusals
from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, Needs
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.canaries import report_of
from rabbit_chx.consuming.messages import Message
from rabbit_chx.errors import BrokerUnavailable

_MOST_WAITING: Final = 1_000
"""Reports that may wait; others are dropped, which a watch sees as canaries without an answer."""
_TICK: Final = 1.0
_IDLE: Final = 300.0
"""Seconds without a canary after which the connection is closed."""
_AGAIN_AFTER: Final = 2.0
"""Seconds without reports after a failure."""
_PATIENCE: Final = 60.0
"""Seconds for the broker to confirm a report; it does not do so before an alarm ends."""
_NEEDS: Final = Needs(write={("exchange", DEFAULT_EXCHANGE)})


class _Report(NamedTuple):
    to: str
    headers: Mapping[str, str]


class Reporter:
    """Sends reports in a thread of its own, on a connection of its own, both started at the first canary.

    Under a memory or disk alarm, the broker stops reading from each connection that publishes. A report on the connection
    of the consumer would therefore stop its acknowledgements, and the backlog that caused the alarm could not shrink.

    Args:
        connect: opens the connection.
        warn: called with the reason when reports fail; again only after a report has succeeded.
    """

    def __init__(self, connect: Callable[[], BlockingConnection], warn: Callable[[str], object]) -> None:
        self._connect = connect
        self._warn = warn
        self._reports: SimpleQueue[_Report | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._silent_until = 0.0
        self._warned = False
        self._closed = False

    # ---- from any thread

    def report(self, message: Message) -> None:
        """Report the queue of a canary; returns at once."""
        headers = report_of(message.headers, message.properties.reply_to, message.queue)
        if headers is None or monotonic() < self._silent_until or self._reports.qsize() >= _MOST_WAITING:
            return
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rabbit-chx canaries", daemon=True)
                self._thread.start()
            self._reports.put(_Report(message.properties.reply_to, headers))

    def close(self) -> None:
        """Close the connection after the waiting reports; returns at once if the broker does not answer."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._reports.put(None)
        if thread is not None:
            thread.join(_TICK)

    # ---- in the thread

    def _run(self) -> None:
        while (report := self._reports.get()) is not None:
            try:
                with self._connect() as connection:
                    connection.patience = _PATIENCE
                    if not self._send(connection, report):
                        return
            except (AMQPError, OSError, BrokerUnavailable) as error:
                self._fail(error)

    def _send(self, connection: BlockingConnection, report: _Report | None) -> bool:
        """Send reports until no canary has come for a while; False after `close`."""
        channel: BlockingChannel = connection.channel()
        channel.confirm_delivery()
        with expecting_refusals(channel):
            while report is not None:
                properties = BasicProperties(headers=dict(report.headers))
                channel.basic_publish("", report.to, b"", properties)
                self._warned = False
                try:
                    report = self._next(connection)
                except Empty:
                    return True
        return False

    def _next(self, connection: BlockingConnection) -> _Report | None:
        """Wait for the next report and keep the connection alive; raise `Empty` if it takes too long."""
        until = monotonic() + _IDLE
        while True:
            try:
                return self._reports.get(timeout=_TICK)
            except Empty:
                if monotonic() > until:
                    raise
                connection.process_data_events(0)

    def _fail(self, error: Exception) -> None:
        """Drop the waiting reports and those of the next seconds, or all from now on if the broker refuses them."""
        refused = isinstance(error, ChannelClosedByBroker)
        self._silent_until = inf if refused else monotonic() + _AGAIN_AFTER
        while not self._reports.empty():
            if self._reports.get() is None:
                self._reports.put(None)
                break
        if not self._warned:
            self._warned = True
            self._warn(f"canaries are not reported: {why_down(error, 'the broker', needs=_NEEDS)}")
