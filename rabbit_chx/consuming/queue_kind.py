"""Check over AMQP whether a reader can read a queue. Generators of commands for a driver of pika or aio-pika."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pika.spec import ACCESS_REFUSED, RESOURCE_LOCKED

from rabbit_chx.broker.applying.protocol import Command, Refused
from rabbit_chx.consuming.queue_arguments import delivery_limit_warning, learn
from rabbit_chx.consuming.queues import exists
from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.releases import Release
from rabbit_chx.topology.delivery_limit import limit_applies
from rabbit_chx.topology.model import DELIVERY_LIMIT


def check_readable(queue: str, release: Release) -> Generator[Command, Any, str]:
    """Check that a queue can be read; return a warning, or an empty text.

    Raises:
        InvalidValue: the queue is missing, is a stream, or belongs to another connection.
    """
    try:
        if not (yield from exists(queue)):
            raise no_such_queue(queue)
        kind, arguments, _ = yield from learn(queue, {})
    except Refused as refused:
        if refused.code == RESOURCE_LOCKED:
            raise InvalidValue(
                "queue",
                queue,
                "a queue that is not exclusive",
                "Only the connection that declared it can read it",
            ) from None
        if refused.code != ACCESS_REFUSED:
            raise
        return ""  # without the permission to declare the queue, its kind stays unknown
    if kind == "stream":
        raise is_a_stream(queue)
    limited = kind == "quorum" and limit_applies(release, arguments.get(DELIVERY_LIMIT))
    return delivery_limit_warning([queue], release) if limited else ""


def no_such_queue(queue: str) -> InvalidValue:
    """The error for a missing queue."""
    return InvalidValue(
        "queue", queue, "an existing queue", "`rabbit-chx apply` declares the queues of a topology file"
    )


def is_a_stream(queue: str) -> InvalidValue:
    """The error for a stream."""
    hint = "Read it as a stream; in Spark, use the option stream instead of queue"
    return InvalidValue(f"queue {queue!r}", Unquoted("a stream"), "a classic or quorum queue", hint)
