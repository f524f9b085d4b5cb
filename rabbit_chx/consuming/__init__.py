"""Consume the queues of a hash exchange with a group of workers, each key in order.

    def handle(message):
        print(message.routing_key, message.body)

    Group("amqp://user:password@host", exchange="orders", name="billing").run(handle)

A name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rabbit_chx.base.timeouts import Timeouts as Timeouts
    from rabbit_chx.base.urls import BrokerUrl as BrokerUrl
    from rabbit_chx.broker.credentials import Credentials as Credentials
    from rabbit_chx.broker.management import Management as Management
    from rabbit_chx.consuming.group import AsyncGroup as AsyncGroup, Group as Group
    from rabbit_chx.consuming.member.lanes import GroupStatus as GroupStatus
    from rabbit_chx.consuming.member.roll_call import (
        MemberStatus as MemberStatus,
        members as members,
    )
    from rabbit_chx.consuming.queue_reader import Batch as Batch, QueueReader as QueueReader
    from rabbit_chx.consuming.queues.sources import KeyFunction as KeyFunction
    from rabbit_chx.errors import BrokerUnavailable as BrokerUnavailable, InvalidValue as InvalidValue
    from rabbit_chx.messages.message import Message as Message
    from rabbit_chx.messages.message_fields import Headers as Headers, Properties as Properties
    from rabbit_chx.working.retries import Reject as Reject, RetryAfter as RetryAfter
    from rabbit_chx.working.settings import OnFailure as OnFailure, Order as Order

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rabbit_chx.broker.credentials": "Credentials",
            "rabbit_chx.broker.management": "Management",
            "rabbit_chx.working.retries": "Reject RetryAfter",
            "rabbit_chx.consuming.group": "AsyncGroup Group",
            "rabbit_chx.consuming.queue_reader": "Batch QueueReader",
            "rabbit_chx.consuming.queues.sources": "KeyFunction",
            "rabbit_chx.consuming.member.lanes": "GroupStatus",
            "rabbit_chx.consuming.member.roll_call": "MemberStatus members",
            "rabbit_chx.working.settings": "OnFailure Order",
            "rabbit_chx.messages.message": "Message",
            "rabbit_chx.messages.message_fields": "Headers Properties",
            "rabbit_chx.errors": "BrokerUnavailable InvalidValue",
            "rabbit_chx.base.timeouts": "Timeouts",
            "rabbit_chx.base.urls": "BrokerUrl",
        },
    )
