"""The settings of a member, and their checks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from inspect import iscoroutinefunction, isgeneratorfunction
from itertools import accumulate
from typing import Any, Final, Literal, TypeAlias

from rabbit_chx.consuming.seats import check_group_name
from rabbit_chx.errors import InvalidValue
from rabbit_chx.names import check_name
from rabbit_chx.releases import Release
from rabbit_chx.timeouts import Timeouts

Order: TypeAlias = Literal["queue", "key"]
_ORDERS: Final = ("queue", "key")
OnFailure: TypeAlias = Literal["stop", "dead-letter", "park"]
_ON_FAILURE: Final = ("stop", "dead-letter", "park")
MOST_PREFETCH: Final = 65_535
_LONGEST_BACKOFF: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a member, the same for both classes."""

    exchange: str
    name: str
    prefetch: int
    concurrency: int
    attempts: int
    backoff: float
    on_failure: OnFailure
    parking_queue: str | None
    timeouts: Timeouts
    heartbeat: int
    failover_only: bool
    order: Order = "queue"
    consumer_timeout: float | None = None

    def __post_init__(self) -> None:
        check_name("exchange", self.exchange)
        check_group_name(self.name)
        for name, most in (
            ("prefetch", MOST_PREFETCH),
            ("concurrency", 10_000),
            ("attempts", 1_000_000),
            ("heartbeat", 65_535),
        ):
            check_integer(name, getattr(self, name), most)
        _check_seconds("backoff", self.backoff)
        # A member keeps trying to connect until it is stopped.
        self.timeouts.honoured_by("a group", "close")
        if self.consumer_timeout is not None:
            _check_seconds("consumer_timeout", self.consumer_timeout)
            self._check_attempts(self.consumer_timeout)
        if self.order not in _ORDERS:
            raise InvalidValue("order", self.order, " or ".join(map(repr, _ORDERS)))
        if self.on_failure not in _ON_FAILURE:
            raise InvalidValue("on_failure", self.on_failure, " or ".join(map(repr, _ON_FAILURE)))
        if (self.on_failure == "park") != (self.parking_queue is not None):
            raise InvalidValue(
                "parking_queue",
                self.parking_queue,
                "the name of a queue with on_failure='park', and None otherwise",
            )
        if self.parking_queue is not None:
            check_name("parking_queue", self.parking_queue)

    def _check_attempts(self, limit: float) -> None:
        """Raise if the broker takes a message back before its last attempt, because then it would never count as failed."""
        delays = accumulate(map(self.delay, range(1, self.attempts)))
        if any(total >= limit for total in delays):
            raise InvalidValue(
                "attempts",
                self.attempts,
                f"delays of less than {limit:g} s in total (consumer_timeout) with backoff={self.backoff:g}",
                "The broker takes a message back that is not acknowledged within consumer_timeout, and its attempts begin again",
            )

    def check_release(self, release: Release) -> None:
        """Raise if a release does not support the settings."""
        if not (release.obeys_active_priorities or self.failover_only):
            raise InvalidValue(
                "broker release",
                str(release),
                "4.0 or later",
                "Earlier releases ignore the priorities of consumers, so the first member gets all queues and another one "
                "takes over only when that member ends; failover_only=True accepts that",
            )
        if self.consumer_timeout is not None and not release.has_consumer_timeouts:
            raise InvalidValue(
                "consumer_timeout",
                self.consumer_timeout,
                f"None with RabbitMQ {release}",
                "Before 4.3, a consumer cannot set it; use consumer_timeout in rabbitmq.conf, which applies to all consumers",
            )

    def consumer_arguments(self, priority: int) -> dict[str, Any]:
        """The arguments of ``basic.consume``."""
        if self.consumer_timeout is None:
            return {"x-priority": priority}
        return {"x-priority": priority, "x-consumer-timeout": round(self.consumer_timeout * 1000)}

    def delay(self, failures: int, wanted: float | None = None) -> float:
        """Seconds before the next attempt at a message that has failed this many times, or as many as are wanted."""
        seconds = self.backoff * 2 ** min(failures - 1, 30) if wanted is None else wanted
        return float(min(seconds, max(self.backoff, _LONGEST_BACKOFF)))


def check_handler(handler: object, *, coroutine: bool) -> Any:
    """Return the handler; raise if it is not of the kind that the group calls."""
    got = type(handler).__name__
    if not callable(handler):
        raise InvalidValue("handler", got, "a function that takes a message")
    is_coroutine = any(map(iscoroutinefunction, (handler, type(handler).__call__)))
    if is_coroutine and not coroutine:
        raise InvalidValue(
            "handler", "a coroutine function", "a function", "AsyncGroup takes coroutine functions"
        )
    if coroutine and not is_coroutine:
        raise InvalidValue("handler", "a function", "a coroutine function", "Group takes functions")
    if isgeneratorfunction(handler):
        raise InvalidValue("handler", "a generator function", "a function", "A generator would never run")
    return handler


def check_integer(name: str, got: object, most: int) -> None:
    """Raise if a setting is not an integer from 1 to ``most``."""
    if not isinstance(got, int) or isinstance(got, bool) or not 1 <= got <= most:
        raise InvalidValue(name, got, f"an integer from 1 to {most}")


def _check_seconds(name: str, got: object) -> None:
    if not isinstance(got, (int, float)) or isinstance(got, bool) or not 0 <= got < math.inf:
        raise InvalidValue(name, got, "seconds, at least 0")
