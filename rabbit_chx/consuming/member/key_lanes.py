"""Lanes with ``order="key"``: messages of different keys are handled at the same time, and each key in order.

Of each key, only the first message that is not handled can be handled. A marker of a drain or a hold, a message without a key
and a suspect one are alone: it waits for all earlier messages, and all later ones wait for it. This module does no IO; its caller
holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from functools import cache
from typing import Any, Final

from rabbit_chx.consuming.member.lanes import Lane, QueueLane
from rabbit_chx.consuming.queues.sources import KeyFunction, KeySource
from rabbit_chx.working.markers import Kind, kind_of
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.settings import Settings

_ALONE: Final = object()
_LONG: Final = 4_096
"""Bytes of properties that are decoded again for the handler, and not kept until then."""


def lanes_of(settings: Settings, find_key: KeySource | None) -> Callable[[str], Lane]:
    """A function that makes the lane of a queue; it looks for the key when it makes the first one."""
    if find_key is None:
        return QueueLane
    many = max(1, settings.prefetch // 2)
    # With "stop", a message that fails for good keeps all others waiting anyway.
    room = None if settings.on_failure == "stop" else many
    found = cache(find_key)
    return lambda queue: KeyLane(queue, found(), settings.concurrency, room, many)


class KeyLane(Lane):
    """One queue of a member.

    Args:
        queue: its name.
        key: gives the key of a message.
        workers: how many workers there are.
        room: behind a paused message, so many of the same key cause it to be tried at once; None for no limit.
        many: so many messages behind an unfinished one are acknowledged at once, each by itself.
    """

    def __init__(self, queue: str, key: KeyFunction, workers: int, room: int | None, many: int = 1) -> None:
        super().__init__(queue)
        self._key = key
        self._most = workers
        self._room = room
        self._many = many
        self._workers = 0
        """How many workers have the lane or are about to take it."""
        self._at_work = 0
        """How many messages workers or the member have."""
        self._first: dict[Hashable, Delivery] = {}
        """The first message of each key: ready, paused, or in the hands of a worker or the member."""
        self._later: dict[Hashable, deque[Delivery]] = {}
        """The later messages of a key, if there are any."""
        self._ready: deque[Delivery] = deque()
        """The first messages that can be handled now."""
        self._paused: set[Hashable] = set()
        """Keys whose first message waits for a release or for its next attempt."""
        self._behind: deque[Delivery] = deque()
        """Messages behind one that is alone, and that one itself until the earlier messages are handled."""
        self._alone = False
        """Whether the first message of a key is alone."""
        self._finished = 0
        """How many deliveries of the channel are handled."""
        self._done = 0
        """The delivery tag up to which everything is handled."""
        self._last = 0
        """The last of these tags, if it is not acknowledged."""
        self._later_tags: set[int] = set()
        """The later tags that are handled: ever more while one message takes long."""
        self._unacknowledged: dict[int, None] = {}
        """Those of the later tags that are not acknowledged, in the order in which they were handled."""

    def _begin_again(self) -> None:
        self._finished = self._done = self._last = 0
        self._later_tags.clear()
        self._unacknowledged.clear()

    def _forget(self) -> None:
        # What is being handled may be redelivered, and then waits until its handler has returned.
        waiting = self._paused.union(message.key for message in self._ready)
        self._first = {key: message for key, message in self._first.items() if key not in waiting}
        for each in (self._later, self._ready, self._paused, self._behind):
            each.clear()
        self._alone = False

    # ---- deliveries

    def read(self, messages: Sequence[Delivery]) -> None:
        """Find the keys of deliveries."""
        for message in messages:
            message.key = self._key_of(message)

    def _put(self, messages: Sequence[Delivery]) -> int:
        for message in messages:
            if self._behind or self._alone or message.key is _ALONE:
                self._behind.append(message)
            else:
                self._add(message)
        if self._behind:
            self._place()
        return self._more()

    def _key_of(self, message: Delivery) -> Hashable:
        # A copy decodes headers for itself: those of waiting messages could take 25 times their size.
        read = copy(message) if len(message.encoded) > _LONG else message
        if message.may_be_ours and kind_of(read) is not Kind.MESSAGE:
            return _ALONE
        try:
            key = self._key(read)
            hash(key)
        except Exception as error:  # noqa: BLE001 - a function of the program may raise anything
            message.key_error = error
            return _ALONE
        return _ALONE if message.suspect else key

    def _place(self) -> None:
        """Add messages to their keys, up to one that must be alone."""
        while self._behind and not self._alone:
            message = self._behind[0]
            if message.key is _ALONE:
                # A handler may still have the same message from an earlier channel.
                if self._at_work or self.in_hand > len(self._behind):
                    return
                self._alone = True
            self._add(self._behind.popleft())

    def _add(self, message: Delivery) -> None:
        key = message.key
        if self._first.setdefault(key, message) is message:
            self._ready.append(message)
            return
        self._later.setdefault(key, deque()).append(message)
        if key in self._paused and self.is_full_behind(message):
            self._continue(key)

    def _continue(self, key: Hashable) -> None:
        self._paused.remove(key)
        self._ready.append(self._first[key])

    def is_full_behind(self, message: Delivery) -> bool:
        """Whether so many messages of a key wait that other keys might soon get no message."""
        return self._room is not None and len(self._later.get(message.key, ())) >= self._room

    def _more(self) -> int:
        """Count more workers: one for each ready message, as far as no other worker is about to take it."""
        if self.leaving or self._workers == self._most:
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
        self._at_work += 1
        return self._ready.popleft()

    def leave(self) -> None:
        """Mark that a worker has left the lane."""
        self._workers -= 1

    def abandon(self) -> None:
        """Mark that a worker has left the lane in the middle of a message; no later message of its key is handled."""
        self._workers -= 1
        self._at_work -= 1

    def finish(self, message: Delivery, channel: Any, *, settled: bool = False) -> int:
        """Mark a message that was taken as handled; return how many more workers the lane needs."""
        self.handled += 1
        if self.channel is channel:
            self._mark(message.tag, settled=settled)
            if message.key is _ALONE:
                self._alone = False
        self._end(message.key)
        if not self._behind:
            return 0
        self._place()
        return self._more()

    def _end(self, key: Hashable) -> None:
        """The next message of the key can be handled."""
        self._at_work -= 1
        if key not in self._later:
            del self._first[key]
            return
        later = self._later[key]
        self._first[key] = following = later.popleft()
        self._ready.append(following)
        if not later:
            del self._later[key]

    def put_back(self, message: Delivery, channel: Any) -> bool:
        """Put a message that was taken back to its place."""
        if self.channel is not channel:
            self._end(message.key)
            self._place()
            return False
        self._at_work -= 1
        self._ready.append(message)
        return True

    # ---- what the member does

    @property
    def is_idle(self) -> bool:
        """Whether no message is being handled."""
        return not self._at_work

    def _mark(self, tag: int, *, settled: bool) -> None:
        self._finished += 1
        self.acked += settled
        if tag != self._done + 1:
            self._later_tags.add(tag)
            if not settled:
                self._unacknowledged[tag] = None
            return
        self._done = tag
        if not settled:
            self._last = tag
        while self._later_tags and self._done + 1 in self._later_tags:
            self._done += 1
            self._later_tags.remove(self._done)
            if self._done in self._unacknowledged:
                self._last = self._done  # the broker knows only tags that are not acknowledged yet
                del self._unacknowledged[self._done]

    def to_acknowledge(self, *, lazily: bool = False) -> list[tuple[int, bool]]:
        """One tag for all messages up to the first that is not handled, and each later one; lazily, only if these are many."""
        found = [(self._last, True)] if self._last else []
        self._last = 0
        if len(self._unacknowledged) >= (self._many if lazily else 1):
            found += [(tag, False) for tag in self._unacknowledged]
            self._unacknowledged.clear()
        self.acked = self._finished - len(self._unacknowledged)
        return found

    def pause(self, message: Delivery, channel: Any) -> tuple[bool, bool]:
        """Put a message that was taken back to its place, and wait before it; the worker goes on with other keys."""
        if not self.put_back(message, channel):
            return False, True
        self._ready.pop()
        self._paused.add(message.key)
        return True, True

    def resume(self, message: Delivery, channel: Any) -> bool:
        """Continue with a key."""
        if self.channel is not channel or message.key not in self._paused:
            return False
        # A message that was tried early, because others waited, may be handled by now.
        if self._first[message.key] is not message:
            return False
        self._continue(message.key)
        return bool(self._more())

    def release(self) -> Delivery | None:
        """Take the marker that holds the lane."""
        self.hold = None
        if self.leaving or _ALONE not in self._paused:
            return None
        self._paused.remove(_ALONE)
        self._at_work += 1
        return self._first[_ALONE]

    # ---- what others see

    @property
    def unfinished(self) -> Iterable[Delivery]:
        """The first message of each key."""
        return self._first.values()

    @property
    def in_hand(self) -> int:
        """How many messages were delivered and are not handled."""
        return 0 if self.channel is None else self._delivered - self._finished
