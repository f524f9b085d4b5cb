"""Open an AMQP connection with pika. No password appears in an error."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.base.timeouts import CONNECT, HEARTBEAT_OF_CALLER
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.credentials import Credentials, check_credentials, login
from rabbit_chx.broker.reasons import why_down, why_reset
from rabbit_chx.broker.tls import default_context, warn_if_unchecked
from rabbit_chx.errors import BrokerUnavailable

if TYPE_CHECKING:
    import pika
    from pika.adapters.blocking_connection import BlockingChannel


def parameters_of(
    url: str | BrokerUrl,
    *,
    timeout: float = CONNECT,
    heartbeat: int = HEARTBEAT_OF_CALLER,
    blocked_timeout: float = 60.0,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
    connection_name: str = "rabbit-chx",
) -> pika.ConnectionParameters:
    """Return pika's parameters for one attempt, which ends within about ``timeout`` seconds.

    Query parameters of the URL override ``timeout``, ``heartbeat`` and ``blocked_timeout``. With ``amqps`` the certificate
    and the host name are verified, unless ``tls`` is another context.
    """
    import pika

    url = BrokerUrl.parse(url)
    sasl: Any
    if url.external:
        check_credentials(credentials, url)
        sasl = pika.credentials.ExternalCredentials()
    else:
        sasl = pika.PlainCredentials(*login(credentials, url))
    secure = pika.SSLOptions(tls or default_context(), url.host) if url.tls else None
    options: dict[str, Any] = {
        "heartbeat": heartbeat,
        "blocked_connection_timeout": blocked_timeout,
        "connection_attempts": 1,
        "socket_timeout": timeout,
        "stack_timeout": timeout,
        **url.parameters,
    }
    return pika.ConnectionParameters(
        host=url.host,
        port=url.port,
        virtual_host=url.vhost,
        credentials=sasl,
        ssl_options=secure,
        client_properties={"connection_name": connection_name, "product": "rabbit-chx"},
        **options,
    )


def connect(
    url: str | BrokerUrl | Sequence[str | BrokerUrl],
    *,
    timeout: float = CONNECT,
    heartbeat: int = HEARTBEAT_OF_CALLER,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
    connection_name: str = "rabbit-chx",
) -> pika.BlockingConnection:
    """Open a blocking connection, which drops itself if a command gets no answer within 30 seconds.

    Args:
        url: the broker, or several addresses that are tried in turn.
        timeout: seconds for each attempt.
        heartbeat: the heartbeat timeout in seconds.
        credentials: user and password, where the URL does not hold them.
        tls: the context for ``amqps``; by default the certificate and the host name are verified.
        connection_name: the connection's name in the broker's list.

    Raises:
        BrokerUnavailable: the connection did not open; the message says why.
    """
    failed: list[BrokerUnavailable] = []
    for one in BrokerUrl._several(url):
        try:
            parameters = parameters_of(
                one,
                timeout=timeout,
                heartbeat=heartbeat,
                credentials=credentials,
                tls=tls,
                connection_name=connection_name,
            )
            if one.tls:
                warn_if_unchecked(tls, str(one))
            return _opened(parameters, one)
        except BrokerUnavailable as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    raise BrokerUnavailable("; ".join(map(str, failed)), permanent=all(error.permanent for error in failed))


def _opened(parameters: pika.ConnectionParameters, url: BrokerUrl) -> pika.BlockingConnection:
    from pika.adapters.utils.connection_workflow import AMQPConnectorException
    from pika.exceptions import AMQPError

    from rabbit_chx.broker.receiving import TimedConnection

    try:
        with without_pikas_log():
            return TimedConnection(parameters)
    except AMQPConnectorException:  # the peer sent nothing; pika does not derive this one from AMQPError
        raise BrokerUnavailable(
            f"{url} accepted the connection but sent nothing; is this the AMQP port?"
        ) from None
    except (AMQPError, OSError) as error:
        raise why_down(error, str(url)) from None
    except ValueError as error:
        raise why_reset(error, str(url)) from None


class _Expected(threading.local):
    """What is expected on this thread, so that pika need not log it."""

    everything = False
    refusals_on: BlockingChannel | None = None


_expected: Final = _Expected()


@contextmanager
def expecting_refusals(channel: BlockingChannel) -> Iterator[None]:
    """Suppress pika's warnings that the broker closed this channel or returned a message, where these are expected answers."""
    _expected.refusals_on = channel
    try:
        yield
    finally:
        _expected.refusals_on = None


@contextmanager
def without_pikas_log() -> Iterator[None]:
    """Suppress what pika logs on this thread, where its errors are raised or logged by the caller: eight lines for each attempt."""
    before, _expected.everything = _expected.everything, True
    try:
        yield
    finally:
        _expected.everything = before


def _is_unexpected(record: logging.LogRecord) -> bool:
    if _expected.everything:
        return False
    channel = _expected.refusals_on
    if channel is None or not isinstance(record.args, tuple) or not record.args:
        return True
    is_closed = record.args[-1] is channel._impl  # the channel that pika's record names
    return not is_closed and "message was returned" not in str(record.msg)


for _name in (
    *("channel", "connection", "heartbeat", "adapters.base_connection", "adapters.blocking_connection"),
    *(
        f"adapters.utils.{name}"
        for name in ("connection_workflow", "io_services_utils", "selector_ioloop_adapter")
    ),
):
    logging.getLogger(f"pika.{_name}").addFilter(_is_unexpected)


def server_version(connection: pika.BlockingConnection) -> str:
    """Return the release that the server reports, after checking that it is RabbitMQ."""
    return version_in(server_properties(connection))


def server_properties(connection: pika.BlockingConnection) -> Mapping[str, Any]:
    """Return what the server reports about itself."""
    from pika.exceptions import ConnectionWrongStateError

    # pika has no public name for it
    properties: Mapping[str, Any] | None = connection._impl.server_properties
    if properties is None:  # pika forgets them when the connection is lost
        raise ConnectionWrongStateError("the connection was lost as soon as it was open")
    return properties


def version_in(properties: Mapping[str, Any]) -> str:
    """Return the release from the properties of a server, after checking that it is RabbitMQ."""
    product, version = (properties.get(name, "") for name in ("product", "version"))
    if product != "RabbitMQ":
        raise BrokerUnavailable(
            f"the server calls itself {product!r}, not RabbitMQ: its exchange of this name may hash differently "
            "(LavinMQ's does)"
        )
    return str(version)
