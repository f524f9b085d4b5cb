"""Read and write RabbitMQ streams: the stream protocol, port 5552."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rabbit_chx.base.timeouts import Timeouts as Timeouts
    from rabbit_chx.base.urls import BrokerUrl as BrokerUrl
    from rabbit_chx.broker.credentials import Credentials as Credentials
    from rabbit_chx.errors import (
        BrokerUnavailable as BrokerUnavailable,
        CorruptChunk as CorruptChunk,
        InvalidMessage as InvalidMessage,
        InvalidValue as InvalidValue,
        PublishFailed as PublishFailed,
        RabbitChxError as RabbitChxError,
        StreamProblem as StreamProblem,
        StreamUnavailable as StreamUnavailable,
    )
    from rabbit_chx.messages.message import Message as Message, StreamMessage as StreamMessage
    from rabbit_chx.messages.message_fields import (
        DefaultProperties as DefaultProperties,
        Headers as Headers,
        Properties as Properties,
        PropertyColumns as PropertyColumns,
    )
    from rabbit_chx.publishing.encoder import HeaderColumn as HeaderColumn
    from rabbit_chx.publishing.messages import Failure as Failure, Outcome as Outcome, Totals as Totals
    from rabbit_chx.streams.ends import Bounds as Bounds
    from rabbit_chx.streams.group.batch import BatchFailed as BatchFailed, StreamBatch as StreamBatch
    from rabbit_chx.streams.group.lanes import (
        StreamGroupStatus as StreamGroupStatus,
    )
    from rabbit_chx.streams.group.settings import (
        OnStreamFailure as OnStreamFailure,
        Start as Start,
        StreamCallback as StreamCallback,
    )
    from rabbit_chx.streams.messages.arrow.batch import COLUMNS as COLUMNS
    from rabbit_chx.streams.protocol.connection import StreamConnection as StreamConnection
    from rabbit_chx.streams.protocol.opening import connect as connect
    from rabbit_chx.streams.publisher import (
        AsyncStreamPublisher as AsyncStreamPublisher,
        StreamBulk as StreamBulk,
        StreamPublisher as StreamPublisher,
    )
    from rabbit_chx.streams.reader import StreamReader as StreamReader
    from rabbit_chx.streams.stream_group import (
        AsyncStreamGroup as AsyncStreamGroup,
        StreamGroup as StreamGroup,
    )
    from rabbit_chx.working.retries import Reject as Reject, RetryAfter as RetryAfter

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rabbit_chx.broker.credentials": "Credentials",
            "rabbit_chx.working.retries": "Reject RetryAfter",
            "rabbit_chx.streams.group.batch": "BatchFailed StreamBatch",
            "rabbit_chx.streams.group.lanes": "StreamGroupStatus",
            "rabbit_chx.streams.group.settings": "OnStreamFailure Start StreamCallback",
            "rabbit_chx.streams.ends": "Bounds",
            "rabbit_chx.streams.stream_group": "AsyncStreamGroup StreamGroup",
            "rabbit_chx.errors": "BrokerUnavailable CorruptChunk InvalidMessage InvalidValue PublishFailed RabbitChxError StreamProblem StreamUnavailable",
            "rabbit_chx.messages.message_fields": "DefaultProperties Headers Properties PropertyColumns",
            "rabbit_chx.publishing.encoder": "HeaderColumn",
            "rabbit_chx.publishing.messages": "Failure Outcome Totals",
            "rabbit_chx.streams.messages.arrow.batch": "COLUMNS",
            "rabbit_chx.streams.protocol.connection": "StreamConnection",
            "rabbit_chx.messages.message": "Message StreamMessage",
            "rabbit_chx.streams.protocol.opening": "connect",
            "rabbit_chx.streams.publisher": "AsyncStreamPublisher StreamBulk StreamPublisher",
            "rabbit_chx.streams.reader": "StreamReader",
            "rabbit_chx.base.timeouts": "Timeouts",
            "rabbit_chx.base.urls": "BrokerUrl",
        },
    )
