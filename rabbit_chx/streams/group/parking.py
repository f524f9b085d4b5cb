"""Failed messages of a stream, copied to a queue over AMQP, each confirmed."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Any, Final
from uuid import UUID

from pika import BlockingConnection
from pika.exceptions import AMQPError
from pika.spec import ACCESS_REFUSED

from rabbit_chx.base.outages import Backoff
from rabbit_chx.base.text import described
from rabbit_chx.broker.commands import Command, Lost, Refused, why_ended
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.messages.message import StreamMessage
from rabbit_chx.messages.message_fields import checked
from rabbit_chx.mirror.fields import EPOCH, milliseconds
from rabbit_chx.mirror.hashing import MAX_SHORTSTR
from rabbit_chx.streams.group.batch import BatchFailed, without_hint
from rabbit_chx.streams.messages.amqp10 import Milliseconds, as_text
from rabbit_chx.streams.messages.stored import Undecodable
from rabbit_chx.working.parking import EXCHANGE, OFFSET, ROUTING_KEY, check_parking_queue, origin_of, park
from rabbit_chx.working.settings import warn

_KEPT: Final = 5.0
"""Seconds without work after which the connection is closed."""


@dataclass(slots=True)
class _Work:
    stored: Iterable[StreamMessage]
    """Decoded in the thread that parks them."""
    error: BaseException
    attempt: int
    then: Callable[[int | None, BaseException | None], object]
    refused: Refused | None = None
    """Why the first message was refused whole."""
    messages: deque[StreamMessage] = field(default_factory=deque)
    """Those that are left."""


class _Link:
    """A connection that is opened when it is needed."""

    def __init__(self, connect: Callable[[], BlockingConnection]) -> None:
        self._connect = connect
        self._opened = ExitStack()
        self._driver: PikaDriver | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, which may be lost."""
        return self._driver is not None

    @property
    def driver(self) -> PikaDriver:
        if self._driver is None:
            self._driver = PikaDriver(self._opened.enter_context(self._connect()))
        return self._driver

    def close(self) -> None:
        self._driver = None
        with suppress(AMQPError, OSError):
            self._opened.close()


class Parking:
    """Parks messages, in a thread that ends with its connection when nothing was parked for some seconds.

    ``ended`` is set when the member ends.
    """

    def __init__(
        self, group: str, queue: str, connect: Callable[[], BlockingConnection], ended: threading.Event
    ) -> None:
        self._group = group
        self._queue = queue
        self._connect = connect
        self._ended = ended
        self._waiting: SimpleQueue[_Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._backoff = Backoff()
        self._runs = False
        """Whether there is a thread that takes what waits."""
        self.why_not = ""
        """Why a message cannot be parked now; empty if none waits."""

    def check(self) -> None:
        """Check that the queue exists.

        Raises:
            BrokerUnavailable: there is no connection, or the user lacks a permission.
        """
        try:
            with self._connect() as connection:
                PikaDriver(connection).run(check_parking_queue(self._queue))
        except (AMQPError, OSError, Lost, Refused) as error:
            raise why_ended(error) from None

    def begin(
        self,
        messages: Iterable[StreamMessage],
        error: BaseException,
        attempt: int,
        then: Callable[[int | None, BaseException | None], object],
        refused: Refused | None = None,
    ) -> None:
        """Park messages, and call ``then`` in another thread, with the offset of the first one that is left, if any, and an error.

        An error ends the member: it says what the operator must fix; without an offset, nothing was parked. A member that ends may
        leave some without one. With ``refused``,
        the first message is parked without its properties and headers.
        """
        work = _Work(messages, error, attempt, then, refused)
        with self._lock:
            if not self._runs:
                threading.Thread(target=self._run, name="rabbit-chx parking", daemon=True).start()
                self._runs = True
            self._waiting.put(work)

    def end(self) -> None:
        """End the thread after what it does, if it runs."""
        self._waiting.put(None)

    def _run(self) -> None:
        with closing(_Link(self._connect)) as link:
            while (work := self._next()) is not None:
                failed: BaseException | None = None
                try:
                    work.messages.extend(work.stored)
                    self._park(work, link)
                except BaseException as error:  # noqa: BLE001 - without an answer, the stream would wait for ever
                    failed = error
                work.then(work.messages[0].offset if work.messages else None, failed)

    def _next(self) -> _Work | None:
        """Wait for work; None if there was none for some seconds, or the member has ended, so that the thread must end."""
        with suppress(Empty):
            if (work := self._waiting.get(timeout=_KEPT)) is not None:
                return work
        with self._lock:
            with suppress(Empty):
                if (work := self._waiting.get_nowait()) is not None:
                    return work
            self._runs = False
        return None

    def _park(self, work: _Work, link: _Link) -> None:
        """Park messages, and remove each, until all are parked or the member ends. The connection stays open.

        Whatever fails because of the contents of a message has it parked without its properties and headers.
        """
        while work.messages and not self._ended.is_set():
            is_kept = link.is_open
            try:
                link.driver.run(self._commands(work))
            except (Refused, AMQPError, OSError, Lost, BrokerUnavailable) as error:
                link.close()
                ended = why_ended(error)
                if ended.permanent:
                    raise BrokerUnavailable(
                        f"a message could not be parked: {ended}", permanent=True
                    ) from None
                if isinstance(error, Refused) and error.code != ACCESS_REFUSED and work.refused is None:
                    self._reduce(work, error)
                elif not is_kept:
                    self.why_not = f"a message could not be parked: {ended}"
                    warn(self._group, f"{self.why_not}; trying again")
                    self._ended.wait(self._backoff.failed())
            except RabbitChxError:
                raise
            except Exception as error:
                link.close()
                if work.refused is not None:
                    raise
                self._reduce(work, Refused(0, described(error)))

    def _commands(self, work: _Work) -> Generator[Command, Any, None]:
        while work.messages and not self._ended.is_set():
            message = work.messages[0]
            message.attempt = work.attempt
            given = _plain(message) if work.refused is None else message
            yield from park(self._queue, given, self._origin(message, work.error), work.refused)
            work.messages.popleft()
            work.refused, self.why_not = None, ""
            self._backoff.works()

    def _reduce(self, work: _Work, refused: Refused) -> None:
        work.refused = refused
        text = f"{work.messages[0]!r} is parked without its properties and headers: {refused.text}"
        warn(self._group, text)

    def _origin(self, message: StreamMessage, why: BaseException) -> dict[str, Any]:
        """The headers that a message gets; without a routing key or an exchange that is longer than any to publish to."""
        if isinstance(message, Undecodable):
            why = without_hint(message.error)
        cause = why.__cause__ if isinstance(why, BatchFailed) else None
        origin = {**origin_of(message, self._group, cause or why), OFFSET: message.offset}
        too_long = {name: None for name in (EXCHANGE, ROUTING_KEY) if not _is_short(origin[name])}
        return origin | too_long


def _plain(message: StreamMessage) -> StreamMessage:
    """The message with the properties and headers that AMQP 0-9-1 has room for; a stream holds others of AMQP 1.0."""
    decoded: dict[str, Any] = {"headers": _value(message.headers)}
    for name, value in message.properties.items():
        with suppress(InvalidValue):
            decoded[name] = checked(name, value)
    message._properties = decoded  # the attributes would change the others
    return message


def _value(value: Any) -> Any:
    """The value of a header: as text if AMQP 0-9-1 has no such value, or if the broker fails on it."""
    match value:
        case dict():
            return {name: _value(item) for name, item in value.items() if _is_short(name)}
        case list():
            return [_value(item) for item in value]
        case datetime() if value < EPOCH:
            return as_text(Milliseconds(milliseconds(value)))
        case int() if value >= 2**63:
            return as_text(value)
        case float() if not math.isfinite(value):
            return as_text(value)
        case UUID():
            return as_text(value)
    return value


def _is_short(text: str) -> bool:
    return len(text.encode()) <= MAX_SHORTSTR
