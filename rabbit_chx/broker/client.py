"""What every client checks when it is made, before anything connects."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from rabbit_chx.base.limits import check_integer
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.credentials import Credentials, check_credentials
from rabbit_chx.errors import InvalidValue


def checked_urls(
    client: str,
    url: str | BrokerUrl | Sequence[str | BrokerUrl],
    timeouts: Timeouts,
    heartbeat: int,
    credentials: Credentials | None,
    tls: ssl.SSLContext | None,
    connection_name: str | None,
    *,
    honoured: Sequence[str] | None = None,
    streams: bool = False,
) -> tuple[BrokerUrl, ...]:
    """Return the parsed addresses of a client, after a check of the parameters that all clients have.

    ``client`` is its name in errors, and ``honoured`` has the timeouts that it can honour, by default all.
    """
    urls = BrokerUrl.several(url, streams=streams)
    for each in urls:
        check_credentials(credentials, each)
    if not isinstance(timeouts, Timeouts):
        raise InvalidValue("timeouts", timeouts, "Timeouts, such as Timeouts(connect=5)")
    if honoured is not None:
        timeouts.honoured_by(client, *honoured)
    check_integer("heartbeat", heartbeat, 1, 65_535)
    if not (tls is None or isinstance(tls, ssl.SSLContext)):
        raise InvalidValue("tls", tls, "an ssl.SSLContext, or None for one that verifies the broker")
    if not (connection_name is None or isinstance(connection_name, str)):
        raise InvalidValue("connection_name", connection_name, "text")
    return urls
