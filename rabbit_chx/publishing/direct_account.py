"""The books of a publisher whose messages go straight to the queues.

The queue is named when a message is taken in, in bulk; the message is turned towards it when it leaves. So a
message that has not left, or has come back, when the route is given up, leaves through the exchange as any other.
Of those that went straight and have no outcome yet the original is kept.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import pika

from rabbit_chx.errors import InvalidValue
from rabbit_chx.publishing.account import Account, Outcome
from rabbit_chx.publishing.direct_wire import KEY_HEADER, add_key, cut
from rabbit_chx.publishing.frames import FRAME_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from rabbit_chx.publishing.direct import DirectRoute
    from rabbit_chx.publishing.frames import Message

    _Parts: TypeAlias = "tuple[bytes, bytes, bytes]"
    """Exchange, routing key and properties, as they were taken in."""

__all__ = ["DirectAccount"]

# As they stand in an encoded header table. CC and BCC are hashed along by one exchange and are routed on their
# own by any; the third is ours.
_FORBIDDEN: Final = {bytes([len(name)]) + name.encode(): name for name in ("CC", "BCC", KEY_HEADER)}


class DirectAccount(Account):
    """Shared by the caller's thread, the connection's and the one that watches the topology."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._turn = threading.Lock()  # over all that follows
        self._route: DirectRoute | None = None
        self._exchange = b""
        self._most_header = 0
        self._queues: dict[int, bytes] = {}  # by row, of messages that have not left
        self._straight: dict[int, _Parts] = {}  # by row, of those that left and have no outcome
        self._after = 0  # behind the highest row that ever went straight
        self._checked: bytes | None = None
        self.look: threading.Event = threading.Event()
        """There is a reason to look at the topology now."""

    # -- the watcher's side ------------------------------------------------------------------------

    def go_straight(self, route: DirectRoute, exchange: bytes, *, frame_max: int) -> None:
        """From now on, what is taken in for this exchange goes to the queues that the route names."""
        with self._turn:
            self._route, self._exchange = route, exchange
            self._most_header = frame_max - FRAME_OVERHEAD - 12

    def first_in_doubt(self) -> int:
        """The lowest row that the broker may route from now on; those below it that went straight are settled."""
        with self._turn:
            return min(self._straight, default=self._after)

    @property
    def some_in_doubt(self) -> bool:
        """Whether some went straight and have no outcome."""
        return bool(self._straight)

    def go_through_exchange(self, first: int) -> range:
        """Give up the route, and return the rows from the first on that may have gone straight."""
        with self._turn:
            self._route = None
            self._queues.clear()
            return range(first, max(self._after, first))

    # -- the caller's side -------------------------------------------------------------------------

    def take_in(self, messages: Sequence[Message], wake: Callable[[], object]) -> None:
        """As any account does, after finding the queue of each message."""
        route = self._route
        if route is not None:
            own = [message for message in messages if message.exchange == self._exchange]
            self._refuse_copies(own)
            queues = route.queues(own)
            with self._turn:
                if self._route is route:
                    self._queues.update(zip((message.row for message in own), queues, strict=True))
        super().take_in(messages, wake)

    def _refuse_copies(self, messages: Iterable[Message]) -> None:
        """Of a batch with the same properties, the first one is looked at."""
        for message in messages:
            properties = message.properties
            if properties is self._checked:
                continue
            if any(name in properties for name in _FORBIDDEN):
                decoded = pika.BasicProperties()
                decoded.decode(properties)
                if found := sorted(set(_FORBIDDEN.values()) & set(decoded.headers or {})):
                    raise InvalidValue(
                        f"headers in row {message.row}",
                        ", ".join(found),
                        "none of these where messages go straight to the queues",
                        "Leave them out, or publish through the exchange",
                    )
            self._checked = properties

    # -- the connection's side ---------------------------------------------------------------------

    def to_send(self, most: int, most_bytes: int) -> list[Message]:
        """The next messages to leave, turned to where they go now."""
        messages = super().to_send(most, most_bytes)
        with self._turn:
            if self._route is not None:
                self._turn_to_queues(messages)
            elif self._straight:
                for message in messages:
                    self._turn_back(message)
        return messages

    def _turn_to_queues(self, messages: Sequence[Message]) -> None:
        properties: bytes | None = None
        for message in messages:
            queue = self._queues.pop(message.row, None)
            if queue is None:  # meant for another exchange, or it went straight before
                continue
            if message.properties is not properties:
                properties = message.properties
                parts = cut(properties)
            with_key = add_key(parts, message.routing_key)
            if len(with_key) > self._most_header:  # there is no room for one more header
                continue
            self._straight[message.row] = (message.exchange, message.routing_key, properties)
            message.exchange, message.routing_key, message.properties = b"", queue, with_key
            self._after = max(self._after, message.row + 1)

    def _turn_back(self, message: Message) -> bool:
        original = self._straight.pop(message.row, None)
        if original is not None:
            message.exchange, message.routing_key, message.properties = original
        return original is not None

    def put_back(self, messages: Iterable[Message], *, first: bool) -> None:
        """As any account does; what a queue did not take is a reason to look at the topology.

        What came back goes through the exchange, whatever that look finds: it was not enqueued, and the exchange
        may have another way for it (the alternate exchange of a slot whose queue is gone).
        """
        messages = list(messages)
        with self._turn:
            for message in messages:
                if message.verdict and message.row in self._straight:
                    self.look.set()
                    if message.verdict is Outcome.RETURNED:
                        self._turn_back(message)
        super().put_back(messages, first=first)

    def settle(self, messages: Sequence[Message], outcome: Outcome) -> None:
        """As any account does; a failure names the exchange and the key that the caller gave."""
        with self._turn:
            if outcome is Outcome.CONFIRMED:
                for message in messages:
                    self._straight.pop(message.row, None)
            else:
                for message in messages:
                    queue = message.routing_key
                    if self._turn_back(message):
                        message.reply += f" (sent straight to queue {queue.decode('utf-8', 'replace')!r})"
        super().settle(messages, outcome)
