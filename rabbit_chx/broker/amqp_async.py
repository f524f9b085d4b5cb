"""Open an AMQP connection with aio-pika. No password appears in an error."""

from __future__ import annotations

import ssl
from typing import Any

from rabbit_chx.base.timeouts import HEARTBEAT_OF_CALLER
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.credentials import Credentials, login
from rabbit_chx.broker.reasons import why_external_refused, why_rejected, why_unreachable
from rabbit_chx.broker.tls import default_context, warn_if_unchecked
from rabbit_chx.errors import BrokerUnavailable, MissingDependency

try:
    import aio_pika
    from aiormq.exceptions import (
        AMQPError,
        AuthenticationError,
        ConnectionClosed,
        InvalidFrameError,
        ProbableAuthenticationError,
    )
except ImportError as missing:
    raise MissingDependency("this needs aio-pika: `pip install 'rabbit-chx[aio]'`") from missing

_PATIENCE = 5.0
"""Seconds for a connection, as with pika."""


async def connect(
    url: str | BrokerUrl,
    *,
    name: str = "rabbit-chx",
    heartbeat: int = HEARTBEAT_OF_CALLER,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
) -> aio_pika.abc.AbstractConnection:
    """Open a connection as `rabbit_chx.broker.amqp.connect` does, or raise the same error."""
    broker = BrokerUrl.parse(url)
    if broker.tls:
        warn_if_unchecked(tls, str(broker))
    user, password = login(credentials, broker)
    query: dict[str, Any] = {"auth": "external"} if broker.external else {}
    connection: aio_pika.abc.AbstractConnection
    try:
        connection = await aio_pika.connect(
            host=broker.host,
            port=broker.port,
            login=user,
            password=password,
            virtualhost=broker.vhost,
            ssl=broker.tls,
            ssl_context=(tls or default_context()) if broker.tls else None,
            timeout=broker.parameters.get("socket_timeout", _PATIENCE),
            heartbeat=str(broker.parameters.get("heartbeat", heartbeat)),
            client_properties={"connection_name": name, "product": "rabbit-chx"},
            **query,
        )
    except (AMQPError, OSError) as error:
        raise _why_not_open(error, str(broker)) from None
    return connection


def _why_not_open(error: Exception, where: str) -> BrokerUnavailable:
    match error:
        case ProbableAuthenticationError():
            return why_rejected(403, str(error), where)
        case AuthenticationError():
            return why_external_refused(where)
        case ConnectionClosed():
            return why_rejected(int(error.args[0]), str(error.args[-1]), where)
        case InvalidFrameError() if "Connection.OpenOk" in str(error):
            return why_rejected(530, "", where)  # aiormq discards the broker's answer to Connection.Open
        case AMQPError() if not isinstance(error, InvalidFrameError):
            return why_unreachable(error.__cause__ or error, where)
        case _:
            return why_unreachable(error, where)
