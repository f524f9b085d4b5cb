"""Why a connection did not open or was lost: one sentence for each exception of pika and Python. No password appears in it."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import Final

from rabbit_chx.advice import Advice
from rabbit_chx.broker.permissions import Needs, why_denied
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.plugins import why_refused_type

# Reply codes of the broker after which the same attempt would end the same way (AMQP 0-9-1, section 1.2).
_BROKER: Final = "the broker"
"""Instead of an address, where the caller knows none."""
_PERMANENT_CODES: Final = {402, 403, 404, 406, 501, 503, 504, 505, 530, 540}
# If a connection ends before it is open, pika guesses the reason and keeps the broker's own words as text.
_CLOSED_BY_BROKER = re.compile(r"ConnectionClosedByBroker: \((\d+)\) ['\"](.*)['\"]", re.DOTALL).search
_NO_PERMISSION = re.compile(r"access to vhost '(.*)' refused for user '(.*)'", re.DOTALL).search
_TLS_ALERT = re.compile(r"\[SSL: (\w*ALERT\w*)\]").search
_TLS_RECORDS: Final = (b"\x15", b"\x16")
"""The first bytes of an alert and of a handshake."""
_NOT_TLS: Final = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"}
_TRUST: Final = f"to trust the CA that issued its certificate, {Advice.TRUST_CA}"

_SILENT: Final = "the broker log says why; a frame_max below 8192 does it on RabbitMQ 4.1 and later"
_NOT_OPENED: Final = {
    "ProbableAuthenticationError": "was lost during authentication",
    "ProbableAccessDeniedError": f"was lost after authentication ({_SILENT})",
    "IncompatibleProtocolError": "ended before the broker sent anything (is this a port with TLS? Then the URL "
    "begins with amqps)",
}
"""The meaning of pika's guesses at the reason, if the broker itself gave none."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a connection is down, and whether the next attempt would end the same way."""

    text: str
    permanent: bool = False

    def __str__(self) -> str:
        return self.text


class NotAmqp(ConnectionError):
    """The server speaks another protocol, as its first bytes show."""

    def __init__(self, first: bytes) -> None:
        super().__init__()
        self.first = first


def why_down(error: BaseException, where: str, *, needs: Needs | None = None) -> Reason:
    """Explain an exception of pika, whose own text is often empty.

    ``needs`` are the permissions that the work takes: the explanation names them if one is missing.
    """
    from pika import exceptions

    error = _innermost(error)
    if (ending := _NOT_OPENED.get(type(error).__name__)) is not None:
        return _why_not_opened(str(error), where, ending)
    match error:
        case BrokerUnavailable():
            return Reason(str(error), error.permanent)
        case exceptions.ConnectionOpenAborted():
            hint = f" after authentication ({_SILENT})" if "TUNE" in str(error) else ""
            return Reason(f"{_the_broker(where)} took too long to open the connection{hint}")
        case exceptions.ConnectionBlockedTimeout():
            return Reason(
                f"{_the_broker(where)} blocked publishing for too long (memory or disk alarm)",
                permanent=True,
            )
        case exceptions.NoFreeChannels():
            return Reason(
                f"{_the_broker(where)} allows too few channels on a connection: increase channel_max in "
                "rabbitmq.conf or in the URL",
                permanent=True,
            )
        case exceptions.ConnectionClosedByBroker() | exceptions.ChannelClosedByBroker():
            return _why_closed(error.reply_code, error.reply_text, where, needs or Needs())
        case exceptions.ProtocolVersionMismatch() | exceptions.InvalidFrameError():
            return Reason(f"{_the_server(where)} does not speak AMQP 0-9-1", permanent=True)
        case exceptions.StreamLostError() | exceptions.AMQPHeartbeatTimeout():
            return Reason(f"the connection to {where} was lost: {error}")
        case NotAmqp():
            hint = " but TLS: its URL begins with amqps" if error.first.startswith(_TLS_RECORDS) else ""
            return Reason(f"{_the_server(where)} does not speak AMQP 0-9-1{hint}", permanent=True)
        case exceptions.AuthenticationError():
            return why_external_refused(where)
        case _:
            return why_unreachable(error, where)


def _the_broker(where: str) -> str:
    """The broker at an address; a caller that does not know the address calls it the broker."""
    return where if where == _BROKER else f"the broker at {where}"


def _the_server(where: str) -> str:
    return where if where == _BROKER else f"the server at {where}"


def _no_answer(where: str) -> str:
    return "the broker does not answer" if where == _BROKER else f"no broker answers at {where}"


def why_refused(
    error: BaseException,
    needs: Needs,
    *,
    at: Needs | None = None,
    what: str = "this",
    where: str = _BROKER,
) -> str:
    """Why the broker refused work that needs these permissions (see `why_denied`), or ended the connection."""
    words = str(getattr(error, "reply_text", error))
    return (
        why_denied(words, needs, at=at, what=what) or why_refused_type(words) or str(why_down(error, where))
    )


def why_unreachable(error: BaseException, where: str) -> Reason:
    """Explain an error below AMQP."""
    match error:
        case ssl.SSLError():
            return why_tls_failed(error, f"{_the_broker(where)}")
        case TimeoutError():
            return Reason(f"{_no_answer(where)}: timed out")
        case OSError():
            return Reason(f"{_no_answer(where)}: {error.strerror or error}")
        case _:
            return Reason(f"{_no_answer(where)}: {str(error) or type(error).__name__}")


def why_reset(error: ValueError, where: str) -> Reason:
    """Explain what pika raises if the peer resets a connection as soon as it has accepted it; raise any other error again.

    A proxy resets connections while its broker is down.
    """
    if "getpeername" not in str(error):
        raise error
    return Reason(f"{where} accepted the connection and closed it at once")


def why_external_refused(where: str) -> Reason:
    """Explain that the broker does not offer EXTERNAL on this connection."""
    return Reason(
        f"{_the_broker(where)} still requires a password: EXTERNAL needs the plugin rabbitmq_auth_mechanism_ssl, "
        "auth_mechanisms.1 = EXTERNAL in rabbitmq.conf, and a client certificate",
        permanent=True,
    )


def why_rejected(code: int, words: str, where: str) -> Reason:
    """Explain the broker's reply to a connection that was not open yet."""
    if code == 403 and "EXTERNAL" in words:
        return Reason(
            f"{_the_broker(where)} rejected the client certificate: no user matches its name (ssl_cert_login_from says "
            "which part counts), or ssl_options.verify is not verify_peer; the broker log says which",
            permanent=True,
        )
    if code == 403:
        hint = "; guest may only connect from localhost" if "user 'guest'" in where else ""
        return Reason(f"{_the_broker(where)} rejected the user name or password{hint}", permanent=True)
    if code == 530 and (denied := _NO_PERMISSION(words)):
        return Reason(
            f"the user {denied[2]!r} has no permission in the virtual host {denied[1]!r} of {_the_broker(where)}: "
            f"`{Needs().line(denied[1], denied[2])}` lets it connect",
            permanent=True,
        )
    if code == 530 and "not found" in words:
        return Reason(f"{_the_broker(where)} has no such virtual host", permanent=True)
    if code == 530 and not words:  # aiormq drops them
        return Reason(
            f"{_the_broker(where)} has no such virtual host, or the user has no permission there, or reached a "
            "connection limit; the broker log says which",
            permanent=True,
        )
    return Reason(f"{_the_broker(where)} closed the connection: {code} {words}")


def why_tls_failed(error: ssl.SSLError, peer: str) -> Reason:
    """Explain why there is no TLS connection to a peer."""
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return Reason(f"the connection to {peer} was lost during the TLS handshake")
    words = getattr(error, "verify_message", "") or error.reason or str(error)
    hint = "; is this a port without TLS?" if error.reason in _NOT_TLS else ""
    if "issuer" in words or "self-signed" in words:
        hint = f"; {_TRUST}"
    return Reason(f"TLS with {peer} failed: {words}{hint}", permanent=True)


def _why_closed(code: int, words: str, where: str, needs: Needs) -> Reason:
    """Explain why the broker closed an open connection or a channel."""
    if denied := why_denied(words, needs):
        words = f"ACCESS_REFUSED, {denied}"
    if unknown := why_refused_type(words):
        words += f"; {unknown}"
    text = f"{_the_broker(where)} closed the connection or channel: {code} {words}"
    return Reason(text, permanent=code in _PERMANENT_CODES)


def _why_not_opened(text: str, where: str, otherwise: str) -> Reason:
    """Explain why a connection ended before it was open; the broker's words decide, not how far it had come."""
    if alert := _TLS_ALERT(text):
        return Reason(f"TLS with {_the_broker(where)} failed: {alert[1]}", permanent=True)
    closed = _CLOSED_BY_BROKER(text)
    if closed is None:  # a broker that is killed ends the connection, too: no fault of user or password
        return Reason(f"the connection to {where} {otherwise}")
    return why_rejected(int(closed[1]), closed[2], where)


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
