"""Opening a connection: properties, login, limits and virtual host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rabbit_chx.base.urls import MAX_PORT, BrokerUrl
from rabbit_chx.broker.amqp import version_in
from rabbit_chx.broker.credentials import Credentials, check_credentials, login
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.reasons import why_not_offered, why_rejected
from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.mirror.releases import Release
from rabbit_chx.streams.protocol.answers import OK, U32, Command, Node, Tune
from rabbit_chx.streams.protocol.calls import Calls
from rabbit_chx.streams.protocol.requests import binary, one_way, string, string_map

_AUTHENTICATION: Final = 8
_VIRTUAL_HOST: Final = 12
_ACCESS_REFUSED: Final = 403
"""The code in AMQP 0-9-1 that corresponds to `_AUTHENTICATION`."""


WRONG_PORT: Final = "; is this the port of the stream protocol, and without TLS?"
"""What to ask about a server that does not answer, unless it did before."""


def shake_hands(
    calls: Calls, url: BrokerUrl, credentials: Credentials | None, connection_name: str, heartbeat: int
) -> tuple[str, Node | None]:
    """Log in, agree limits and open the virtual host; return the broker's release and its advertised node.

    Raises:
        StreamUnavailable: the broker refused a step, or does not answer.
    """
    own = {"product": "rabbit-chx", "connection_name": connection_name}
    try:
        properties = calls.call(Command.PEER_PROPERTIES, string_map(own)).string_map()
    except StreamUnavailable as error:
        if error.problem != "lost" or url.tls:
            raise
        raise StreamUnavailable(f"{error}{WRONG_PORT}", "lost") from None
    try:
        release = version_in(properties)
    except BrokerUnavailable as error:
        raise StreamUnavailable(f"{calls.wire.where}: {error}", "unsupported") from None
    if url.external and Release._of_broker(release)._rejects_stream_certificates:
        raise StreamUnavailable(
            f"the broker at {calls.wire.where} is RabbitMQ {release}, which does not support client certificates instead of "
            "passwords on the stream port",
            "unsupported",
        )
    calls.vhost = url.vhost
    calls.user = _log_in(calls, url, credentials)
    _agree_limits(calls, int(url.parameters.get("heartbeat", heartbeat)))
    answer = calls.answer(Command.OPEN, string(url.vhost))
    if answer.code == _VIRTUAL_HOST:
        line = Needs().line(url.vhost, calls.user or "USER")
        raise StreamUnavailable(
            f"the broker at {url} has no such virtual host, or the user has no permission in it: `{line}` lets the user connect",
            "virtual host",
        )
    if answer.code != OK:
        raise calls.refusal(answer)
    return release, _node(answer.fields.string_map(), calls.wire.where)


def _log_in(calls: Calls, url: BrokerUrl, credentials: Credentials | None) -> str | None:
    """Log in and return the user; None with a client certificate."""
    where = calls.wire.where
    mechanism = "EXTERNAL" if url.external else "PLAIN"
    if mechanism not in calls.call(Command.SASL_HANDSHAKE).strings():
        raise StreamUnavailable(str(why_not_offered(where, external=url.external)), "login")
    if url.external or not isinstance(credentials, Path):  # a file may be incomplete for a moment
        check_credentials(credentials, url)
    user, proof = None, b""
    if not url.external:
        try:
            user, password = login(credentials, url)
        except BrokerUnavailable as error:
            raise StreamUnavailable(str(error), "lost") from None  # the next attempt may succeed
        proof = b"\0".join((b"", user.encode(), password.encode()))
    answer = calls.answer(Command.SASL_AUTHENTICATE, string(mechanism), binary(proof))
    if answer.code == _AUTHENTICATION:
        why = why_rejected(_ACCESS_REFUSED, "EXTERNAL" if url.external else "", where)
        raise StreamUnavailable(str(why), "login")
    if answer.code != OK:
        raise calls.refusal(answer)
    return user


def _agree_limits(calls: Calls, wanted: int) -> None:
    proposed = calls.take(lambda: calls.tune, calls.timeout) or Tune(0, 0)
    # 0 on either side disables heartbeats. frame_max is not lowered: the broker's value is what the broker accepts.
    heartbeat = min(wanted, proposed.heartbeat) if wanted and proposed.heartbeat else 0
    calls.send(one_way(Command.TUNE, U32.pack(proposed.frame_max), U32.pack(heartbeat)))
    calls.wire.frame_max = proposed.frame_max
    calls.wire.heartbeat = float(heartbeat)


def _node(properties: Mapping[str, str], where: str) -> Node | None:
    host, port = (properties.get(f"advertised_{name}", "") for name in ("host", "port"))
    if not (host and port.isdecimal()):
        return None
    number = int(port) if len(port) <= len(str(MAX_PORT)) else 0
    if not 0 < number <= MAX_PORT:
        raise StreamUnavailable(
            f"the broker at {where} advertises the invalid port {port[:10]!r}", "protocol"
        )
    return Node(host, number)
