"""The parameters of a stream group, the same for both classes."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pika import BlockingConnection

from rabbit_chx.base.text import sentences
from rabbit_chx.base.timeouts import HEARTBEAT, Timeouts
from rabbit_chx.base.urls import BrokerUrl, host_and_port
from rabbit_chx.broker import amqp
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.guards import checked_urls
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.streams.group.lanes import StreamGroupStatus, status_of
from rabbit_chx.streams.group.member import StreamMember
from rabbit_chx.streams.group.parking import Parking
from rabbit_chx.streams.group.settings import OnStreamFailure, Start, StreamCallback, StreamSettings
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.opening import connect
from rabbit_chx.working.retries import COROUTINE_FUNCTION, FUNCTION, TIMEOUTS, check_function
from rabbit_chx.working.runs import AsyncRuns, Runs
from rabbit_chx.working.workers import Progress


class StreamOptions(Runs[StreamMember]):
    """The settings of a member and its connection parameters."""

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        *,
        name: str,
        super_stream: str | None = None,
        exchange: str | None = None,
        stream: str | None = None,
        start: Start = "first",
        store_every: int = 10_000,
        store_seconds: float = 5.0,
        on_assigned: StreamCallback | None = None,
        on_revoked: StreamCallback | None = None,
        credit: int = 20,
        concurrency: int = 4,
        attempts: int = 5,
        backoff: float = 1.0,
        on_failure: OnStreamFailure = "stop",
        parking_queue: str | None = None,
        amqp_url: str | BrokerUrl | Sequence[str | BrokerUrl] | None = None,
        follow_advertised: bool = False,
        timeouts: Timeouts = TIMEOUTS,
        heartbeat: int = HEARTBEAT,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        connection_name: str | None = None,
    ) -> None:
        super().__init__()
        sources = {"super_stream": super_stream, "exchange": exchange, "stream": stream}
        if len(given := [key for key, value in sources.items() if value is not None]) != 1:
            raise InvalidValue("source of a stream group", given, "one of super_stream, exchange and stream")
        self._settings = StreamSettings(
            name=name,
            exchange=super_stream if exchange is None else exchange,
            stream=stream,
            start=start,
            store_every=store_every,
            store_seconds=store_seconds,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            credit=credit,
            concurrency=concurrency,
            attempts=attempts,
            backoff=backoff,
            on_failure=on_failure,
            parking_queue=parking_queue,
            timeouts=timeouts,
            heartbeat=heartbeat,
        )
        is_async = isinstance(self, AsyncRuns)
        for assigned in (True, False):
            for parameter, function in self._settings.callbacks(assigned=assigned).items():
                kinds = (FUNCTION, COROUTINE_FUNCTION) if is_async else (FUNCTION,)
                check_function(parameter, function, *kinds, hint="AsyncStreamGroup takes coroutine functions")
        brokers = checked_urls(
            *("a group", url, timeouts, heartbeat, credentials, tls, connection_name),
            defaults=TIMEOUTS,
            streams=True,
        )
        opening = partial(
            connect,
            brokers,
            follow_advertised=follow_advertised,
            heartbeat=heartbeat,
            credentials=credentials,
            tls=tls,
            connection_name=connection_name or f"rabbit-chx stream group {name}",
        )
        self._connect: Callable[[str | None], StreamConnection] = lambda name: opening(stream=name)
        default = [replace(each, streams=False, port=0) for each in brokers]
        parking = BrokerUrl._several(default if amqp_url is None else amqp_url)
        self._connect_for_parking = partial(
            amqp.connect if amqp_url is not None else _at_default_port,
            parking,
            heartbeat=heartbeat,
            credentials=credentials if amqp_url is None else _credentials_for(parking, credentials, brokers),
            tls=tls,
            connection_name=f"rabbit-chx stream group {name} parking",
        )

    @property
    def status(self) -> StreamGroupStatus:
        """How the member is now, for health checks and metrics. Can be read from any thread."""
        self._guard.check()
        member = self._member
        return status_of((), self._why_not()) if member is None else member.status

    def _new_member(
        self, workers: Callable[..., Progress], handler: object, *, batches: bool
    ) -> StreamMember:
        settings, parking = self._settings, None
        given = workers(handler, settings)
        if (queue := settings.parking_queue) is not None:
            parking = Parking(settings.name, queue, self._connect_for_parking, given.stopping)
        return StreamMember(settings, self._connect, given, parking, batches=batches)


def _credentials_for(
    parking: Sequence[BrokerUrl], credentials: Credentials | None, brokers: Sequence[BrokerUrl]
) -> Credentials | None:
    """The credentials of the streams if parking needs them; refuse to send them to another host, or without the TLS of the streams."""
    if credentials is None or any(each.password is not None or each.external for each in parking):
        return None
    for url in parking:
        if not any(url.host == each.host and url.tls >= each.tls for each in brokers):
            raise InvalidValue(
                "amqp_url",
                host_and_port(url.host, url.port),
                "a host of url, with TLS if url has TLS, because it gets the credentials",
                "Write a user and a password into amqp_url",
            )
    return credentials


def _at_default_port(urls: Sequence[BrokerUrl], **given: Any) -> BlockingConnection:
    """Connect for parking; an error names the parameter for another address."""
    try:
        return amqp.connect(urls, **given)
    except BrokerUnavailable as error:
        if error.permanent:
            raise
        raise BrokerUnavailable(sentences(str(error), "amqp_url= names another address")) from None
