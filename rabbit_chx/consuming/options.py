"""The parameters of a group, the same for both classes."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rabbit_chx.broker.amqp import connect
from rabbit_chx.broker.client import checked_urls
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.management import Management
from rabbit_chx.consuming.logs import warn
from rabbit_chx.consuming.member.group_status import GroupStatus, status_of
from rabbit_chx.consuming.member.key_lanes import lanes_of
from rabbit_chx.consuming.member.member import Member
from rabbit_chx.consuming.member.reporter import Reporter
from rabbit_chx.consuming.member.runs import Runs
from rabbit_chx.consuming.member.workers import Progress
from rabbit_chx.consuming.queues.keys import KeyFunction, key_source
from rabbit_chx.consuming.queues.sources import queue_source
from rabbit_chx.consuming.settings import OnFailure, Order, Settings
from rabbit_chx.errors import InvalidValue
from rabbit_chx.timeouts import DEFAULTS, HEARTBEAT, Timeouts
from rabbit_chx.urls import BrokerUrl


class Options(Runs[Member]):
    """The settings of a member, the source of its queues, and its connection parameters."""

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        *,
        exchange: str,
        name: str,
        queues: Sequence[str] | Path | None = None,
        order: Order = "queue",
        key: KeyFunction | None = None,
        prefetch: int = 50,
        concurrency: int = 4,
        attempts: int = 5,
        backoff: float = 1.0,
        on_failure: OnFailure = "stop",
        parking_queue: str | None = None,
        crashes: int | None = 5,
        timeouts: Timeouts = DEFAULTS,
        heartbeat: int = HEARTBEAT,
        consumer_timeout: float | None = None,
        failover_only: bool = False,
        management: Management | str | None = None,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        connection_name: str | None = None,
    ) -> None:
        super().__init__()
        self._settings = Settings(
            exchange=exchange,
            name=name,
            prefetch=prefetch,
            concurrency=concurrency,
            attempts=attempts,
            backoff=backoff,
            on_failure=on_failure,
            parking_queue=parking_queue,
            crashes=crashes,
            timeouts=timeouts,
            heartbeat=heartbeat,
            consumer_timeout=consumer_timeout,
            failover_only=failover_only,
            order=order,
        )
        if key is not None and not (order == "key" and callable(key)):
            raise InvalidValue("key", key, "a function with order='key', and None otherwise")
        brokers = checked_urls(
            *("a group", url, timeouts, heartbeat, credentials, tls, connection_name),
            # A member keeps trying to connect until it is stopped.
            honoured=["close"],
        )

        def api(broker: BrokerUrl) -> Management:
            if isinstance(management, Management):
                return management
            return Management.of(broker, management, credentials=credentials, tls=tls)

        # With the URL of an API, each address may still have another user.
        apis = [(each.vhost, partial(api, each)) for each in brokers]
        self._source = queue_source(queues, exchange, apis)
        find_key = key_source(queues, exchange, apis) if key is None else lambda: key
        self._new_lane = lanes_of(self._settings, find_key if order == "key" else None)
        label = connection_name or f"rabbit-chx group {name}"
        opening = partial(connect, brokers, heartbeat=heartbeat, credentials=credentials, tls=tls)
        self._connect = partial(opening, name=label)
        self._connect_for_replies = partial(opening, name=f"{label} replies")

    @property
    def status(self) -> GroupStatus:
        """How the member is now, for health checks and metrics. Can be read from any thread."""
        self._guard.check()
        member = self._member
        return status_of((), "it is not running") if member is None else member.status

    def _new_member(self, workers: Callable[..., Progress], handler: object) -> Member:
        settings = self._settings
        reporter = Reporter(self._connect_for_replies, partial(warn, settings.name))
        given = workers(handler, settings.concurrency, settings.heartbeat, reporter.report)
        return Member(settings, self._connect, self._source, given, reporter, self._new_lane)
