"""Open an AMQP connection, and say clearly why it did not open. Passwords appear in no text."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from rabbit_chx.broker.reasons import why_down
from rabbit_chx.broker.tls import warn_if_unchecked
from rabbit_chx.errors import BrokerUnavailable, InvalidValue

if TYPE_CHECKING:
    import pika

__all__ = [
    "Credentials",
    "asked_for",
    "at_vhost",
    "by_certificate",
    "check_credentials",
    "connect",
    "describe",
    "management_of",
    "parameters_of",
    "parsed",
    "server_version",
    "vhost_of",
    "without_vhost",
]

Credentials = Callable[[], tuple[str, str]] | Path
"""Asked for user and password, or a file with the password of the URL's user; either way on each connect."""

_EXTERNAL: Final = "auth_mechanism=external"
"""Behind the ? of a URL: the client's certificate says who the user is (SASL EXTERNAL), and there is no password."""


def describe(url: str) -> str:
    """The broker of an AMQP URL for people to read: host, port, virtual host and user."""
    parts = _split(url)
    user = "user of the certificate" if _by_certificate(parts) else f"user {_user_of(parts)[0]!r}"
    return f"{parts.hostname}:{_port(parts)}, virtual host {_vhost(parts)!r}, {user}"


def at_vhost(url: str, vhost: str) -> str:
    """The same broker with that virtual host, which the URL may leave open but not contradict."""
    parts = _split(url)
    if parts.path not in {"", "/"} and _vhost(parts) != vhost:
        raise InvalidValue(
            "virtual host of the broker's URL",
            _vhost(parts),
            repr(vhost),
            "Leave it out of the URL, since the file says which one",
        )
    return parts._replace(path="/" + quote(vhost, safe="")).geturl()


def without_vhost(url: str) -> str:
    """The same broker, whatever virtual host the URL names."""
    return _split(url)._replace(path="").geturl()


def vhost_of(url: str) -> str:
    """The virtual host that a URL names."""
    return _vhost(_split(url))


def management_of(url: str) -> str:
    """Where the management API of a broker is by default, with user and password of its URL."""
    parts = _split(url)
    scheme, port = ("https", 15671) if parts.scheme == "amqps" else ("http", 15672)
    user, _, _ = parts.netloc.rpartition("@")
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{scheme}://{user + '@' if user else ''}{host}:{port}"


def by_certificate(url: str) -> bool:
    """Whether the client's certificate stands for user and password."""
    return _by_certificate(_split(url))


def asked_for(credentials: Credentials | None, url: str) -> Callable[[], tuple[str, str]]:
    """User and password for a broker, to be asked for anew each time."""

    def ask() -> tuple[str, str]:
        if _by_certificate(_split(url)):
            raise InvalidValue(
                "user of the management API",
                _EXTERNAL,
                "a user and a password: this API takes no certificates for them",
                "Write both into the management URL",
            )
        return _user_of(_split(url)) if credentials is None else _ask(credentials, url)

    return ask


def parameters_of(
    url: str,
    *,
    name: str = "rabbit-chx",
    timeout: float = 5.0,
    heartbeat: int = 60,
    blocked_timeout: float = 60.0,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
) -> pika.ConnectionParameters:
    """One attempt at the broker of a URL, which ends within about ``timeout`` seconds.

    User and password are the URL's, unless there are ``credentials``; with ``?auth_mechanism=external`` the certificate
    in ``tls`` stands for both. With ``amqps`` certificate and host name are checked, unless ``tls`` is another context.
    """
    import pika

    parts = _split(url)
    if _by_certificate(parts):
        _no_password_beside(credentials)
        who: Any = pika.credentials.ExternalCredentials()
    else:
        who = pika.PlainCredentials(*(_user_of(parts) if credentials is None else _ask(credentials, url)))
    options = None
    if parts.scheme == "amqps":
        options = pika.SSLOptions(tls or ssl.create_default_context(), parts.hostname)
    return pika.ConnectionParameters(
        host=parts.hostname,
        port=_port(parts),
        virtual_host=_vhost(parts),
        credentials=who,
        ssl_options=options,
        heartbeat=heartbeat,
        blocked_connection_timeout=blocked_timeout,
        connection_attempts=1,
        socket_timeout=timeout,
        stack_timeout=timeout,
        client_properties={"connection_name": name, "product": "rabbit-chx"},
    )


def connect(
    url: str,
    *,
    name: str = "rabbit-chx",
    timeout: float = 5.0,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
) -> pika.BlockingConnection:
    """A blocking connection, for short work."""
    import pika
    from pika.adapters.utils.connection_workflow import AMQPConnectorException
    from pika.exceptions import AMQPError

    parameters = parameters_of(url, name=name, timeout=timeout, credentials=credentials, tls=tls)
    if parameters.ssl_options is not None:
        warn_if_unchecked(tls, describe(url))
    try:
        return pika.BlockingConnection(parameters)
    except AMQPConnectorException:  # of a peer that keeps silent; it is none of pika's AMQPError
        raise BrokerUnavailable(
            f"what answers at {describe(url)} took the connection and said nothing: is that the port of AMQP?"
        ) from None
    except (AMQPError, OSError) as error:
        raise BrokerUnavailable(str(why_down(error, describe(url)))) from None


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
    parts = _parsed(url)
    if parts is None:
        # Neither the text itself nor Python's complaint about it, which quotes: it may hold a password.
        raise InvalidValue(
            "broker's URL",
            "a text that is none",
            "amqp://user:password@host:5672/vhost, or amqps://",
            "Write special characters of user, password and virtual host as %XX (a slash is %2F); "
            f"behind a ? only {_EXTERNAL} is taken",
        )
    if _by_certificate(parts) and (parts.scheme != "amqps" or parts.username is not None):
        raise InvalidValue(
            "broker's URL",
            f"{_EXTERNAL} with a user, or without TLS",
            f"amqps://host:5671/vhost?{_EXTERNAL}, with the client's certificate",
        )
    return parts


def _parsed(url: str) -> SplitResult | None:
    parts = parsed(url, {"amqp", "amqps"})
    strange = parts and ("/" in parts.path[1:] or (parts.query and not _by_certificate(parts)))
    return None if strange else parts


def parsed(url: str, schemes: set[str]) -> SplitResult | None:
    """The parts of a URL; None where it is none. No complaint about it may quote it: it may hold a password."""
    if not url.isprintable() or " " in url:  # urlsplit() takes some of these out in silence
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:  # which quotes, so that it may not stand behind an error either
        return None
    # An unescaped password ends where one of / ? # stands in it; what follows holds the @ of the host.
    return parts if usable and "@" not in parts.path and not parts.fragment else None


def _by_certificate(parts: SplitResult) -> bool:
    return parts.query.lower() == _EXTERNAL


def _user_of(parts: SplitResult) -> tuple[str, str]:
    return unquote(parts.username or "guest"), unquote(parts.password or "guest")


def check_credentials(credentials: object, url: str) -> None:
    """Refuse what will never tell a password, before anything connects."""
    if _by_certificate(_split(url)):
        _no_password_beside(credentials)
    if isinstance(credentials, Path):
        _password_in(credentials)
    elif not (credentials is None or callable(credentials)):
        raise InvalidValue(
            "credentials",
            type(credentials).__name__,  # never the value: it may be a password
            "a callable that returns user and password, or the pathlib.Path of a file with the password",
        )


def _no_password_beside(credentials: object) -> None:
    if credentials is not None:
        raise InvalidValue(
            "credentials",
            f"a password beside {_EXTERNAL}",
            "one of the two",
            "Leave the password out: the certificate stands for it",
        )


def _password_in(path: Path) -> str:
    """The one line of a file. What it holds stands in no complaint, nor in an error behind one."""
    text = problem = ""
    try:
        if stat.S_ISREG(path.stat().st_mode):
            text = path.read_text("utf-8").removesuffix("\n")
            problem = "it is empty" if not text else "it has more lines" if "\n" in text else ""
        else:
            problem = "it is no regular file, and it is read again on each connect"
    except OSError as error:
        problem = str(error.strerror)
    except UnicodeDecodeError:  # which would carry all that was read
        problem = "it is no UTF-8"
    if problem:
        raise InvalidValue(
            "password file",
            str(path),
            "a file with the password as its one line",
            problem,
        )
    return text


def _ask(credentials: Credentials, url: str) -> tuple[str, str]:
    """What they are now; that they cannot be had is no broker's fault, and may pass."""
    try:
        if isinstance(credentials, Path):
            user, password = _user_of(_split(url))[0], _password_in(credentials)
        else:
            user, password = credentials()
    except Exception as error:
        raise BrokerUnavailable(
            f"the credentials for {describe(url)} cannot be had: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(user, str) and isinstance(password, str)):
        raise BrokerUnavailable(f"the credentials for {describe(url)} are not two str")
    return user, password


def _port(parts: SplitResult) -> int:
    return parts.port or (5671 if parts.scheme == "amqps" else 5672)


def _vhost(parts: SplitResult) -> str:
    return unquote(parts.path[1:]) or "/"
