"""What a member publishes: answers to questions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, TypeAlias

from pika import BlockingConnection
from pika.exceptions import AMQPError

from rabbit_chx.base.outages import Backoff
from rabbit_chx.broker.commands import Command, Lost, OnChannel, Refused, why_ended
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.errors import BrokerUnavailable

Publishing: TypeAlias = "Generator[Command, Any, object]"
"""Commands that publish."""

_MOST_WAITING: Final = 1_000
"""How much may wait; the rest is dropped, so that `members` gets no answer from this member."""
_TICK: Final = 1.0
_IDLE: Final = 300.0
"""Seconds without work after which the connection is closed."""


class Responder:
    """Publishes in a thread of its own, on a connection of its own, both started at the first use.

    Under a memory or disk alarm, the broker stops reading from each connection that publishes. An answer on the connection
    of the consumer would therefore stop its acknowledgements, and the backlog that caused the alarm could not shrink.
    It does not use `Publisher`, whose messages are mandatory: the broker returns even one that direct reply-to has delivered.

    ``warn`` is called with the reason when publishing fails; again only after it has succeeded.
    """

    def __init__(self, connect: Callable[[], BlockingConnection], warn: Callable[[str], object]) -> None:
        self._connect = connect
        self._warn = warn
        self._waiting: SimpleQueue[Publishing | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._silent_until = 0.0
        self._backoff = Backoff()
        self._warned = False
        self._closed = False

    # ---- from any thread

    def publish(self, publishing: Publishing) -> None:
        """Carry out commands after those that were given earlier; returns at once.

        After a failure they are dropped. The generator is closed in any case, when they are carried out or dropped.
        """
        with self._lock:
            dropped = monotonic() < self._silent_until or self._waiting.qsize() >= _MOST_WAITING
            if dropped or self._closed:
                publishing.close()
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rabbit-chx replies", daemon=True)
                self._thread.start()
            self._waiting.put(publishing)

    def close(self) -> None:
        """Close the connection after the waiting work; returns at once if the broker does not answer."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._waiting.put(None)
        if thread is not None:
            thread.join(_TICK)

    # ---- in the thread

    def _run(self) -> None:
        publishing = self._waiting.get()
        while publishing is not None:
            try:
                with self._connect() as connection:
                    while True:
                        # A driver waits a minute for each confirm, which the broker does not send before an alarm ends.
                        PikaDriver(connection).run(publishing)
                        self._warned = False
                        self._backoff.works()
                        publishing = self._next(connection)
                        if publishing is None or not _is_alive(connection):
                            break
            except (AMQPError, OSError, BrokerUnavailable, Lost, Refused) as error:
                self._fail(error)
                if publishing is not None:
                    publishing.close()
                    publishing = self._waiting.get()

    def _next(self, connection: BlockingConnection) -> Publishing | None:
        """Wait for the next work, and keep the connection alive for some minutes."""
        until = monotonic() + _IDLE
        with suppress(AMQPError, OSError):
            while monotonic() < until:
                try:
                    return self._waiting.get(timeout=_TICK)
                except Empty:
                    connection.process_data_events(0)
            connection.close()
        return self._waiting.get()

    def _fail(self, error: Exception) -> None:
        """Drop what waits and what is given in the next seconds."""
        self._silent_until = monotonic() + self._backoff.failed()
        while not self._waiting.empty():
            dropped = self._waiting.get()
            if dropped is None:
                self._waiting.put(None)
                break
            dropped.close()
        if not self._warned:
            self._warned = True
            self._warn(f"questions are not answered: {why_ended(error)}")


def reply(to: str, body: bytes, **properties: Any) -> Generator[Command, Any, None]:
    """Publish to a direct reply-to address, or to a queue."""
    message = {"exchange": "", "routing_key": to, "body": body, "properties": properties}
    yield OnChannel("basic_publish", message)


def _is_alive(connection: BlockingConnection) -> bool:
    """Whether a connection is still open, once everything is read that the broker has sent while it was idle."""
    with suppress(AMQPError, OSError):
        connection.process_data_events(0)
    return bool(connection.is_open)
