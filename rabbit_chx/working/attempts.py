"""The attempts at messages whose handler failed, for groups of queues and of streams. In the member's thread."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import Any, Final

from rabbit_chx.base.text import counted
from rabbit_chx.working.retries import Reject, Retries, RetryAfter
from rabbit_chx.working.settings import log
from rabbit_chx.working.workers import Progress, Work


class Attempts:
    """The paused lanes of one connection."""

    def __init__(self, settings: Retries, workers: Progress, describe: Callable[[Any], str]) -> None:
        self._settings: Final = settings
        self._workers: Final = workers
        self._describe = describe
        self._retries: list[tuple[float, int, Work, Any, Any]] = []
        self._numbers = count()

    def planned(
        self, lane: Work, channel: Any, message: Any, error: Exception, *, before: str = "", place: str
    ) -> bool:
        """Plan the next attempt at a message; False if it counts as failed: after the last one, and after `Reject`.

        It also counts as failed if the error comes from ``before`` the handler: from what this names.
        """
        settings, attempt = self._settings, message.attempt
        lane.failed += 1
        what = before or f"attempt {attempt} of {settings.attempts}"
        if before or attempt >= settings.attempts or isinstance(error, Reject):
            self._log(what, message, error, f"on_failure={settings.on_failure!r}")
            if settings.on_failure == "stop":
                failed = (
                    f"{before.capitalize()} failed"
                    if before
                    else f"The handler failed {counted(attempt, 'time')}"
                )
                error.add_note(f"{failed} with {message!r}, which stays in its {place}.")
            return False
        wait = settings.delay(attempt, error.seconds if isinstance(error, RetryAfter) else None)
        delay = 0.0 if lane.is_full_behind(message) else wait
        self._log(what, message, error, f"the next attempt follows in {delay:g} s")
        message.attempt += 1
        self.pause_for(delay, lane, channel, message)
        return True

    def _log(self, what: str, message: Any, error: Exception, then: str) -> None:
        text = "group %r: %s failed: %s; %s"
        log.warning(text, self._settings.name, what, self._describe(message), then, exc_info=error)

    def retry(self) -> None:
        """Resume the lanes whose next attempt is due."""
        while self._retries and self._retries[0][0] <= monotonic():
            *_, lane, channel, message = heapq.heappop(self._retries)
            self.resume(lane, channel, message)

    def until_retry(self, most: float) -> float:
        """Seconds until the next attempt, at most ``most``."""
        return max(0.0, min(most, self._retries[0][0] - monotonic())) if self._retries else most

    # ---- lanes

    def put_back(self, lane: Work, channel: Any, message: Any) -> None:
        """Handle a message no more; the broker redelivers it."""
        with self._workers.lock:
            lane.put_back(message, channel)

    def pause(self, lane: Work, channel: Any, message: Any) -> bool:
        """Put a message back and wait before it; False if the lane has another channel by now."""
        with self._workers.lock:
            paused, submit = lane.pause(message, channel)
        if submit:
            self._workers.submit(lane)
        return paused

    def pause_for(self, seconds: float, lane: Work, channel: Any, message: Any) -> None:
        """Put a message back and wait before it for this long."""
        if self.pause(lane, channel, message):
            at = monotonic() + seconds
            heapq.heappush(self._retries, (at, next(self._numbers), lane, channel, message))

    def resume(self, lane: Work, channel: Any, message: Any) -> None:
        """Continue with a message, unless the lane's channel has changed since the message was paused."""
        with self._workers.lock:
            submit = lane.resume(message, channel)
        if submit:
            self._workers.submit(lane)
