"""What is in flight on one channel, and what the broker says of it.

The broker counts publishes from 1 and confirms each number once, alone or all up to one at a time; a returned
message comes back before its ack, and returned ones come in publish order. Values in, values out: this
file knows no clock, no thread and no socket.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rabbit_chx.publishing.frames import Message

__all__ = ["Confirm", "Window"]

Confirm: TypeAlias = tuple[int, bool, bool]
"""A number, whether all up to it are meant, and whether it is an ack; otherwise a nack. There are many of them."""


class Window:
    """The messages of one channel that are sent and not yet confirmed."""

    def __init__(self) -> None:
        # In publish order; the first one has the number _first. None stands where one was confirmed
        # ahead of those before it.
        self._sent: deque[Message | None] = deque()
        self._first = 1
        self._searched = 0  # all with a number up to this one are no candidates for the next return

    def __len__(self) -> int:
        return len(self._sent)

    def sent(self, messages: Iterable[Message]) -> None:
        """These have left, in this order."""
        self._sent.extend(messages)

    def settle(self, confirms: Iterable[Confirm]) -> tuple[list[Message], list[Message]]:
        """The messages that were acked, and those that were nacked; a number that is not known speaks of none."""
        sent = self._sent
        acked: list[Message] = []
        nacked: list[Message] = []
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

    def find_returned(self, matches: Callable[[Message], bool]) -> Message | None:
        """The message that came back: the first that matches behind the one that came back before it.

        Messages that are alike in everything cannot be told apart, but then neither can their fates.
        """
        for position in range(max(self._searched - self._first + 1, 0), len(self._sent)):
            message = self._sent[position]
            if message is not None and matches(message):
                self._searched = self._first + position
                return message
        return None

    def abandon(self) -> list[Message]:
        """All that was not confirmed when the channel died, in publish order; the next channel starts anew."""
        left = [message for message in self._sent if message is not None]
        self._sent.clear()
        self._first, self._searched = 1, 0
        return left
