"""Hold the queues that gain keys through a change: messages that reach them after the change wait.

A hold is a quorum queue, ``rabbit-chx.hold.<token>.<digest>``, and a marker in the queue that it holds. The member that
reaches the marker waits until the hold is deleted; if the member dies, the next one waits. A classic queue could not be
deleted while its node is down. The arguments of the hold, which the broker stores but ignores, record which queues must be
drained first, so an interrupted change can always be finished. The generators yield commands for a driver and do no IO.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any

from rabbit_chx.broker.applying.protocol import Command, Lost, OnChannel, Refused, routed
from rabbit_chx.broker.management import Management
from rabbit_chx.consuming.markers import CHANGES, HOLD, HOLDS, RECORD, Hold
from rabbit_chx.errors import InvalidValue


def holds_on(management: Management, vhost: str) -> list[Hold]:
    """The holds that interrupted changes have left in a virtual host."""
    names = (queue for queue, _ in management.queues(vhost) if queue.name.startswith(HOLDS))
    found = [queue for queue in names if not queue.name.startswith(CHANGES)]
    return [
        Hold.read(queue.name, queue.arguments.get(RECORD))
        for queue in sorted(found, key=lambda queue: queue.name)
    ]


def declare_commands(hold: Hold) -> Generator[Command, Any, None]:
    """Declare the queue of a hold, which holds nothing yet but lets members begin to consume the queues it names."""
    yield OnChannel("queue_declare", {"queue": hold.name, "durable": True, "arguments": hold.arguments})


def hold_commands(hold: Hold) -> Generator[Command, Any, None]:
    """Hold a queue: messages that are routed to it afterwards wait."""
    properties = {"headers": {HOLD: hold.name}, "delivery_mode": 2}
    expected, hint = "an existing queue that accepts messages", "The broker returned the marker"
    error: Exception = InvalidValue("queue to hold", hold.queue, expected, hint)
    try:
        if (yield from routed(hold.queue, hold.record.encode(), properties)):
            return
    except Refused as refused:
        error = refused
    with suppress(Refused, Lost):  # the first error says more
        yield from release_commands(hold)
    raise error


def release_commands(hold: Hold) -> Generator[Command, Any, None]:
    """Release a queue; do nothing if its hold is already deleted."""
    yield OnChannel("queue_delete", {"queue": hold.name})
