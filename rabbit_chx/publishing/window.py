"""The messages in flight on one channel, by the numbers under which the broker confirms them.

The broker numbers publishes from 1 and confirms each number once, alone or together with all before it. It returns a
message before it confirms it. A ``basic.return`` has no number, only exchange, key, body and properties; but messages are
returned in publish order, so the first that matches, after the previously returned one, is the right one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import pika

from rabbit_chx.publishing.messages import OutgoingMessage
from rabbit_chx.publishing.properties import PROPERTIES

_COMPARED: Final = PROPERTIES - {"headers"}

Confirm: TypeAlias = tuple[int, bool, bool]
"""Delivery tag, whether it confirms all tags up to this one, and whether it is an ack (otherwise a nack)."""


class Window:
    """The messages of one channel that were sent and are not confirmed yet."""

    def __init__(self) -> None:
        # In publish order; the first message has the number _first. None replaces a message that was confirmed
        # before its predecessors.
        self._sent: deque[OutgoingMessage | None] = deque()
        self._first = 1
        self._searched = 0  # messages up to this number are no candidates for the next return
        self.largest_body: int = 0
        """Bytes of the largest body sent since the window was last empty."""

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[OutgoingMessage]:
        return (message for message in self._sent if message is not None)

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        """Add messages that were sent, in this order."""
        largest = max([len(message.body) for message in messages], default=0)
        self.largest_body = max(self.largest_body, largest) if self._sent else largest
        self._sent.extend(messages)

    def settle(self, confirms: Iterable[Confirm]) -> tuple[list[OutgoingMessage], list[OutgoingMessage]]:
        """Remove the messages that were confirmed and return them, acked and nacked; ignore unknown tags."""
        sent = self._sent
        acked: list[OutgoingMessage] = []
        nacked: list[OutgoingMessage] = []
        for number, multiple, positive in confirms:
            settled = acked if positive else nacked
            position = number - self._first
            if multiple:
                count = len(sent) if number == 0 else max(min(position + 1, len(sent)), 0)
                settled.extend(message for message in islice(sent, count) if message is not None)
                for _ in range(count):
                    sent.popleft()
                self._first += count
            elif 0 <= position < len(sent):
                message = sent[position]
                if message is not None:
                    settled.append(message)
                    sent[position] = None
            while sent and sent[0] is None:
                sent.popleft()
                self._first += 1
        return acked, nacked

    def find_returned(self, matches: Callable[[OutgoingMessage], bool]) -> OutgoingMessage | None:
        """Find the returned message: the first match after the message that was returned before it.

        Identical messages cannot be distinguished, but it does not matter which of them is marked.
        """
        for position in range(max(self._searched - self._first + 1, 0), len(self._sent)):
            message = self._sent[position]
            if message is not None and matches(message):
                self._searched = self._first + position
                return message
        return None

    def abandon(self) -> list[OutgoingMessage]:
        """Empty the window when its channel is gone; return the unconfirmed messages in publish order."""
        left = list(self)
        self._sent.clear()
        self._first, self._searched = 1, 0
        return left


def find_returned(
    window: Window, method: Any, properties: pika.BasicProperties, body: bytes
) -> OutgoingMessage | None:
    """Find the message in flight that a ``basic.return`` is about.

    The broker may have changed the properties (it removes BCC, and interceptors add headers), so they are compared in
    three passes, each less strict.
    """
    exchange, key = method.exchange.encode(), method.routing_key.encode()
    encoded = b"".join(properties.encode())

    def same_content(message: OutgoingMessage) -> bool:
        return message.routing_key == key and message.body == body and message.exchange == exchange

    passes: tuple[Callable[[OutgoingMessage], bool], ...] = (
        lambda message: message.properties == encoded and same_content(message),
        lambda message: same_content(message) and not _contradict(message.properties, properties),
        same_content,
    )
    for matches in passes:
        message = window.find_returned(matches)
        if message is not None:
            return message
    return None


def _contradict(encoded: bytes, returned: pika.BasicProperties) -> bool:
    """Whether a header or property has two different values."""
    sent = pika.BasicProperties()
    sent.decode(encoded)
    return _differ(_set_in(sent), _set_in(returned)) or _differ(sent.headers or {}, returned.headers or {})


def _set_in(properties: pika.BasicProperties) -> dict[str, Any]:
    return {name: value for name in _COMPARED if (value := getattr(properties, name)) is not None}


def _differ(some: dict[str, Any], others: dict[str, Any]) -> bool:
    return any(some[name] != others[name] for name in some.keys() & others.keys())
