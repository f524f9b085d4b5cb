"""The threads or tasks that run the handler of a stream group, and what they tell the program between messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from time import monotonic
from typing import Any

from rabbit_chx.streams.group.batch import StreamBatch
from rabbit_chx.streams.group.lanes import Change, StreamLane
from rabbit_chx.streams.group.settings import StreamSettings
from rabbit_chx.working.loop_workers import LoopWorkers
from rabbit_chx.working.retries import check_returned
from rabbit_chx.working.workers import Progress, Taken, Workers


class _OfStreams(Progress):
    """What is different with streams: no markers, and changes are told even to a member that stops."""

    def next_of(self, lane: StreamLane, handled: Taken | None = None) -> Taken | None:  # type: ignore[override]  # it has no other lanes
        """Mark what was handled, if anything, and take the next message, batch or change; None if the worker is done."""
        with self.lock:
            if handled is not None:
                lane.finish(handled[1], handled[0])
            # A broker that is silent for an interval may have given the stream to another member.
            stop = self.stopping.is_set() or monotonic() > lane.trusted_until
            channel, item = lane.channel, lane.take(changes_only=stop)
        self._owner.on_progress()
        if item is None:
            return None
        if type(item) is StreamBatch and (why := lane.why_undecodable(item)):
            self._owner.on_interruption(lane, channel, item, why)
            return None
        return channel, item


class StreamWorkers(_OfStreams, Workers):
    """Threads that call the handler."""

    def __init__(self, handler: Callable[[Any], object], settings: StreamSettings) -> None:
        super().__init__(_telling(handler, settings), settings.concurrency, settings.heartbeat)


class StreamLoopWorkers(_OfStreams, LoopWorkers):
    """Tasks that await the handler."""

    def __init__(self, handler: Callable[[Any], Awaitable[object]], settings: StreamSettings) -> None:
        telling = _telling_in_loop(handler, settings)
        super().__init__(telling, settings.concurrency, settings.heartbeat)


def _telling(handler: Callable[[Any], object], settings: StreamSettings) -> Callable[[Any], object]:
    if not settings.asks and settings.on_revoked is None:
        return handler

    def call(item: Any) -> object:
        if type(item) is not Change:
            return handler(item)
        for name, callback in settings.callbacks(assigned=item.assigned).items():
            item.start = callback(item.stream)
            check_returned(f"result of {name}", item.start)
        return None

    return call


def _telling_in_loop(
    handler: Callable[[Any], Awaitable[object]], settings: StreamSettings
) -> Callable[[Any], Awaitable[object]]:
    if not settings.asks and settings.on_revoked is None:
        return handler

    async def call(item: Any) -> None:
        if type(item) is not Change:
            await handler(item)
            return
        for callback in settings.callbacks(assigned=item.assigned).values():
            result = callback(item.stream)
            item.start = await result if isawaitable(result) else result

    return call
