"""The messages in flight on one channel, by their numbers for confirms, and which of them the broker returned or refused.

The broker numbers publishes from 1 and confirms each number once, alone or together with all before it. It returns a
message before it confirms it. A ``basic.return`` has no number, only exchange, key, body and properties; but messages are
returned in publish order, so the first that matches, after the previously returned one, is the right one.

Properties are compared as encoded: pika decodes a double without its fraction, and would encode it as an integer.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, product
from typing import Any, Final, TypeAlias

from rabbit_chx.base.text import text_of_reply
from rabbit_chx.publishing.messages import OutgoingMessage
from rabbit_chx.publishing.properties import split_properties

Confirm: TypeAlias = tuple[int, bool, bool]
"""Delivery tag, whether it confirms all tags up to this one, and whether it is an ack (otherwise a nack)."""

_MOST: Final = 10_000
"""How many numbers a window holds, confirmed or not, before it looks which of them it needs."""
# The words of rabbit_misc:not_found/1, rabbit_access_control:check_resource_access/4 and rabbit_channel:check_msg_size/3.
_EXCHANGE: Final = re.compile(
    "NOT_FOUND - no exchange '(.*)' in vhost|ACCESS_REFUSED - .*access to exchange '(.*)' in vhost", re.DOTALL
).match
_SIZE: Final = re.compile(r"PRECONDITION_FAILED - message size (\d+) is larger than").match


class Window:
    """The messages of one channel that were sent and are not confirmed yet."""

    def __init__(self) -> None:
        # In publish order; the first message has the number _first. None replaces a message that was confirmed
        # before its predecessors.
        self._sent: deque[OutgoingMessage | None] = deque()
        self._first = 1
        # The messages before these, by number: the broker has confirmed many later ones, and may never confirm these.
        self._late: dict[int, OutgoingMessage] = {}
        self._most = _MOST
        self._searched = 0  # the number of the message that was found last
        self.largest_body: int = 0
        """Bytes of the largest body sent since the window was last empty."""

    def __len__(self) -> int:
        return len(self._late) + len(self._sent)

    def __iter__(self) -> Iterator[OutgoingMessage]:
        return chain(self._late.values(), filter(None, self._sent))

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        """Add messages that were sent, in this order."""
        sent = self._sent
        largest = max([len(message.body) for message in messages], default=0)
        self.largest_body = max(self.largest_body, largest) if sent or self._late else largest
        sent.extend(messages)
        if len(sent) > self._most:
            self._set_aside()

    def _set_aside(self) -> None:
        """Drop the numbers of confirmed messages if most are: behind one that the broker never confirms, they would pile up."""
        sent, unconfirmed = self._sent, len(list(filter(None, self._sent)))
        while len(sent) > 2 * unconfirmed:
            message = sent.popleft()
            if message is not None:
                self._late[self._first] = message
            self._first += 1
        self._most = max(2 * len(sent), _MOST)

    def settle(self, confirms: Iterable[Confirm]) -> tuple[list[OutgoingMessage], list[OutgoingMessage]]:
        """Remove the messages that were confirmed and return them, acked and nacked; ignore unknown tags."""
        sent = self._sent
        acked: list[OutgoingMessage] = []
        nacked: list[OutgoingMessage] = []
        for number, multiple, positive in confirms:
            settled = acked if positive else nacked
            position = number - self._first
            if multiple:
                if self._late:
                    settled += self._late_up_to(number)
                count = len(sent) if number == 0 else max(min(position + 1, len(sent)), 0)
                settled += filter(None, [sent.popleft() for _ in range(count)])
                self._first += count
            elif 0 <= position < len(sent):
                message = sent[position]
                if message is not None:
                    settled.append(message)
                    sent[position] = None
            elif number in self._late:
                settled.append(self._late.pop(number))
            while sent and sent[0] is None:
                sent.popleft()
                self._first += 1
        return acked, nacked

    def _late_up_to(self, number: int) -> list[OutgoingMessage]:
        """Remove and return the messages up to a number that were set aside, or all for 0."""
        late = self._late
        return [late.pop(each) for each in list(late) if each <= number or number == 0]

    def find_returned(self, *passes: Callable[[OutgoingMessage], bool]) -> OutgoingMessage | None:
        """Find the returned message: in the first pass that has one, the first match after the previously found message.

        Identical messages cannot be distinguished, but it does not matter which of them is marked. If the previous return
        was taken for that of a later, similar message, the match may be before it. A message before a confirmed one is returned
        no more, so none of those that were set aside.
        """
        after = max(self._searched - self._first + 1, 0)
        for positions, matches in product((range(after, len(self._sent)), range(after)), passes):
            for position in positions:
                message = self._sent[position]
                if message is not None and not message.returned and matches(message):
                    self._searched = self._first + position
                    return message
        return None

    def abandon(self) -> list[OutgoingMessage]:
        """Empty the window when its channel is gone; return the unconfirmed messages in publish order."""
        left = list(self)
        self._sent.clear()
        self._late.clear()
        self._first, self._searched = 1, 0
        return left


def find_returned(window: Window, method: Any, properties: bytes, body: bytes) -> OutgoingMessage | None:
    """Find the message in flight that a ``basic.return`` is about.

    The broker may have changed the properties (it removes BCC, and interceptors add or overwrite headers), so they are
    compared in three passes, each less strict.
    """
    exchange, key = _as_sent(method.exchange), _as_sent(method.routing_key)
    fields = split_properties(properties)

    def same_content(message: OutgoingMessage) -> bool:
        return message.routing_key == key and message.body == body and message.exchange == exchange

    return window.find_returned(
        lambda message: message.properties == properties and same_content(message),
        lambda message: same_content(message) and not _differ(split_properties(message.properties), fields),
    ) or window.find_returned(same_content)


def _as_sent(name: str | bytes) -> bytes:
    """Return a name as bytes; pika decodes it only if it is UTF-8."""
    return name.encode() if isinstance(name, str) else name


def _differ(some: dict[str, bytes], others: dict[str, bytes]) -> bool:
    """Whether a property or header has two different values."""
    return any(some[name] != others[name] for name in some.keys() & others.keys())


def refused_messages(text: str, in_flight: Iterable[OutgoingMessage]) -> list[OutgoingMessage]:
    """Return the messages to which the reply applies with which the broker closed the channel; none if it does not say which.

    The reply names no message, only what was wrong. After such an error the broker ignores what follows on the channel, so what
    was in flight is sent again, except the message that it refused.
    """
    text = text_of_reply(text)
    exchange, size = _EXCHANGE(text), _SIZE(text)
    if exchange:
        name = (exchange[1] or exchange[2]).encode()
        return [message for message in in_flight if message.exchange == name]
    if size:
        return [message for message in in_flight if len(message.body) == int(size[1])]
    return []
