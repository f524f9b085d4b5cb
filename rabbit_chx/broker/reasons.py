"""Why a connection did not open or was lost: the error to raise for each exception of pika and Python. No password appears in it."""

from __future__ import annotations

import re
import ssl
from typing import Final

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.plugins import why_refused_type
from rabbit_chx.base.text import text_of_reply, unescaped
from rabbit_chx.broker.permissions import Needs, backend_failed, why_denied
from rabbit_chx.errors import BrokerUnavailable

_BROKER: Final = "the broker"
"""Instead of an address, where the caller knows none."""
# Reply codes of the broker after which the same attempt would end the same way (AMQP 0-9-1, section 1.2).
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


class NotAmqp(ConnectionError):
    """The server speaks another protocol, as its first bytes show."""

    def __init__(self, first: bytes) -> None:
        super().__init__()
        self.first = first


def why_down(error: BaseException, where: str, *, needs: Needs | None = None) -> BrokerUnavailable:
    """Explain an exception of pika, whose own text is often empty.

    ``needs`` are the permissions that the work takes: the explanation names them if one is missing.
    """
    from pika import exceptions

    error = _innermost(error)
    if (ending := _NOT_OPENED.get(type(error).__name__)) is not None:
        return _why_not_opened(str(error), where, ending)
    match error:
        case BrokerUnavailable():
            return error
        case exceptions.ConnectionOpenAborted():
            hint = f" after authentication ({_SILENT})" if "TUNE" in str(error) else ""
            return BrokerUnavailable(f"{_the_broker(where)} took too long to open the connection{hint}")
        case exceptions.ConnectionBlockedTimeout():
            text = f"{_the_broker(where)} blocked publishing for too long (memory or disk alarm)"
        case exceptions.NoFreeChannels():
            text = (
                f"{_the_broker(where)} allows too few channels on a connection: increase channel_max in "
                "rabbitmq.conf or in the URL"
            )
        case exceptions.ConnectionClosedByBroker() | exceptions.ChannelClosedByBroker():
            return _why_closed(error.reply_code, text_of_reply(error.reply_text), where, needs or Needs())
        case exceptions.ProtocolVersionMismatch() | exceptions.InvalidFrameError() | NotAmqp():
            is_tls = isinstance(error, NotAmqp) and error.first.startswith(_TLS_RECORDS)
            hint = " but TLS: its URL begins with amqps" if is_tls else ""
            server = where if where == _BROKER else f"the server at {where}"
            text = f"{server} does not speak AMQP 0-9-1{hint}"
        case exceptions.StreamLostError() | exceptions.AMQPHeartbeatTimeout():
            return BrokerUnavailable(f"the connection to {where} was lost: {error}")
        case exceptions.AuthenticationError():
            return why_not_offered(where, external=error.args == ("EXTERNAL",))
        case _:
            return why_unreachable(error, where)
    return BrokerUnavailable(text, permanent=True)


def _the_broker(where: str) -> str:
    """The broker at an address; a caller that does not know the address calls it the broker."""
    return where if where == _BROKER else f"the broker at {where}"


def why_refused(error: BaseException, needs: Needs, *, at: Needs | None = None, what: str = "this") -> str:
    """Why the broker refused work that needs these permissions (see `why_denied`), or ended the connection."""
    words = text_of_reply(str(getattr(error, "reply_text", error)))
    denied = why_denied(words, needs, at=at, what=what)
    return denied or why_refused_type(words) or str(why_down(error, _BROKER))


def why_unreachable(error: BaseException, where: str) -> BrokerUnavailable:
    """Explain an error below AMQP."""
    match error:
        case ssl.SSLError():
            return why_tls_failed(error, _the_broker(where))
        case TimeoutError():
            reason = "timed out"
        case OSError():
            reason = error.strerror or str(error)
        case _:
            reason = str(error) or type(error).__name__
    silent = "the broker does not answer" if where == _BROKER else f"no broker answers at {where}"
    return BrokerUnavailable(f"{silent}: {reason}")


def why_reset(error: ValueError, where: str) -> BrokerUnavailable:
    """Explain what pika raises if the peer resets a connection as soon as it has accepted it; raise any other error again.

    A proxy resets connections while its broker is down.
    """
    if "getpeername" not in str(error):
        raise error
    return BrokerUnavailable(f"{where} accepted the connection and closed it at once")


def why_not_offered(where: str, *, external: bool) -> BrokerUnavailable:
    """Explain that the broker does not offer EXTERNAL on this connection, or else PLAIN."""
    why = (
        "still requires a password: EXTERNAL needs the plugin rabbitmq_auth_mechanism_ssl, "
        "auth_mechanisms.1 = EXTERNAL in rabbitmq.conf (and auth_mechanisms.2 = PLAIN, to accept passwords as well), "
        "and a client certificate"
        if external
        else "does not accept passwords: add auth_mechanisms.2 = PLAIN to rabbitmq.conf, or log in with a client "
        "certificate (auth_mechanism=external in the URL)"
    )
    return BrokerUnavailable(f"{_the_broker(where)} {why}", permanent=True)


def why_rejected(code: int, words: str, where: str) -> BrokerUnavailable:
    """Explain the broker's reply to a connection that was not open yet."""
    broker = _the_broker(where)
    if code == 403 and "EXTERNAL" in words:
        text = (
            f"{broker} rejected the client certificate: no user matches its name (ssl_cert_login_from says "
            "which part counts), or ssl_options.verify is not verify_peer; the broker log says which"
        )
    elif code == 403:
        hint = "; by default, guest may only connect from localhost" if "user 'guest'" in where else ""
        text = f"{broker} rejected the user name or password{hint}"
    elif code == 530 and (denied := _NO_PERMISSION(words)):
        address = where.partition(", virtual host ")[0]  # which the broker's words name, too
        text = (
            f"the user {denied[2]!r} has no permission in the virtual host {denied[1]!r} of {_the_broker(address)}: "
            f"`{Needs().line(denied[1], denied[2])}` lets it connect"
        )
    elif code == 530 and "not found" in words:
        text = f"{broker} has no such virtual host"
    elif code == 530 and not words:  # aiormq drops them
        text = (
            f"{broker} has no such virtual host, or the user has no permission there, or reached a "
            "connection limit; the broker log says which"
        )
    else:
        return BrokerUnavailable(f"{broker} closed the connection: {code} {words}")
    return BrokerUnavailable(text, permanent=True)


def why_tls_failed(error: ssl.SSLError, peer: str) -> BrokerUnavailable:
    """Explain why there is no TLS connection to a peer."""
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return BrokerUnavailable(f"the connection to {peer} was lost during the TLS handshake")
    words = getattr(error, "verify_message", "") or error.reason or str(error)
    hint = "; is this a port without TLS?" if error.reason in _NOT_TLS else ""
    if "issuer" in words or "self-signed" in words:
        hint = f"; {_TRUST}"
    return BrokerUnavailable(f"TLS with {peer} failed: {words}{hint}", permanent=True)


def _why_closed(code: int, words: str, where: str, needs: Needs) -> BrokerUnavailable:
    """Explain why the broker closed an open connection or a channel."""
    permanent = code in _PERMANENT_CODES and not backend_failed(words)
    if denied := why_denied(words, needs):
        words = f"ACCESS_REFUSED, {denied}"
    if unknown := why_refused_type(words):
        words += f"; {unknown}"
    text = f"{_the_broker(where)} closed the connection or channel: {code} {words}"
    return BrokerUnavailable(text, permanent=permanent)


def _why_not_opened(text: str, where: str, otherwise: str) -> BrokerUnavailable:
    """Explain why a connection ended before it was open; the broker's words decide, not how far it had come."""
    if alert := _TLS_ALERT(text):
        return BrokerUnavailable(f"TLS with {_the_broker(where)} failed: {alert[1]}", permanent=True)
    closed = _CLOSED_BY_BROKER(text)
    if closed is None:  # a broker that is killed ends the connection, too: no fault of user or password
        return BrokerUnavailable(f"the connection to {where} {otherwise}")
    return why_rejected(int(closed[1]), text_of_reply(unescaped(closed[2])), where)


def _innermost(error: BaseException) -> BaseException:
    """The error that pika has wrapped, maybe more than once."""
    while True:
        last = (getattr(error, "exceptions", None) or [None])[-1]
        wrapped = (*error.args[:1], getattr(error, "exception", None), last)
        inner = next((each for each in wrapped if isinstance(each, BaseException)), None)
        if inner is None:
            return error
        error = inner
