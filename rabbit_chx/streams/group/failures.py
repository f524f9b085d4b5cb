"""What becomes of messages that the handler failed with, and of undecodable ones. In the thread of the connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rabbit_chx.base.text import described
from rabbit_chx.broker.commands import Refused
from rabbit_chx.errors import CorruptStream, MissingDependency, RabbitChxError
from rabbit_chx.streams.group.batch import (
    BatchFailed,
    StreamBatch,
    failed_part,
    why_undecodable,
    without_hint,
)
from rabbit_chx.streams.group.lanes import Change, StreamLane
from rabbit_chx.streams.group.parking import Parking
from rabbit_chx.streams.group.settings import StreamSettings
from rabbit_chx.working.attempts import Attempts
from rabbit_chx.working.settings import log
from rabbit_chx.working.workers import Progress


class Failures(Attempts):
    """Retries, and what follows the last attempt.

    From any thread, ``ask`` has a function called in that of the connections; ``settle`` stores how far a
    lane has come.
    """

    def __init__(
        self,
        settings: StreamSettings,
        workers: Progress,
        parking: Parking | None,
        *,
        ask: Callable[[Callable[[], object]], object],
        fail: Callable[[BaseException], object],
        settle: Callable[[StreamLane], object],
    ) -> None:
        super().__init__(settings, workers, _described)
        self._parking = parking
        self._ask, self._fail, self._settle = ask, fail, settle

    def on_interruption(self, lane: StreamLane, channel: Any, item: Any, error: Exception) -> None:
        """Have the member deal with what was not handled. What takes long is done here, in the thread of a worker."""
        parts: list[StreamBatch] = []
        try:
            if isinstance(item, StreamBatch) and isinstance(error, (CorruptStream, MissingDependency)):
                parts = item._around_undecodable()
            elif isinstance(item, StreamBatch) and isinstance(error, BatchFailed):
                parts = [item._unpacked()]
        except Exception as wrong:  # noqa: BLE001 - a stranger may have written the messages
            error = wrong
        item, *more = parts or [item]
        self._ask(partial(self.deal_with, lane, channel, item, error, more))

    def deal_with(
        self,
        lane: StreamLane,
        channel: Any,
        item: Any,
        error: Exception,
        more: Sequence[StreamBatch] = (),
    ) -> None:
        """Decide what to do with what was not handled. If messages make that fail, they have failed themselves."""
        if isinstance(item, Change):
            item.done = True
            self._fail(error)
            self._workers.submit(lane)
            return
        if more:  # the handler has not seen them apart
            for part in (*reversed(more), item):
                self.put_back(lane, channel, part)
            self._workers.submit(lane)
            return
        try:
            self._deal_with(lane, channel, item, error)
        except Exception as wrong:  # noqa: BLE001 - a stranger may have written the messages
            lane.failed += 1
            log.warning(
                "group %r: messages of stream %r made rabbit-chx fail; on_failure=%r",
                *(self._settings.name, lane.stream, self._settings.on_failure),
                exc_info=True,
            )
            self._on_failed(lane, channel, item, wrong, Refused(0, described(wrong)))

    def _deal_with(self, lane: StreamLane, channel: Any, item: Any, error: Exception) -> None:
        """Retry later, or apply ``on_failure`` after the last attempt."""
        if isinstance(error, BatchFailed) and isinstance(item, StreamBatch):
            item = self._rest(lane, channel, item, error.offset)
        before = ""
        if isinstance(item, StreamBatch) and (why := why_undecodable(item)):
            before, error = "the decoding", without_hint(why)
        if not self.planned(lane, channel, item, error, before=before, place="stream"):
            self._on_failed(lane, channel, item, error)

    def _on_failed(
        self, lane: StreamLane, channel: Any, item: Any, error: Exception, refused: Refused | None = None
    ) -> None:
        """Apply ``on_failure``. The first of messages that were refused is not parked whole."""
        if self._parking is None:
            self._fail(error)
        elif lane.channel is channel:
            failed, rest = failed_part(item, error)
            done = partial(self._on_parked, lane, channel, failed, rest)
            messages = failed._stored() if isinstance(failed, StreamBatch) else [failed]
            self._parking.begin(
                messages, error, item.attempt, lambda *told: self._ask(partial(done, *told)), refused
            )
            return
        self.put_back(lane, channel, item)
        self._workers.submit(lane)

    def _rest(self, lane: StreamLane, channel: Any, batch: StreamBatch, offset: int) -> StreamBatch:
        """Count what comes before an offset as handled, and return the rest."""
        if not batch.first < offset <= batch.last:
            return batch
        with self._workers.lock:
            lane.finish_before(batch, offset, channel)
        return batch._since(offset)

    def _on_parked(
        self,
        lane: StreamLane,
        channel: Any,
        item: Any,
        rest: Any,
        left: int | None,
        error: BaseException | None,
    ) -> None:
        """Store what is parked, up to ``left`` if any is left, because the next message may end the process; and go on behind it."""
        if error is not None:
            self._fail(error)
        if left is not None and isinstance(item, StreamBatch):
            item = self._rest(lane, channel, item, left)
        elif left is None and error is None:
            self._workers.finished(lane, channel, item)
            item = rest
        try:
            self._settle(lane)
        except RabbitChxError as refused:
            self._fail(refused)  # before the worker gets its lane back, so that it takes no other message
        if item is not None:
            self.put_back(lane, channel, item)
        self._workers.submit(lane)


def _described(item: Any) -> str:
    if isinstance(item, StreamBatch):
        return f"stream {item.stream!r}, offsets {item.first} to {item.last}"
    return f"stream {item.queue!r}, offset {item.offset}, key {item.routing_key!r}"
