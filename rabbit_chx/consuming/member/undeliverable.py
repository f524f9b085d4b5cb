"""Find the queue with a message that the broker cannot deliver: the connection ends each time it tries.

RabbitMQ 4 cannot convert some properties, which a publisher can set over AMQP 1.0, to AMQP 0-9-1, and closes the connection. It
sends large headers in a frame that is larger than it has agreed to, and the member closes the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from pika.exceptions import InvalidFrameError, StreamLostError

from rabbit_chx.broker.commands import INTERNAL_ERROR

_SECONDS: Final = 1.0
"""How long the member waits after each queue, for the broker to close the connection."""
_TIMES: Final = 3
_CANNOT_CONVERT: Final = (
    "the broker failed (541 INTERNAL_ERROR)",
    "what RabbitMQ cannot convert, such as a property of type uuid or char, or a content type above 255 bytes",
)
_TOO_LARGE: Final = ("the broker sent a larger frame than agreed", "headers of this size")


class Undeliverable:
    """The connections of a member that have ended at a delivery, one after the other."""

    def __init__(self) -> None:
        self._suspected = False
        self._tried = self._found = ""
        self._times = 0

    @contextmanager
    def consuming(self, queue: str, wait: Callable[[float], bool]) -> Iterator[None]:
        """Consume a queue in the block; after such an end, wait until the broker has delivered its first messages."""
        self._tried = queue if self._suspected else ""
        yield
        until = monotonic() + _SECONDS * self._suspected
        while (left := until - monotonic()) > 0 and wait(left):
            pass
        self._tried = ""

    def why(self, error: Exception) -> str:
        """Take note of the end of a connection; return the cause, once it is known."""
        code = getattr(error, "reply_code", getattr(error, "code", 0))
        # pika keeps only the text of the first error.
        too_large = isinstance(error, StreamLostError) and InvalidFrameError.__name__ in str(error)
        self._suspected = code == INTERNAL_ERROR or too_large
        queue, self._tried = self._tried if self._suspected else "", ""
        self._times = self._times + 1 if queue == self._found else 1
        self._found = queue
        if not queue or self._times < _TIMES:
            return ""
        failed, cause = _TOO_LARGE if too_large else _CANNOT_CONVERT
        return (
            f"{failed} {self._times} times in a row when it delivered from queue {queue!r}. Probably a publisher of AMQP 1.0 has "
            f"set {cause}. To remove the message, set a policy with a delivery limit for the queue, and prefetch=1 for the group"
        )
