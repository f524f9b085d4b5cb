"""Failed messages of a stream, copied to a queue over AMQP, each confirmed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from pika import BlockingConnection
from pika.exceptions import AMQPError

from rabbit_chx.broker.applying.pika_driver import PikaDriver
from rabbit_chx.broker.applying.protocol import Command, Lost, Refused
from rabbit_chx.consuming.failures import EXCHANGE, OFFSET, ROUTING_KEY, origin_of
from rabbit_chx.consuming.logs import warn
from rabbit_chx.consuming.queues.permissions import why_ended
from rabbit_chx.consuming.queues.queues import check_parking_queue, park
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.fields import EPOCH, milliseconds
from rabbit_chx.hashing import MAX_SHORTSTR
from rabbit_chx.message import StreamMessage
from rabbit_chx.message_fields import checked
from rabbit_chx.streams.group.batch import BatchFailed
from rabbit_chx.streams.messages.amqp10 import Milliseconds, as_text
from rabbit_chx.text import described

_AGAIN_AFTER: Final = 2.0


class Parking:
    """Parks messages, each time in a new thread with a connection of its own: failures are rare.

    Args:
        group: the name of the group.
        queue: where the messages are parked.
        connect: opens a connection.
        ended: set when the member ends.
    """

    def __init__(
        self, group: str, queue: str, connect: Callable[[], BlockingConnection], ended: threading.Event
    ) -> None:
        self._group = group
        self._queue = queue
        self._connect = connect
        self._ended = ended
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
    ) -> None:
        """Park messages, and call ``then`` in another thread, with the offset of the first one that is left, if any, and an error.

        An error ends the member: the operator has to mend what it says. A member that ends may leave some without one.
        """
        work = (list(messages), error, attempt, then)
        threading.Thread(target=self._park, args=work, name="rabbit-chx parking", daemon=True).start()

    def _park(self, messages: list[StreamMessage], why: BaseException, attempt: int, then: Any) -> None:
        failed: BaseException | None = None
        try:
            self._park_all(messages, why, attempt)
        except BaseException as error:  # noqa: BLE001 - without an answer, the stream would wait for ever
            failed = error
        then(messages[0].offset if messages else None, failed)

    def _park_all(self, messages: list[StreamMessage], why: BaseException, attempt: int) -> None:
        """Park messages, and remove each from the list, until all are parked or the member ends.

        Whatever fails because of the contents of a message has it parked without its properties and headers.
        """
        refused: Refused | None = None
        while messages and not self._ended.is_set():
            try:
                with self._connect() as connection:
                    driver = PikaDriver(connection)
                    while messages:
                        messages[0].attempt = attempt
                        driver.run(self._commands(messages[0], why, refused))
                        refused, self.why_not = None, ""
                        del messages[0]
            except (Refused, AMQPError, OSError, Lost, BrokerUnavailable) as error:
                ended = why_ended(error)
                if ended.permanent:
                    raise BrokerUnavailable(
                        f"a message could not be parked: {ended}", permanent=True
                    ) from None
                if isinstance(error, Refused) and refused is None:
                    refused = self._reduced(messages[0], error)
                else:
                    self.why_not = f"a message could not be parked: {ended}"
                    warn(self._group, f"{self.why_not}; trying again")
                    self._ended.wait(_AGAIN_AFTER)
            except RabbitChxError:
                raise
            except Exception as error:
                if refused is not None:
                    raise
                refused = self._reduced(messages[0], Refused(0, described(error)))

    def _commands(
        self, message: StreamMessage, why: BaseException, refused: Refused | None
    ) -> Generator[Command, Any, None]:
        given = _plain(message) if refused is None else message
        return park(self._queue, given, self._origin(message, why), refused)

    def _reduced(self, message: StreamMessage, refused: Refused) -> Refused:
        warn(self._group, f"{message!r} is parked without its properties and headers: {refused.text}")
        return refused

    def _origin(self, message: StreamMessage, why: BaseException) -> dict[str, Any]:
        """The headers that a message gets; without a routing key or an exchange that is longer than any to publish to."""
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
    message._properties = decoded  # noqa: SLF001 - the attributes would change the others
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
