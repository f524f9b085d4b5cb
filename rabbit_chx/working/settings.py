"""The settings of a member, and their checks; the log of members and readers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

from rabbit_chx.base.limits import check_integer, check_seconds
from rabbit_chx.base.names import check_group_name, check_name
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.releases import Release
from rabbit_chx.working.retries import Retries

Order: TypeAlias = Literal["queue", "key"]
OnFailure: TypeAlias = Literal["stop", "dead-letter", "park"]
MOST_PREFETCH: Final = 65_535

log = logging.getLogger("rabbit_chx.consuming")


def warn(group: str, text: object) -> None:
    """Log a problem of a group."""
    log.warning("group %r: %s", group, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Retries):
    """The settings of a member of a group of queues, the same for both classes."""

    ON_FAILURE: ClassVar[tuple[str, ...]] = get_args(OnFailure)

    exchange: str
    prefetch: int
    failover_only: bool
    order: Order = "queue"
    crashes: int | None = None
    consumer_timeout: float | None = None

    def __post_init__(self) -> None:
        check_name("exchange", self.exchange)
        check_group_name(self.name)
        check_integer("prefetch", self.prefetch, 1, MOST_PREFETCH)
        Retries.__post_init__(self)
        if self.crashes is not None:
            check_integer("crashes", self.crashes, 1, 1_000_000)
        if self.consumer_timeout is not None:
            limit = check_seconds("consumer_timeout", self.consumer_timeout)
            # If the broker takes a message back before its last attempt, it never counts as failed.
            if any(total >= limit for total in accumulate(map(self.delay, range(1, self.attempts)))):
                raise InvalidValue(
                    "attempts",
                    self.attempts,
                    f"delays of less than {limit:g} s in total (consumer_timeout) with backoff={self.backoff:g}",
                    "The broker takes a message back that is not acknowledged within consumer_timeout, and its attempts begin again",
                )
        if self.order not in get_args(Order):
            raise InvalidValue("order", self.order, " or ".join(map(repr, get_args(Order))))

    def check_release(self, release: Release) -> None:
        """Raise if a release does not support the settings."""
        if not (release._obeys_active_priorities or self.failover_only):
            raise InvalidValue(
                "broker release",
                str(release),
                "4.0 or later",
                "Earlier releases ignore the priorities of consumers, so the first member gets all queues and another one "
                "takes over only when that member ends; failover_only=True accepts that",
            )
        if self.consumer_timeout is not None and not release._has_consumer_timeouts:
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
