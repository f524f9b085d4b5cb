"""Check over AMQP whether a reader can read a queue. Generators of commands for a driver of pika or aio-pika."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from pika.spec import ACCESS_REFUSED, PRECONDITION_FAILED, RESOURCE_LOCKED

from rabbit_chx.broker.applying.protocol import Command, OnChannel, Refused
from rabbit_chx.consuming.queues import adjust, difference, exists, limit_applies
from rabbit_chx.errors import InvalidValue, Unquoted

_MOST_REFUSALS: Final = 30
_TYPE: Final = "x-queue-type"


def check_readable(queue: str, release: str) -> Generator[Command, Any, str]:
    """Check that a queue can be read, and return a warning, or an empty text.

    Raises:
        InvalidValue: the queue is missing, is a stream, or belongs to another connection.
    """
    try:
        if not (yield from exists(queue)):
            raise no_such_queue(queue)
        arguments = yield from _arguments(queue)
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
    if arguments.get(_TYPE) == "stream":
        raise is_a_stream(queue)
    limited = arguments.get(_TYPE) == "quorum" and limit_applies(arguments, release)
    return _warning(queue) if limited else ""


def no_such_queue(queue: str) -> InvalidValue:
    """The error for a missing queue."""
    return InvalidValue(
        "queue", queue, "an existing queue", "`rabbit-chx apply` declares the queues of a topology file"
    )


def is_a_stream(queue: str) -> InvalidValue:
    """The error for a stream."""
    hint = "Read it as a stream; in Spark, use the option stream instead of queue"
    return InvalidValue(f"queue {queue!r}", Unquoted("a stream"), "a classic or quorum queue", hint)


def _arguments(queue: str) -> Generator[Command, Any, dict[str, Any]]:
    """Learn the arguments of the queue from refused declarations; return none if the broker does not show them."""
    arguments: dict[str, Any] = {_TYPE: "quorum"}
    for _ in range(_MOST_REFUSALS):
        try:
            yield OnChannel("queue_declare", {"queue": queue, "durable": True, "arguments": arguments})
        except Refused as refused:
            if refused.code != PRECONDITION_FAILED:
                raise
            differs = difference(refused.text)
            if differs is None or differs[0] in {"durable", "auto_delete", "exclusive"}:
                return {}
            if differs[0] == _TYPE:
                return {_TYPE: "stream" if "'stream'" in differs[1] else "classic"}
            adjust(arguments, *differs)
        else:
            return arguments
    return {}


def _warning(queue: str) -> str:
    return (
        f"queue {queue!r}: a delivery limit applies (x-delivery-limit; 20 by default from RabbitMQ 4.0 on), so the broker "
        "drops or dead-letters messages that were returned more often. Each restart of the reader and each lost connection "
        "returns all unacknowledged messages. Set delivery-limit: -1 in the policy of the queue (AMQP does not show "
        "policies: ignore this if one sets it)"
    )
