"""Hold the queues that gain keys through a change: messages that reach them after the change wait.

A hold is a quorum queue, ``rabbit-chx.hold.<token>``, and a marker in the queue that it holds. The member that reaches
the marker waits until the hold is deleted; if the member dies, the next one waits. A classic queue could not be deleted
while its node is down. The arguments of the hold, which the broker stores but ignores, record which queues must be
drained first, so an interrupted change can always be finished. The generators yield commands for a driver and do no IO.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final, Self

from rabbit_chx.broker.applying.protocol import Command, Lost, OnChannel, Refused, routed
from rabbit_chx.broker.management import Management
from rabbit_chx.consuming.access import HOLDS
from rabbit_chx.consuming.messages import HOLD
from rabbit_chx.errors import InvalidValue

_RECORD: Final = "x-rabbit-chx-record"
_LONGEST: Final = 100_000
"""Bytes of a record: the arguments of a queue must fit into one frame."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One queue that is held."""

    name: str
    queue: str
    losing: tuple[str, ...] = ()
    """The queues that are drained before this one is released."""
    removed: tuple[str, ...] = ()
    """The drained queues that are then deleted."""
    groups: tuple[str, ...] = ()
    """The groups whose members consume the queues."""
    since: str = ""

    @classmethod
    def of(
        cls, queue: str, losing: Iterable[str], removed: Iterable[str] = (), groups: Iterable[str] = ()
    ) -> Self:
        """Create a hold, which is not on the broker yet."""
        losers = sorted(losing)
        return cls(
            f"{HOLDS}{secrets.token_hex(8)}",
            queue,
            tuple(losers),
            tuple(sorted({*removed} & {*losers})),
            tuple(sorted(groups)),
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        )

    @classmethod
    def read(cls, name: str, arguments: Mapping[str, Any]) -> Self:
        """Read a hold from the name and the arguments of its queue."""
        try:
            found = json.loads(arguments[_RECORD])
            values = {each.name: found[each.name] for each in fields(cls) if each.name in found}
            listed = {key: tuple(map(str, value)) for key, value in values.items() if type(value) is list}
            return cls(**{**values, **listed, "name": name, "queue": str(found["queue"])})
        except (KeyError, ValueError, TypeError, RecursionError):
            raise InvalidValue(
                f"arguments of queue {name!r}",
                dict(arguments),
                "those of a hold",
                "Delete the queue if no member waits for it",
            ) from None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of its queue."""
        record = json.dumps({name: value for name, value in asdict(self).items() if name != "name"})
        if len(record) > _LONGEST:
            raise InvalidValue(
                f"number of queues that queue {self.queue!r} gains keys from",
                len(self.losing),
                "fewer",
                "Change the number of queues in several steps",
            )
        return {"x-queue-type": "quorum", _RECORD: record}


def holds_on(management: Management, vhost: str) -> list[Hold]:
    """The holds that interrupted changes have left in a virtual host."""
    found = [queue for queue, _ in management.queues(vhost) if queue.name.startswith(HOLDS)]
    return [Hold.read(queue.name, queue.arguments) for queue in sorted(found, key=lambda queue: queue.name)]


def hold_commands(hold: Hold) -> Generator[Command, Any, None]:
    """Hold a queue: messages that are routed to it afterwards wait."""
    yield OnChannel("queue_declare", {"queue": hold.name, "durable": True, "arguments": hold.arguments})
    properties = {"headers": {HOLD: hold.name}, "delivery_mode": 2}
    expected, hint = "an existing queue that accepts messages", "The broker returned the marker"
    error: Exception = InvalidValue("queue to hold", hold.queue, expected, hint)
    try:
        if (yield from routed(hold.queue, b"", properties)):
            return
    except Refused as refused:
        error = refused
    with suppress(Refused, Lost):  # the first error says more
        yield from release_commands(hold)
    raise error


def release_commands(hold: Hold) -> Generator[Command, Any, None]:
    """Release a queue; do nothing if its hold is already deleted."""
    yield OnChannel("queue_delete", {"queue": hold.name})
