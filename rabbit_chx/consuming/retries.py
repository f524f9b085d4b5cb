"""The settings that groups of queues and of streams share, and their checks: handlers, failures, attempts."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import iscoroutinefunction, isgeneratorfunction
from typing import Any, ClassVar, Final

from rabbit_chx.errors import InvalidValue
from rabbit_chx.limits import check_integer, check_seconds
from rabbit_chx.names import check_name
from rabbit_chx.timeouts import Timeouts

_LONGEST_BACKOFF: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How a member runs its handler, and what happens when the handler fails."""

    ON_FAILURE: ClassVar[tuple[str, ...]] = ("stop", "park")

    name: str
    concurrency: int
    attempts: int
    backoff: float
    on_failure: str
    parking_queue: str | None
    timeouts: Timeouts
    heartbeat: int

    def __post_init__(self) -> None:
        check_integer("concurrency", self.concurrency, 1, 10_000)
        check_integer("attempts", self.attempts, 1, 1_000_000)
        check_seconds("backoff", self.backoff)
        if self.on_failure not in self.ON_FAILURE:
            raise InvalidValue("on_failure", self.on_failure, " or ".join(map(repr, self.ON_FAILURE)))
        if (self.on_failure == "park") != (self.parking_queue is not None):
            raise InvalidValue(
                "parking_queue",
                self.parking_queue,
                "the name of a queue with on_failure='park', and None otherwise",
            )
        if self.parking_queue is not None:
            check_name("parking_queue", self.parking_queue)

    def delay(self, failures: int, wanted: float | None = None) -> float:
        """Seconds before the next attempt at a message that has failed this many times, or as many as are wanted."""
        seconds = self.backoff * 2 ** min(failures - 1, 30) if wanted is None else wanted
        return float(min(seconds, max(self.backoff, _LONGEST_BACKOFF)))


def check_handler(handler: object, *, coroutine: bool, group: str = "Group") -> Any:
    """Return the handler; raise if it is not of the kind that the group calls."""
    got = type(handler).__name__
    if not callable(handler):
        raise InvalidValue("handler", got, "a function that takes a message")
    is_coroutine = any(map(iscoroutinefunction, (handler, type(handler).__call__)))
    if is_coroutine and not coroutine:
        raise InvalidValue(
            "handler", "a coroutine function", "a function", f"Async{group} takes coroutine functions"
        )
    if coroutine and not is_coroutine:
        raise InvalidValue("handler", "a function", "a coroutine function", f"{group} takes functions")
    if isgeneratorfunction(handler):
        raise InvalidValue("handler", "a generator function", "a function", "A generator would never run")
    return handler
