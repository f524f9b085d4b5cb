"""Differences between RabbitMQ releases that matter to a group."""

from __future__ import annotations

from rabbit_chx.consuming.settings import Settings
from rabbit_chx.errors import InvalidValue


def check_release(version: str, settings: Settings) -> None:
    """Raise if a release does not support the settings.

    From 4.0 on, ``rabbit_fifo`` activates the consumer with the highest priority. Earlier releases can only fail over.
    """
    if _series(version) < (4, 0) and not settings.failover_only:
        raise InvalidValue(
            "broker release",
            version,
            "4.0 or later",
            "Earlier releases ignore the priorities of consumers, so the first member gets all queues and another one takes "
            "over only when that member ends; failover_only=True accepts that",
        )
    if _series(version) < (4, 3) and settings.consumer_timeout is not None:
        raise InvalidValue(
            "consumer_timeout",
            settings.consumer_timeout,
            f"None with RabbitMQ {version}",
            "Before 4.3, a consumer cannot set it; use consumer_timeout in rabbitmq.conf, which applies to all consumers",
        )


def has_default_limit(version: str) -> bool:
    """Whether quorum queues drop a message that was returned 20 times, unless their delivery limit is -1.

    Before 4.0, there is no limit by default, and a limit of -1 drops messages the first time they are returned.
    """
    return _series(version) >= (4, 0)


def keeps_dead_consumers(version: str) -> bool:
    """Whether a quorum queue may keep a consumer whose channel was closed while another consumer was taking over.

    From 4.3.0 on, when the last message of such a consumer is requeued, ``rabbit_fifo:return_one/8`` adds the consumer to
    the waiting ones, although it no longer exists. The queue may activate it later, and then delivers nothing.
    """
    return _series(version) >= (4, 3)


def _series(version: str) -> tuple[int, int]:
    major, minor, *_ = *version.split("."), "", ""
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)
