"""The parameters of a group, on pika and aio-pika."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rabbit_chx.broker.amqp import connect
from rabbit_chx.broker.credentials import Credentials, check_credentials
from rabbit_chx.broker.management import Management
from rabbit_chx.consuming.logs import warn
from rabbit_chx.consuming.reporter import Reporter
from rabbit_chx.consuming.settings import OnFailure, Settings
from rabbit_chx.consuming.sources import queue_source
from rabbit_chx.urls import BrokerUrl


class Options:
    """The settings of a member, the source of its queues, and its connection parameters."""

    def __init__(
        self,
        url: str | BrokerUrl,
        *,
        exchange: str,
        name: str,
        queues: Sequence[str] | Path | None = None,
        prefetch: int = 50,
        concurrency: int = 4,
        attempts: int = 5,
        backoff: float = 1.0,
        on_failure: OnFailure = "stop",
        parking_queue: str | None = None,
        stop_timeout: float = 30.0,
        heartbeat: int = 10,
        consumer_timeout: float | None = None,
        failover_only: bool = False,
        management: Management | str | None = None,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._member: Any = None
        self._stopped = False
        self._settings = Settings(
            exchange=exchange,
            name=name,
            prefetch=prefetch,
            concurrency=concurrency,
            attempts=attempts,
            backoff=backoff,
            on_failure=on_failure,
            parking_queue=parking_queue,
            stop_timeout=stop_timeout,
            heartbeat=heartbeat,
            consumer_timeout=consumer_timeout,
            failover_only=failover_only,
        )
        broker = BrokerUrl.parse(url)
        check_credentials(credentials, broker)

        def api() -> Management:
            if isinstance(management, Management):
                return management
            return Management.of(broker, management, credentials=credentials, tls=tls)

        self._source = queue_source(queues, exchange, broker, api)
        self._connection: dict[str, Any] = {
            "url": broker,
            "name": f"rabbit-chx group {name}",
            "heartbeat": heartbeat,
            "credentials": credentials,
            "tls": tls,
        }

    def _reporter(self) -> Reporter:
        """Publishes on a separate connection."""
        connection = {**self._connection, "name": f"rabbit-chx group {self._settings.name} replies"}
        return Reporter(partial(connect, **connection), partial(warn, self._settings.name))
