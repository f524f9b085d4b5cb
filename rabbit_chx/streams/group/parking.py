"""Failed messages of a stream, copied to a queue over AMQP, each confirmed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

from pika import BlockingConnection
from pika.exceptions import AMQPError

from rabbit_chx.broker.applying.pika_driver import PikaDriver
from rabbit_chx.broker.applying.protocol import Lost, Refused
from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, Needs, why_denied
from rabbit_chx.consuming.failures import PARKED, origin_of
from rabbit_chx.consuming.logs import warn
from rabbit_chx.consuming.queues.queues import exists, park
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.message import StreamMessage

_AGAIN_AFTER: Final = 2.0
_OFFSET: Final = f"{PARKED}offset"


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

    def check(self) -> None:
        """Check that the queue exists."""
        with self._connect() as connection:
            if not PikaDriver(connection).run(exists(self._queue)):
                raise InvalidValue("parking_queue", self._queue, "an existing queue")

    def begin(
        self,
        messages: Iterable[StreamMessage],
        error: BaseException,
        attempt: int,
        then: Callable[[BaseException | None], object],
    ) -> None:
        """Park messages, and call ``then`` in another thread: with an error if another attempt would fail, too."""
        work = (list(messages), error, attempt, then)
        threading.Thread(target=self._park, args=work, name="rabbit-chx parking", daemon=True).start()

    def _park(self, messages: list[StreamMessage], why: BaseException, attempt: int, then: Any) -> None:
        failed: BaseException | None = None
        while messages and failed is None and not self._ended.is_set():
            try:
                with self._connect() as connection:
                    driver = PikaDriver(connection)
                    while messages:
                        self._one(driver, messages[0], why, attempt)
                        del messages[0]
            except Refused as refused:
                needs = Needs(write={("exchange", DEFAULT_EXCHANGE), ("queue", self._queue)})
                words = why_denied(refused.text, needs) or refused.text
                failed = BrokerUnavailable(words, permanent=True)
            except InvalidValue as error:
                failed = error
            except (AMQPError, OSError, Lost, BrokerUnavailable) as error:
                if isinstance(error, BrokerUnavailable) and error.permanent:
                    failed = error
                else:
                    warn(self._group, f"a message could not be parked: {error}; trying again")
                    self._ended.wait(_AGAIN_AFTER)
        if failed is not None or not messages:
            then(failed)

    def _one(self, driver: PikaDriver, message: StreamMessage, why: BaseException, attempt: int) -> None:
        message.attempt = attempt
        headers = {**origin_of(message, self._group, why), _OFFSET: message.offset}
        driver.run(park(self._queue, _plain(message), headers))


def _plain(message: StreamMessage) -> StreamMessage:
    """The message with its timestamp as AMQP 0-9-1 has it."""
    decoded = dict(message._properties)  # noqa: SLF001 - the attributes would change the others
    if isinstance(moment := decoded.get("timestamp"), datetime):
        decoded["timestamp"] = int(moment.timestamp())
    message._properties = decoded  # noqa: SLF001
    return message
