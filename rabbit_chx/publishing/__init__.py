"""Publish messages, confirmed by the broker, with an outcome for every message.

`Publisher` checks and encodes messages (`encoder`, `batch_columns`, `properties`) on the caller's thread and puts them into the
`outbox`, which all callers share with the thread of the `sender` (the `pipeline` holds these together). Each message has an owner that learns its outcome: the `rows` of a
`bulk`, or one of the `receipts`. `StreamPublisher` has the same `calls`, over a pipeline of its own. The other files use no threads, and only `connection` uses a socket.
"""

from __future__ import annotations

from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.errors import BrokerUnavailable, PublishFailed, RabbitChxError
from rabbit_chx.messages.message_fields import (
    DefaultProperties,
    Headers,
    Properties,
    PropertyColumns,
)
from rabbit_chx.publishing.access import check_access
from rabbit_chx.publishing.bulk import Bulk
from rabbit_chx.publishing.encoder import HeaderColumn
from rabbit_chx.publishing.messages import Failure, Outcome, Totals
from rabbit_chx.publishing.publisher import AsyncPublisher, Publisher

__all__ = [
    "AsyncPublisher",
    "BrokerUnavailable",
    "BrokerUrl",
    "Bulk",
    "Credentials",
    "DefaultProperties",
    "Failure",
    "HeaderColumn",
    "Headers",
    "Outcome",
    "Properties",
    "PropertyColumns",
    "PublishFailed",
    "Publisher",
    "RabbitChxError",
    "Timeouts",
    "Totals",
    "check_access",
]
