"""The log messages of a member, on pika and aio-pika."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rabbit_chx.consuming.lanes import Lane
from rabbit_chx.consuming.settings import Settings
from rabbit_chx.errors import BrokerUnavailable

log = logging.getLogger("rabbit_chx.consuming")
log.addHandler(logging.NullHandler())


class Log:
    """The log of one member."""

    def __init__(self, settings: Settings) -> None:
        self._group = settings.name
        self._patience = settings.stop_timeout

    def warn(self, text: object) -> None:
        """Log any other problem."""
        log.warning("group %r: %s", self._group, text)

    def lost(self, error: BrokerUnavailable) -> None:
        """Log that the connection failed or was lost."""
        log.warning("group %r: %s; trying again", self._group, error)

    def standing_by(self, seats: int) -> None:
        """Log that no seat is free."""
        log.info("group %r: all %d seats are taken; standing by", self._group, seats)

    def consuming(self, queues: int, seat: int) -> None:
        """Log that the member has begun to consume."""
        log.info("group %r: consuming %d queues in seat %d", self._group, queues, seat)

    def moving(self, seat: int, lower: int) -> None:
        """Log that the member moves to a lower seat."""
        log.info("group %r: moving from seat %d to seat %d", self._group, seat, lower)

    def held(self, queue: str) -> None:
        """Log that the member has reached a marker that holds a queue."""
        log.info("group %r: queue %r is held", self._group, queue)

    def released(self, queue: str) -> None:
        """Log that the hold on a queue was deleted."""
        log.info("group %r: queue %r is released", self._group, queue)

    def deleted(self, queue: str) -> None:
        """Log that a queue was deleted."""
        log.info("group %r: queue %r was deleted", self._group, queue)

    def cancelled(self, queue: str) -> None:
        """Log that the broker has cancelled a consumer."""
        text = "group %r: the broker cancelled the consumer of queue %r; did the handler exceed consumer_timeout?"
        log.warning(text, self._group, queue)

    def closed(self, queue: str) -> None:
        """Log that the broker has closed a channel."""
        text = "group %r: the broker closed the channel of queue %r; did the handler exceed consumer_timeout?"
        log.warning(text, self._group, queue)

    def unreadable(self, error: Exception) -> None:
        """Log that the queues of the exchange could not be read."""
        log.warning("group %r: the queues could not be read again: %s", self._group, error)

    def late(self, lanes: Iterable[Lane]) -> None:
        """Log which of these lanes still have a running handler when the member ends."""
        late = [lane.queue for lane in lanes if not lane.is_idle]
        if late:
            log.warning(
                "group %r: the handler did not return within %g seconds of the stop; the broker will redeliver its messages "
                "from %s",
                self._group,
                self._patience,
                ", ".join(map(repr, late)),
            )
