"""Open an AMQP connection, and say clearly why it did not open. Passwords appear in no text."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from rabbit_chx.errors import BrokerUnavailable, InvalidValue

if TYPE_CHECKING:
    import pika

__all__ = ["connect", "describe", "server_version"]


def describe(url: str) -> str:
    """The broker of an AMQP URL for people to read: host, port, virtual host and user."""
    parts = _split(url)
    vhost = unquote(parts.path[1:]) or "/"
    user = unquote(parts.username or "guest")
    port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
    return f"{parts.hostname}:{port}, virtual host {vhost!r}, user {user!r}"


def connect(url: str, *, name: str = "rabbit-chx", timeout: float = 5.0) -> pika.BlockingConnection:
    """One attempt, which ends within about ``timeout`` seconds."""
    import pika
    from pika import exceptions

    where = describe(url)
    parameters = pika.URLParameters(url)
    parameters.connection_attempts = 1
    parameters.socket_timeout = timeout
    parameters.stack_timeout = timeout
    parameters.blocked_connection_timeout = 60
    parameters.client_properties = {"connection_name": name, "product": "rabbit-chx"}
    try:
        return pika.BlockingConnection(parameters)
    except (exceptions.ProbableAuthenticationError, exceptions.AuthenticationError):
        raise BrokerUnavailable(f"the broker at {where} refuses this user or password") from None
    except exceptions.ProbableAccessDeniedError:
        raise BrokerUnavailable(
            f"the broker at {where} has no such virtual host, or the user may not use it; "
            "`rabbitmqctl list_permissions -p VHOST` tells"
        ) from None
    except exceptions.AMQPConnectionError as error:
        reason = _reason(error)
        raise BrokerUnavailable(f"no broker answers at {where}: {reason}") from None
    except OSError as error:
        raise BrokerUnavailable(f"no broker answers at {where}: {error.strerror or error}") from None


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


def _reason(error: BaseException) -> str:
    """The innermost sentence that pika gives; its outer ones are often empty."""
    while error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    inner = getattr(error, "exception", None)
    if isinstance(inner, BaseException):
        return _reason(inner)
    return str(error) or type(error).__name__
