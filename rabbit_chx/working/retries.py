"""What groups of queues and of streams share: settings and their checks, and what a handler raises to say what becomes of its message."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import AsyncGeneratorType, GeneratorType
from typing import Any, ClassVar, Final

from rabbit_chx.base.limits import check_integer, check_seconds
from rabbit_chx.base.names import check_name
from rabbit_chx.base.timeouts import Timeouts, defaults_of
from rabbit_chx.errors import InvalidValue

_LONGEST_BACKOFF: Final = 60.0
TIMEOUTS: Final = defaults_of("close")
"""A member keeps trying to connect until it is stopped."""
FUNCTION: Final = "a function"
COROUTINE_FUNCTION: Final = "a coroutine function"
_OTHER_KINDS: Final = {
    COROUTINE_FUNCTION: iscoroutinefunction,
    "an async generator function": isasyncgenfunction,
    "a generator function": isgeneratorfunction,
}


class Reject(Exception):
    """Raised by a handler: the message is not tried again, and ``on_failure`` decides at once.

    >>> raise Reject("no such customer")  # doctest: +SKIP
    """


class RetryAfter(Exception):
    """Raised by a handler: the next attempt follows after ``seconds``, instead of the delay that ``backoff`` gives.

    The attempt counts like any other. The delay is at most 60 seconds, or ``backoff``, if longer.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds: float = check_seconds("seconds", seconds)

    def __str__(self) -> str:
        return f"the handler asked for another attempt after {self.seconds:g} s"


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


def check_handler(handler: object, *, coroutine: bool, group: str = "Group") -> None:
    """Raise if a handler is not of the kind that the group calls."""
    if not callable(handler):
        raise InvalidValue("handler", type(handler).__name__, "a function that takes a message")
    if coroutine:
        check_function("handler", handler, COROUTINE_FUNCTION, hint=f"{group} takes functions")
    else:
        check_function("handler", handler, FUNCTION, hint=f"Async{group} takes coroutine functions")


def check_function(name: str, function: Any, *kinds: str, hint: str) -> None:
    """Raise if a function of the program is of another kind, as far as this shows before it is called."""
    called = function
    while isinstance(called, partial):
        called = called.func
    either = (called, type(called).__call__)
    kind = next((kind for kind, is_one in _OTHER_KINDS.items() if any(map(is_one, either))), FUNCTION)
    if kind not in kinds:
        hint = "A generator would never run" if "generator" in kind else hint
        raise InvalidValue(name, kind, " or ".join(kinds), hint)


def check_returned(what: str, returned: object) -> None:
    """Raise if what a function of the program has returned shows that nothing of it has run yet."""
    # Twice as fast as to ask Awaitable.
    if hasattr(type(returned), "__await__") or isinstance(returned, (GeneratorType, AsyncGeneratorType)):
        if isinstance(returned, Coroutine):
            returned.close()  # otherwise Python warns that it was never awaited
        raise InvalidValue(
            what,
            type(returned).__name__,
            "one that is neither awaited nor iterated over",
            "It would never run; AsyncGroup and AsyncStreamGroup await coroutine functions",
        )
