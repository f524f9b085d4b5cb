"""Whether a user may publish to an exchange. The broker is asked; nothing is published."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Sequence
from typing import Final

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

from rabbit_chx.base.text import text_of_reply
from rabbit_chx.base.timeouts import CONNECT
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import connect, expecting_refusals
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.permissions import Needs, why_denied
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.errors import BrokerUnavailable, InvalidValue

_NOT_AN_EXPIRATION: Final = "invalid on purpose: rabbit-chx checks whether it may publish"
"""The broker logs it, so it explains itself."""
_IS_ABOUT_A_TOPIC: Final = re.compile("ACCESS_REFUSED - (write )?access to topic '").match
"""Only the beginning is the broker's own: a name in another refusal may be anything. 3.10 leaves out "write"."""


def check_access(
    url: str | BrokerUrl | Sequence[str | BrokerUrl],
    exchanges: Iterable[str],
    *,
    timeout: float = CONNECT,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
    connection_name: str = "rabbit-chx access check",
) -> None:
    """Connect like a `Publisher` with these arguments and check that the user may publish to each exchange.

    ``timeout`` is in seconds, for each attempt to connect.

    Raises:
        BrokerUnavailable: no broker accepted the connection, or the connection was lost.
        InvalidValue: an exchange is missing, or the user may not publish to it.
    """
    urls = BrokerUrl._several(url)
    where = ", ".join(map(str, urls))
    with connect(
        urls, timeout=timeout, credentials=credentials, tls=tls, connection_name=connection_name
    ) as connection:
        for exchange in exchanges:
            _check_exchange(connection, exchange, where)


def _check_exchange(connection: pika.BlockingConnection, exchange: str, where: str) -> None:
    """Raise if the user may not publish to the exchange.

    A message with an invalid expiration is published. RabbitMQ checks the permission first, then the exchange, then
    that property (``rabbit_channel:handle_method/3``, the clause of ``basic.publish``), and refuses the message
    before routing: the reply shows which check failed.
    """
    try:
        code, text = _reply(connection, exchange)
    except (AMQPError, OSError) as error:
        raise BrokerUnavailable(str(why_down(error, where))) from None
    # Topic permissions depend on the routing key: the check cannot foresee them.
    if not code or (code == 406 and "expiration" in text) or _IS_ABOUT_A_TOPIC(text):
        return
    if code == 404:
        expected, hint = "an exchange that exists", "Declare it first, with rabbit-chx apply"
    else:
        expected = "an exchange to which the user may publish"
        hint = (
            f"The broker replied {code} {why_denied(text, Needs(), what='writing to this exchange') or text}"
        )
    raise InvalidValue("exchange", exchange, f"{expected} on {where}", hint)


def _reply(connection: pika.BlockingConnection, exchange: str) -> tuple[int, str]:
    """Publish the message and return the code and the text with which the broker closes the channel, or 0."""
    channel = connection.channel()
    try:
        with expecting_refusals(channel):
            channel.basic_publish(exchange, "", b"", pika.BasicProperties(expiration=_NOT_AN_EXPIRATION))
            channel.basic_qos(prefetch_count=1)  # waits for an answer, which may be the refusal
    except ChannelClosedByBroker as closed:
        return closed.reply_code, text_of_reply(closed.reply_text)
    channel.close()
    return 0, ""
