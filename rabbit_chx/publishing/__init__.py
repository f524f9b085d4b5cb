"""Publish messages in bulk, confirmed by the broker, with an outcome for every message.

`Publisher` checks and encodes messages (`batch_columns`, `properties`) on the caller's thread and puts them into the `outbox`,
which it shares with the thread of the `sender`. The other files use no threads, and only `connection` uses a socket.
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
