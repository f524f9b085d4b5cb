"""Open an AMQP connection, and say clearly why it did not open. Passwords appear in no text."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from rabbit_chx.errors import BrokerUnavailable, InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable

    import pika

__all__ = ["Reason", "connect", "describe", "parameters_of", "server_version", "why_down"]

# Reply codes of the broker after which the same attempt would end the same way (AMQP 0-9-1, section 1.2).
_PERMANENT_CODES: Final = {402, 403, 404, 406, 501, 503, 504, 505, 530, 540}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a connection is down, for people, and whether trying again is of no use."""

    text: str
    permanent: bool = False

    def __str__(self) -> str:
        return self.text


def describe(url: str) -> str:
    """The broker of an AMQP URL for people to read: host, port, virtual host and user."""
    parts = _split(url)
    user = unquote(parts.username or "guest")
    return f"{parts.hostname}:{_port(parts)}, virtual host {_vhost(parts)!r}, user {user!r}"


def parameters_of(
    url: str,
    *,
    name: str = "rabbit-chx",
    timeout: float = 5.0,
    heartbeat: int = 60,
    blocked_timeout: float = 60.0,
    credentials: Callable[[], tuple[str, str]] | None = None,
    tls: ssl.SSLContext | None = None,
) -> pika.ConnectionParameters:
    """One attempt at the broker of a URL, which ends within about ``timeout`` seconds.

    ``credentials`` is asked for user and password; they are otherwise the URL's. With ``amqps`` certificate
    and host name are checked, unless ``tls`` is another context.
    """
    import pika

    parts = _split(url)
    in_url = (unquote(parts.username or "guest"), unquote(parts.password or "guest"))
    user, password = credentials() if credentials is not None else in_url
    options = None
    if parts.scheme == "amqps":
        options = pika.SSLOptions(tls or ssl.create_default_context(), parts.hostname)
    return pika.ConnectionParameters(
        host=parts.hostname,
        port=_port(parts),
        virtual_host=_vhost(parts),
        credentials=pika.PlainCredentials(user, password),
        ssl_options=options,
        heartbeat=heartbeat,
        blocked_connection_timeout=blocked_timeout,
        connection_attempts=1,
        socket_timeout=timeout,
        stack_timeout=timeout,
        client_properties={"connection_name": name, "product": "rabbit-chx"},
    )


def connect(url: str, *, name: str = "rabbit-chx", timeout: float = 5.0) -> pika.BlockingConnection:
    """A blocking connection, for short work."""
    import pika
    from pika.exceptions import AMQPError

    parameters = parameters_of(url, name=name, timeout=timeout)
    try:
        return pika.BlockingConnection(parameters)
    except (AMQPError, OSError) as error:
        raise BrokerUnavailable(str(why_down(error, describe(url)))) from None


def why_down(error: BaseException, where: str) -> Reason:
    """The one sentence behind an exception of pika's, whose own is often empty."""
    from pika import exceptions

    error = _innermost(error)
    match error:
        case exceptions.ProbableAuthenticationError() | exceptions.AuthenticationError():
            return Reason(f"the broker at {where} refuses this user or password", permanent=True)
        case exceptions.ProbableAccessDeniedError():
            return Reason(
                f"the broker at {where} has no such virtual host, or the user may not use it; "
                "`rabbitmqctl list_permissions -p VHOST` tells",
                permanent=True,
            )
        case exceptions.ConnectionBlockedTimeout():
            return Reason(
                f"the broker at {where} blocked publishing for too long (memory or disk alarm)",
                permanent=True,
            )
        case exceptions.ConnectionClosedByBroker() | exceptions.ChannelClosedByBroker():
            if error.reply_code == 403 and "LOGIN" in error.reply_text.upper():
                return Reason(f"the broker at {where} refuses this user or password", permanent=True)
            text = f"the broker at {where} closed it: {error.reply_code} {error.reply_text}"
            return Reason(text, permanent=error.reply_code in _PERMANENT_CODES)
        case exceptions.StreamLostError() | exceptions.AMQPHeartbeatTimeout():
            return Reason(f"the connection to {where} was lost: {error}")
        case ssl.SSLError():
            return Reason(f"TLS with the broker at {where} fails: {error.reason or error}", permanent=True)
        case OSError():
            return Reason(f"no broker answers at {where}: {error.strerror or error}")
        case _:
            return Reason(f"no broker answers at {where}: {error or type(error).__name__}")


def server_version(connection: pika.BlockingConnection) -> str:
    """The release that the server says it is, after checking that it is RabbitMQ at all."""
    properties = connection._impl.server_properties  # noqa: SLF001 - pika shows it nowhere else
    product, version = (properties.get(name, "") for name in ("product", "version"))
    if product != "RabbitMQ":
        raise BrokerUnavailable(
            f"the server calls itself {product!r}: its exchange of this name may hash in another way (LavinMQ's does)"
        )
    return str(version)


def _split(url: str) -> SplitResult:
    problem = InvalidValue(
        "the broker's URL",
        got="a text that is none",  # never the text itself: it may hold a password
        allowed="amqp://user:password@host:5672/vhost, or amqps://",
        way_out="write special characters of user, password and virtual host as %XX (a slash is %2F)",
    )
    try:
        parts = urlsplit(url)
        valid = (
            parts.scheme in {"amqp", "amqps"} and parts.hostname and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        raise problem from None
    # An unescaped password ends where one of / ? # stands in it; what follows holds the @ of the host.
    if not valid or "/" in parts.path[1:] or any("@" in part for part in parts[2:]):
        raise problem
    return parts


def _port(parts: SplitResult) -> int:
    return parts.port or (5671 if parts.scheme == "amqps" else 5672)


def _vhost(parts: SplitResult) -> str:
    return unquote(parts.path[1:]) or "/"


def _innermost(error: BaseException) -> BaseException:
    """The error that pika has wrapped, maybe more than once."""
    while True:
        inner = error.args[0] if error.args else None
        if not isinstance(inner, BaseException):
            inner = getattr(error, "exception", None)
        if not isinstance(inner, BaseException):
            exceptions = getattr(error, "exceptions", None)
            inner = exceptions[-1] if exceptions else None
        if not isinstance(inner, BaseException):
            return error
        error = inner
