"""Lanes with ``order="key"``: messages of different keys are handled at the same time, and each key in order.

The messages of a key that are not handled form a *strand*; at most one of them is being handled. A marker of a drain or a
hold, a message without a key and a suspect one are alone: it waits for all earlier messages, and all later ones wait for it. This module
does no IO; its caller holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from copy import copy
from functools import cache
from typing import Any, Final

from rabbit_chx.consuming.markers import Kind, kind_of
from rabbit_chx.consuming.member.lanes import Lane, QueueLane
from rabbit_chx.consuming.messages import Delivery
from rabbit_chx.consuming.queues.keys import KeyFunction, KeySource
from rabbit_chx.consuming.settings import Settings

_ALONE: Final = object()
_LONG: Final = 4_096
"""Bytes of properties that are decoded again for the handler, and not kept until then."""


def lanes_of(settings: Settings, find_key: KeySource | None) -> Callable[[str], Lane]:
    """A function that makes the lane of a queue; it looks for the key when it makes the first one."""
    if find_key is None:
        return QueueLane
    # With "stop", a message that fails for good keeps all others waiting anyway.
    room = None if settings.on_failure == "stop" else settings.prefetch // 2
    found = cache(find_key)
    return lambda queue: KeyLane(queue, found(), settings.concurrency, room)


class Strand:
    """The messages of one key that are not handled, in order."""

    __slots__ = ("current", "paused", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Delivery] = deque()
        self.current: Delivery | None = None
        """The message that a worker, or the member, has."""
        self.paused = False
        """Whether the first message waits for a release or for its next attempt."""


class KeyLane(Lane):
    """One queue of a member.

    Args:
        queue: its name.
        key: gives the key of a message.
        workers: how many workers there are.
        room: how many messages may wait behind a paused one of the same key before it is tried at once; None for any number.
    """

    def __init__(self, queue: str, key: KeyFunction, workers: int, room: int | None) -> None:
        super().__init__(queue)
        self._key = key
        self._most = workers
        self._room = room
        self._workers = 0
        """How many workers have the lane or are about to take it."""
        self._at_work = 0
        """How many messages workers or the member have."""
        self._strands: dict[Hashable, Strand] = {}
        self._ready: deque[Strand] = deque()
        """Strands with a message to be handled."""
        self._behind: deque[Delivery] = deque()
        """Messages behind one that is alone, and that one itself until the earlier messages are handled."""
        self._alone = False
        self._open = 0
        """How many messages of the channel are in strands."""
        self._done = 0
        """The delivery tag up to which everything is handled."""
        self._done_after: set[int] = set()
        """The later tags that are handled."""
        self._to_acknowledge: list[int] = []

    def _begin_again(self) -> None:
        self._open = self._done = 0
        self._done_after.clear()
        self._to_acknowledge.clear()

    def _forget(self) -> None:
        self._behind.clear()
        self._ready.clear()
        self._alone, self._open = False, 0
        for strand in self._strands.values():
            strand.waiting.clear()
            strand.paused = False
        # What is being handled may be redelivered, and then waits until its handler has returned.
        self._strands = {key: each for key, each in self._strands.items() if each.current is not None}

    # ---- deliveries

    def _put(self, message: Delivery) -> bool:
        message.key = self._key_of(message)
        self._behind.append(message)
        self._place()
        return bool(self._more())

    def _key_of(self, message: Delivery) -> Hashable:
        # A copy decodes headers for itself: those of waiting messages could take 25 times their size.
        read = copy(message) if len(message.encoded) > _LONG else message
        kind = kind_of(read)
        if message.suspect:
            return _ALONE
        if kind is Kind.CANARY:
            return object()  # a key that no other message has
        if kind is not Kind.MESSAGE:
            return _ALONE
        try:
            key = self._key(read)
            hash(key)
        except Exception as error:  # noqa: BLE001 - a function of the program may raise anything
            message.key_error = error
            return _ALONE
        return key

    def _place(self) -> None:
        """Move messages into strands, up to one that must be alone."""
        while self._behind and not self._alone:
            message = self._behind[0]
            if message.key is _ALONE and self._open:
                return
            self._behind.popleft()
            self._alone = message.key is _ALONE
            self._open += 1
            strand = self._strands.setdefault(message.key, Strand())
            strand.waiting.append(message)
            if strand.paused and self.is_full_behind(message):
                strand.paused = False
                self._ready.append(strand)
            elif len(strand.waiting) == 1 and strand.current is None:
                self._ready.append(strand)

    def is_full_behind(self, message: Delivery) -> bool:
        """Whether so many messages of a key wait that other keys might soon get no message."""
        strand = self._strands.get(message.key)
        return self._room is not None and strand is not None and len(strand.waiting) > self._room

    def _more(self) -> int:
        """Count more workers: one for each ready strand, as far as no other worker is about to take it."""
        if self.leaving:
            return 0
        about_to_take = self._workers - self._at_work
        more = max(0, min(self._most - self._workers, len(self._ready) - about_to_take))
        self._workers += more
        return more

    # ---- what workers do

    def take(self) -> Delivery | None:
        """Take the next message of the key that has waited longest; without one, the worker has left the lane."""
        if self.leaving or not self._ready:
            self._workers -= 1
            return None
        return self._take_from(self._ready.popleft())

    def _take_from(self, strand: Strand) -> Delivery:
        strand.current = strand.waiting.popleft()
        self._at_work += 1
        return strand.current

    def leave(self) -> None:
        """Mark that a worker has left the lane."""
        self._workers -= 1

    def abandon(self) -> None:
        """Mark that a worker has left the lane in the middle of a message; no later message of its key is handled."""
        self._workers -= 1
        self._at_work -= 1

    def finish(self, message: Delivery, channel: Any, *, counted: bool = True, settled: bool = False) -> int:
        """Mark a message that was taken as handled; return how many more workers the lane needs."""
        self.handled += counted
        if self.channel is channel:
            self._open -= 1
            self._mark(message.tag, settled=settled)
            if message.key is _ALONE:
                self._alone = False
        self._leave_strand(message)
        if not self._behind:
            return 0
        self._place()
        return self._more()

    def _leave_strand(self, message: Delivery) -> None:
        """The next message of the key may be taken."""
        self._at_work -= 1
        strand = self._strands[message.key]
        strand.current = None
        if strand.waiting:
            self._ready.append(strand)
        else:
            del self._strands[message.key]

    def put_back(self, message: Delivery, channel: Any) -> bool:
        """Put a message that was taken back to its place."""
        if self.channel is channel:
            self._strands[message.key].waiting.appendleft(message)
        self._leave_strand(message)
        return self.channel is channel

    # ---- what the member does

    @property
    def is_idle(self) -> bool:
        """Whether no message is being handled."""
        return not self._at_work

    def _mark(self, tag: int, *, settled: bool) -> None:
        if settled:
            self.acked += 1
        else:
            self._to_acknowledge.append(tag)
        self._done_after.add(tag)
        while self._done + 1 in self._done_after:
            self._done += 1
            self._done_after.remove(self._done)

    def to_acknowledge(self) -> list[tuple[int, bool]]:
        """One tag for all messages up to the first that is not handled, and each later one."""
        tags = self._to_acknowledge
        self.acked += len(tags)
        self._to_acknowledge = []
        # The broker knows only tags that are not acknowledged yet.
        before = max((tag for tag in tags if tag <= self._done), default=0)
        after = [(tag, False) for tag in tags if tag > self._done]
        return [(before, True), *after] if before else after

    def pause(self, message: Delivery, channel: Any) -> tuple[bool, bool]:
        """Put a message that was taken back to its place, and wait before it; the worker goes on with other keys."""
        if not self.put_back(message, channel):
            return False, True
        self._ready.pop()
        self._strands[message.key].paused = True
        return True, True

    def resume(self, message: Delivery, channel: Any) -> bool:
        """Continue with a key."""
        strand = self._strands.get(message.key)
        if self.channel is not channel or strand is None or not strand.paused:
            return False
        strand.paused = False
        self._ready.append(strand)
        return bool(self._more())

    def release(self) -> Delivery | None:
        """Take the marker that holds the lane."""
        self.hold = None
        strand = self._strands.get(_ALONE)
        if self.leaving or strand is None or not strand.paused:
            return None
        strand.paused = False
        return self._take_from(strand)

    # ---- what others see

    @property
    def unfinished(self) -> Iterable[Delivery]:
        """The first message of each key."""
        for strand in self._strands.values():
            if strand.current is not None:
                yield strand.current
            elif strand.waiting:
                yield strand.waiting[0]

    @property
    def in_hand(self) -> int:
        """How many messages were delivered and are not handled."""
        return self._open + len(self._behind)
