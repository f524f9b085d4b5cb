"""Why a connection did not open, or is gone: one sentence out of what pika and Python raise. No socket, no password."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import Final

from rabbit_chx.broker.permissions import Needs, why_denied
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.plugins import why_no_type

__all__ = [
    "NotAmqp",
    "Reason",
    "why_down",
    "why_no_external",
    "why_no_tls",
    "why_not_let_in",
    "why_not_reached",
]

# Reply codes of the broker after which the same attempt would end the same way (AMQP 0-9-1, section 1.2).
_PERMANENT_CODES: Final = {402, 403, 404, 406, 501, 503, 504, 505, 530, 540}
# Where a connection ends before it is open, pika guesses why and keeps the broker's own words as text.
_CLOSED_BY_BROKER = re.compile(r"ConnectionClosedByBroker: \((\d+)\) ['\"](.*)['\"]", re.DOTALL).search
_NO_TYPE = re.compile(r"exchange type (\S+) not found").search
"""What is said to a publisher when the plugin of its exchange is disabled."""
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


def why_down(error: BaseException, where: str, *, needs: Needs | None = None) -> Reason:
    """The one sentence behind an exception of pika's, whose own is often empty.

    Where a permission is missing, ``needs`` are those that the work takes.
    """
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
            code, words = error.reply_code, error.reply_text
            if denied := why_denied(words, needs or Needs()):
                words = f"ACCESS_REFUSED, {denied}"
            if gone := _NO_TYPE(words):
                words += f"; {why_no_type(gone[1])}"
            return Reason(
                f"the broker at {where} closed it: {code} {words}", permanent=code in _PERMANENT_CODES
            )
        case exceptions.ProtocolVersionMismatch() | exceptions.InvalidFrameError():
            return Reason(f"what answers at {where} does not speak AMQP 0-9-1", permanent=True)
        case exceptions.StreamLostError() | exceptions.AMQPHeartbeatTimeout():
            return Reason(f"the connection to {where} was lost: {error}")
        case NotAmqp():
            hint = ", but TLS: its URL begins with amqps" if error.first.startswith(_TLS_RECORDS) else ""
            return Reason(f"what answers at {where} does not speak AMQP 0-9-1{hint}", permanent=True)
        case exceptions.AuthenticationError():
            return why_no_external(where)
        case _:
            return why_not_reached(error, where)


def why_not_reached(error: BaseException, where: str) -> Reason:
    """The same for errors below AMQP, which are Python's own."""
    match error:
        case ssl.SSLError():
            return why_no_tls(error, f"the broker at {where}")
        case TimeoutError():
            return Reason(f"no broker answers at {where}: it takes too long")
        case OSError():
            return Reason(f"no broker answers at {where}: {error.strerror or error}")
        case _:
            return Reason(f"no broker answers at {where}: {str(error) or type(error).__name__}")


def why_no_external(where: str) -> Reason:
    """The broker does not offer EXTERNAL to this connection."""
    return Reason(
        f"the broker at {where} asks for a password all the same: EXTERNAL takes the plugin "
        "rabbitmq_auth_mechanism_ssl, auth_mechanisms.1 = EXTERNAL in rabbitmq.conf, and a certificate that was shown",
        permanent=True,
    )


def _why_not_opened(text: str, where: str, otherwise: str) -> Reason:
    """Why a connection ended before it was open: what the broker said counts, not how far it had come."""
    if alert := _TLS_ALERT(text):
        return Reason(f"TLS with the broker at {where} fails: {alert[1]}", permanent=True)
    said = _CLOSED_BY_BROKER(text)
    if said is None:  # it died, as with a broker that is killed: that says nothing of user or password
        return Reason(f"the connection to {where} {otherwise}")
    return why_not_let_in(int(said[1]), said[2], where)


def why_not_let_in(code: int, words: str, where: str) -> Reason:
    """What the broker said before the connection was open."""
    if code == 403 and "EXTERNAL" in words:
        return Reason(
            f"the broker at {where} lets nobody in by this certificate: it takes a user by the name in it (in the part "
            "that ssl_cert_login_from says), and ssl_options.verify = verify_peer; the broker's log tells which is missing",
            permanent=True,
        )
    if code == 403:
        return Reason(f"the broker at {where} refuses this user or password", permanent=True)
    if code == 530 and "limit" not in words:
        return Reason(
            f"the broker at {where} has no such virtual host, or the user may not use it; "
            "`rabbitmqctl list_permissions -p VHOST` tells",
            permanent=True,
        )
    return Reason(f"the broker at {where} closed it: {code} {words}")


def why_no_tls(error: ssl.SSLError, peer: str) -> Reason:
    """Why there is no secure connection with somebody, or no longer."""
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return Reason(f"the connection to {peer} was lost while TLS was set up")
    words = getattr(error, "verify_message", "") or error.reason or str(error)
    hint = " (is that a port without TLS?)" if error.reason in _NOT_TLS else ""
    return Reason(f"TLS with {peer} fails: {words}{hint}", permanent=True)


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
