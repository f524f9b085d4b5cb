"""Find the queue with a message that the broker cannot deliver: it closes the connection each time it tries.

RabbitMQ 4 cannot convert a property of type uuid or char, which a publisher can set over AMQP 1.0, to AMQP 0-9-1.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from rabbit_chx.broker.commands import INTERNAL_ERROR

_SECONDS: Final = 1.0
"""How long the member waits after each queue, for the broker to close the connection."""
_TIMES: Final = 3


class Undeliverable:
    """The connections of a member that the broker has closed with 541, one after the other."""

    def __init__(self) -> None:
        self._suspected = False
        self._tried = self._found = ""
        self._times = 0

    def consumed(self, queue: str, wait: Callable[[float], object]) -> None:
        """After a 541, wait until the broker has delivered the first messages of a queue, before the next one is consumed."""
        if not self._suspected:
            return
        self._tried = queue
        until = monotonic() + _SECONDS
        while (left := until - monotonic()) > 0:
            wait(left)
        self._tried = ""

    def why(self, error: Exception) -> str:
        """Take note of the end of a connection; return the cause, once it is known."""
        code = getattr(error, "reply_code", getattr(error, "code", 0))
        self._suspected = code == INTERNAL_ERROR
        queue, self._tried = self._tried if self._suspected else "", ""
        self._times = self._times + 1 if queue == self._found else 1
        self._found = queue
        if not queue or self._times < _TIMES:
            return ""
        return (
            f"the broker failed {self._times} times in a row (541 INTERNAL_ERROR) when it delivered from queue {queue!r}. Probably a "
            "publisher of AMQP 1.0 has set a property of type uuid or char, which RabbitMQ cannot convert. A policy with a delivery "
            "limit takes the message out: docs/consuming-production.md, Messages that the broker cannot deliver"
        )
