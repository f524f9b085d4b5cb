"""Open an AMQP connection, and say clearly why it did not open. Passwords appear in no text."""

from __future__ import annotations

import re
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from rabbit_chx.errors import BrokerUnavailable, InvalidValue

if TYPE_CHECKING:
    import pika

__all__ = [
    "Credentials",
    "NotAmqp",
    "Reason",
    "asked_for",
    "at_vhost",
    "check_credentials",
    "connect",
    "describe",
    "management_of",
    "parameters_of",
    "server_version",
    "vhost_of",
    "why_down",
]

Credentials = Callable[[], tuple[str, str]] | Path
"""Asked for user and password, or a file with the password of the URL's user; either way on each connect."""

# Reply codes of the broker after which the same attempt would end the same way (AMQP 0-9-1, section 1.2).
_PERMANENT_CODES: Final = {402, 403, 404, 406, 501, 503, 504, 505, 530, 540}
# Where a connection ends before it is open, pika guesses why and keeps the broker's own words as text.
_CLOSED_BY_BROKER = re.compile(r"ConnectionClosedByBroker: \((\d+)\) ['\"](.*)['\"]", re.DOTALL).search
_TLS_ALERT = re.compile(r"\[SSL: (\w*ALERT\w*)\]").search
_TLS_RECORDS: Final = (b"\x15", b"\x16")
"""How an alert and a handshake begin."""
_NOT_TLS: Final = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a connection is down, for people, and whether trying again is of no use."""

    text: str
    permanent: bool = False

    def __str__(self) -> str:
        return self.text


class NotAmqp(ConnectionError):
    """What answers speaks another protocol; its first bytes tell which."""

    def __init__(self, first: bytes) -> None:
        super().__init__()
        self.first = first


def describe(url: str) -> str:
    """The broker of an AMQP URL for people to read: host, port, virtual host and user."""
    parts = _split(url)
    user, _ = _user_of(parts)
    return f"{parts.hostname}:{_port(parts)}, virtual host {_vhost(parts)!r}, user {user!r}"


def at_vhost(url: str, vhost: str) -> str:
    """The same broker with that virtual host, which the URL may leave open but not contradict."""
    parts = _split(url)
    if parts.path not in {"", "/"} and _vhost(parts) != vhost:
        raise InvalidValue(
            "the virtual host of the broker's URL",
            got=_vhost(parts),
            allowed=repr(vhost),
            way_out="leave it out of the URL, since the file says which one",
        )
    return parts._replace(path="/" + quote(vhost, safe="")).geturl()


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


def asked_for(credentials: Credentials | None, url: str) -> Callable[[], tuple[str, str]]:
    """User and password for a broker, to be asked for anew each time."""
    return lambda: _user_of(_split(url)) if credentials is None else _ask(credentials, url)


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

    User and password are the URL's, unless there are ``credentials``. With ``amqps`` certificate and host name
    are checked, unless ``tls`` is another context.
    """
    import pika

    parts = _split(url)
    user, password = _user_of(parts) if credentials is None else _ask(credentials, url)
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
    try:
        return pika.BlockingConnection(parameters)
    except AMQPConnectorException:  # of a peer that keeps silent; it is none of pika's AMQPError
        raise BrokerUnavailable(
            f"what answers at {describe(url)} took the connection and said nothing: is that the port of AMQP?"
        ) from None
    except (AMQPError, OSError) as error:
        raise BrokerUnavailable(str(why_down(error, describe(url)))) from None


def why_down(error: BaseException, where: str) -> Reason:
    """The one sentence behind an exception of pika's, whose own is often empty."""
    from pika import exceptions

    error = _innermost(error)
    match error:
        case BrokerUnavailable():
            return Reason(str(error))
        case exceptions.ProbableAuthenticationError() | exceptions.ProbableAccessDeniedError():
            return _why_not_opened(str(error), where, "was lost while it was opened")
        case exceptions.IncompatibleProtocolError():
            silence = "ended before the broker said a word (is that a port with TLS? then amqps)"
            return _why_not_opened(str(error), where, silence)
        case exceptions.ConnectionBlockedTimeout():
            return Reason(
                f"the broker at {where} blocked publishing for too long (memory or disk alarm)",
                permanent=True,
            )
        case exceptions.ConnectionClosedByBroker() | exceptions.ChannelClosedByBroker():
            text = f"the broker at {where} closed it: {error.reply_code} {error.reply_text}"
            return Reason(text, permanent=error.reply_code in _PERMANENT_CODES)
        case exceptions.ProtocolVersionMismatch() | exceptions.InvalidFrameError():
            return Reason(f"what answers at {where} does not speak AMQP 0-9-1", permanent=True)
        case exceptions.StreamLostError() | exceptions.AMQPHeartbeatTimeout():
            return Reason(f"the connection to {where} was lost: {error}")
        case NotAmqp():
            hint = ", but TLS: its URL begins with amqps" if error.first.startswith(_TLS_RECORDS) else ""
            return Reason(f"what answers at {where} does not speak AMQP 0-9-1{hint}", permanent=True)
        case ssl.SSLError():
            return _why_no_tls(error, where)
        case OSError():
            return Reason(f"no broker answers at {where}: {error.strerror or error}")
        case _:
            return Reason(f"no broker answers at {where}: {error or type(error).__name__}")


def _why_not_opened(text: str, where: str, otherwise: str) -> Reason:
    """Why a connection ended before it was open: what the broker said counts, not how far it had come."""
    if alert := _TLS_ALERT(text):
        return Reason(f"TLS with the broker at {where} fails: {alert[1]}", permanent=True)
    said = _CLOSED_BY_BROKER(text)
    if said is None:  # it died, as with a broker that is killed: that says nothing of user or password
        return Reason(f"the connection to {where} {otherwise}")
    code, words = int(said[1]), said[2]
    if code == 403:
        return Reason(f"the broker at {where} refuses this user or password", permanent=True)
    if code == 530 and "limit" not in words:
        return Reason(
            f"the broker at {where} has no such virtual host, or the user may not use it; "
            "`rabbitmqctl list_permissions -p VHOST` tells",
            permanent=True,
        )
    return Reason(f"the broker at {where} closed it: {code} {words}")


def _why_no_tls(error: ssl.SSLError, where: str) -> Reason:
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return Reason(f"the connection to {where} was lost while TLS was set up")
    words = getattr(error, "verify_message", "") or error.reason or str(error)
    hint = " (is that a port without TLS?)" if error.reason in _NOT_TLS else ""
    return Reason(f"TLS with the broker at {where} fails: {words}{hint}", permanent=True)


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
            "the broker's URL",
            got="a text that is none",
            allowed="amqp://user:password@host:5672/vhost, or amqps://",
            way_out="write special characters of user, password and virtual host as %XX (a slash is %2F); "
            "options behind a ? are not taken",
        )
    return parts


def _parsed(url: str) -> SplitResult | None:
    if any(character.isspace() for character in url):  # urlsplit() takes some of them out in silence
        return None
    try:
        parts = urlsplit(url)
        usable = (
            parts.scheme in {"amqp", "amqps"} and parts.hostname and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        return None
    # An unescaped password ends where one of / ? # stands in it; what follows holds the @ of the host.
    strange = "/" in parts.path[1:] or "@" in parts.path or parts.query or parts.fragment
    return parts if usable and not strange else None


def _user_of(parts: SplitResult) -> tuple[str, str]:
    return unquote(parts.username or "guest"), unquote(parts.password or "guest")


def check_credentials(credentials: object) -> None:
    """Refuse what will never tell a password, before anything connects."""
    if isinstance(credentials, Path):
        _password_in(credentials)
    elif not (credentials is None or callable(credentials)):
        raise InvalidValue(
            "credentials",
            got=type(credentials).__name__,  # never the value: it may be a password
            allowed="a callable that returns user and password, or the pathlib.Path of a file with the password",
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
            "the password file",
            got=str(path),
            allowed="a file with the password as its one line",
            way_out=problem,
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
