"""What a release can do for a group."""

from __future__ import annotations

from rabbit_chx.consuming.settings import Settings
from rabbit_chx.errors import InvalidValue


def check_release(version: str, settings: Settings) -> None:
    """Refuse a release that cannot do what the settings ask for.

    From 4.0 on ``rabbit_fifo`` activates the consumer with the highest priority. Before, failover may be enough.
    """
    if _series(version) < (4, 0) and not settings.failover_only:
        raise InvalidValue(
            "broker release",
            version,
            "4.0 or later",
            "Earlier releases ignore the priorities of consumers, so that the first member gets all queues and another one "
            "only takes over when it is gone; failover_only=True accepts that",
        )
    if _series(version) < (4, 3) and settings.consumer_timeout is not None:
        raise InvalidValue(
            "consumer_timeout",
            settings.consumer_timeout,
            f"None with RabbitMQ {version}",
            "Before 4.3 a consumer cannot set it; consumer_timeout in rabbitmq.conf does, for all consumers",
        )


def has_default_limit(version: str) -> bool:
    """Whether quorum queues drop a message that was returned 20 times unless their delivery limit is -1.

    Before 4.0 there is no limit by default, and a limit of -1 drops messages the first time they are returned.
    """
    return _series(version) >= (4, 0)


def keeps_dead_consumers(version: str) -> bool:
    """Whether a quorum queue keeps a consumer whose channel was closed while another one was to take over from it.

    From 4.3.0 on, when the last message of such a consumer is taken back, ``rabbit_fifo:return_one/8`` puts it among those
    that wait, although it is gone: the queue may activate it later, and then stops.
    """
    return _series(version) >= (4, 3)


def _series(version: str) -> tuple[int, int]:
    major, minor, *_ = *version.split("."), "", ""
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)
