"""Whether a user may publish to an exchange: the broker is asked, and nothing is published."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pika

__all__ = ["No", "ask"]

_NOT_AN_EXPIRATION: Final = "none: rabbit-chx asks whether it may publish"
"""It stands in the broker's log, and should explain itself there."""


class No(NamedTuple):
    """Why not: 403 without the permission, 404 without the exchange, and the broker's words."""

    code: int
    words: str


def ask(connection: pika.BlockingConnection, exchange: str) -> No | None:
    """None where the user may.

    The question is a message whose expiration is no number. RabbitMQ looks at the permission first, then at the
    exchange, then at that property (``rabbit_channel:handle_method/3``, the clause of ``basic.publish``), and
    refuses it before it is routed: what it complains of tells how far the message came.
    """
    import pika
    from pika.exceptions import ChannelClosedByBroker

    channel = connection.channel()
    unheard = logging.getLogger("pika.channel")
    unheard.addFilter(_nothing)  # pika warns of the very answer that is wanted
    try:
        channel.basic_publish(exchange, "", b"", pika.BasicProperties(expiration=_NOT_AN_EXPIRATION))
        channel.basic_qos(prefetch_count=1)  # its answer, or the complaint instead of it
    except ChannelClosedByBroker as closed:
        code, words = closed.reply_code, closed.reply_text
    else:
        channel.close()
        return None
    finally:
        unheard.removeFilter(_nothing)
    # Permissions on topics depend on the key, so the messages will tell; this one came as far as its key.
    fine = (code == 406 and "expiration" in words) or (code == 403 and "topic" in words)
    return None if fine else No(code, words)


def _nothing(_record: logging.LogRecord) -> bool:
    return False
