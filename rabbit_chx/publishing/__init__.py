"""Publish messages in bulk, confirmed by the broker, with an outcome for every message.

messages.py       a message, its outcome, and a publisher's counters
properties.py     a message's properties as bytes
batch_columns.py  the columns of a batch as bytes
frames.py         messages as AMQP frames
window.py         messages that await their confirm, and which of them the broker returned
attempts.py       which broker is tried next, and for how long
outbox.py         messages and counters, shared by the two threads
connection.py     one connection, on pika
sender.py         the thread that sends, retries and reconnects
publisher.py      `Publisher`
access.py         may the user publish to an exchange?

No file above outbox.py knows a thread or a socket.
"""

from __future__ import annotations

from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.broker.tls import context as tls_context
from rabbit_chx.errors import BrokerUnavailable, PublishFailed
from rabbit_chx.publishing.access import check_access
from rabbit_chx.publishing.attempts import Timeouts
from rabbit_chx.publishing.messages import Failure, Outcome, Totals
from rabbit_chx.publishing.properties import ROUTING_HEADERS, max_property_bytes
from rabbit_chx.publishing.publisher import Publisher
from rabbit_chx.urls import BrokerUrl

__all__ = [
    "ROUTING_HEADERS",
    "BrokerUnavailable",
    "BrokerUrl",
    "Credentials",
    "Failure",
    "Outcome",
    "PublishFailed",
    "Publisher",
    "Timeouts",
    "Totals",
    "check_access",
    "max_property_bytes",
    "tls_context",
]
