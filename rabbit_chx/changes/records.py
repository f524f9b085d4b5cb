"""What a change has on the broker until it is finished: its record, and a hold for each queue that gains keys.

Messages that reach a held queue after the change wait. A hold is a quorum queue, ``rabbit-chx.hold.<token>.<digest>``, and a
marker in the queue that it holds. The member that reaches the marker waits until the hold is deleted; if the member dies, the
next one waits. A classic queue could not be deleted while its node is down. The arguments of the hold, which the broker stores
but ignores, record which queues must be drained first, so an interrupted change can always be finished.

The record of a change, from which it can be seen and abandoned, is a queue ``rabbit-chx.hold.change.<token>`` that gets no message.
It is declared before the first queue is held and deleted when all are released. Its arguments contain the bindings before the
change, so they can be restored from any machine. The generators yield commands for a driver and do no IO.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, get_args

from rabbit_chx.broker.applying.handover import publish_marker
from rabbit_chx.broker.applying.lock import HOLDER, LOCK
from rabbit_chx.broker.commands import Command, OnChannel
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.reading.reader import visible_nodes
from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.model import HASHING, Binding, Exchange, Queue, QueueType
from rabbit_chx.topology.planning.plan_back import Bound
from rabbit_chx.topology.planning.steps import Bind, DeclareExchange, DeclareQueue, Plan, Unbind
from rabbit_chx.working.markers import CHANGES, HOLD, HOLDS, LONGEST_RECORD, RECORD, Hold, now
from rabbit_chx.working.received import (
    as_bool,
    as_list,
    as_name,
    as_names,
    as_object,
    as_text,
    as_whole,
    object_in,
)


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A change that has begun."""

    name: str
    before: Bound | None = field(default_factory=dict)
    """The bindings of each exchange that hashes and whose bindings change; None if they cannot be recorded."""
    created: tuple[str, ...] = ()
    """The queues that the change declares, without streams, which are never empty; none in a record that would be too large."""
    removed: tuple[Queue, ...] = ()
    """The queues that the change deletes."""
    since: str = ""
    by: str = ""
    number: int = 0
    """Higher than that of all records that this one replaces."""
    is_abort: bool = False
    """Whether the state before is being restored."""
    exchange: str | None = ""
    """The exchange that the command names; empty if the change is that of a whole file, None if an earlier version began it."""

    @classmethod
    def of(
        cls,
        made: Plan,
        removed: Iterable[Queue],
        exchanges: Iterable[Exchange],
        bindings: Iterable[Binding],
        by: str,
        exchange: str = "",
    ) -> Self:
        """Create the record of a plan, which is not on the broker yet; ``exchanges`` and ``bindings`` are those on the broker now."""
        new = (step.exchange for step in made.steps if isinstance(step, DeclareExchange))
        # A plan unbinds nothing from the others, so that their new bindings stay if it is abandoned.
        others = {each.name for each in (*exchanges, *new) if each.type not in HASHING}
        steps = [
            step
            for step in made.steps
            if isinstance(step, (Bind, Unbind)) and step.binding.source not in others
        ]
        sources = {step.binding.source for step in steps}
        rings = {change.exchange: change.before.bindings for change in made.changes}
        before: dict[str, list[tuple[str, str]]] = {source: [] for source in sorted(sources)}
        for source in sources & rings.keys():
            before[source] = [(str(each.destination), each.key) for each in rings[source]]
        for each in bindings:
            if each.source in sources - rings.keys():
                before[each.source].append((str(each.destination), each.key))
        declared = (step.queue for step in made.steps if isinstance(step, DeclareQueue))
        created = tuple(queue.name for queue in declared if queue.type != "stream")
        plain = not any(step.binding.arguments for step in steps)
        known = {source: tuple(listed) for source, listed in before.items()} if plain else None
        return cls(_new_name(), known, created, tuple(removed), now(), by, exchange=exchange)

    @classmethod
    def read(cls, name: str, record: object) -> Self:
        """Read the record of a change from the arguments of its queue."""
        try:
            found = object_in(record, LONGEST_RECORD)
            exchange = found.get("exchange")
            return cls(
                name,
                _bound(found["before"]),
                as_names(found["created"]),
                tuple(map(_queue, as_list(found["removed"]))),
                as_text(found["since"]),
                as_text(found["by"]),
                as_whole(found["number"]),
                as_bool(found["is_abort"]),
                None if exchange is None else as_text(exchange),
            )
        except (KeyError, ValueError):
            raise InvalidValue(
                f"record of queue {name!r}",
                record,
                "that of a change",
                "Delete the queue if no change is running",
            ) from None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of its queue."""
        values = {name: value for name, value in asdict(self).items() if name != "name"}
        text = json.dumps(values, separators=(",", ":"))
        if len(text) > LONGEST_RECORD:
            text = json.dumps({**values, "before": None, "created": [], "removed": []}, separators=(",", ":"))
        return {"x-queue-type": "quorum", RECORD: text}

    def after(self, earlier: Self | None) -> Self:
        """The record of a change that goes on where an earlier one was interrupted: the state before is the earlier one's."""
        if earlier is None:
            return self
        before = None
        if self.before is not None and earlier.before is not None:
            before = {**self.before, **earlier.before}
        existing = {queue.name for queue in earlier.removed}
        created = {*earlier.created, *(name for name in self.created if name not in existing)}
        new = [queue for queue in self.removed if queue.name not in existing | created]
        return replace(
            self,
            before=before,
            created=tuple(sorted(created)),
            removed=(*earlier.removed, *new),
            number=earlier.number + 1,
        )

    def aborting(self, by: str) -> Self:
        """The record of abandoning this change."""
        return replace(self, name=_new_name(), by=by, number=self.number + 1, is_abort=True)


def _bound(value: object) -> Bound | None:
    """The bindings in a record, if they could be recorded."""
    if value is None:
        return None
    listed = {source: map(as_list, as_list(pairs)) for source, pairs in as_object(value).items()}
    return {
        source: tuple((as_text(queue), as_text(key)) for queue, key in pairs)
        for source, pairs in listed.items()
    }


def _queue(value: object) -> Queue:
    """A queue in a record."""
    found = as_object(value)
    if found["type"] not in get_args(QueueType):
        raise ValueError("expected the type of a queue")
    flags = {each: as_bool(found[each]) for each in ("durable", "auto_delete", "exclusive")}
    return Queue(as_name(found["name"]), found["type"], **flags, arguments=as_object(found["arguments"]))


def _new_name() -> str:
    return f"{CHANGES}{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What an interrupted or a running change has left on the broker."""

    holds: tuple[Hold, ...] = ()
    records: tuple[ChangeRecord, ...] = ()
    running: str | None = None
    """The process that holds the lock on the topology, which carries the change out; None if there is none."""

    def __bool__(self) -> bool:
        return bool(self.holds or self.records)

    @property
    def record(self) -> ChangeRecord | None:
        """The last record, which holds what the others say too."""
        return self.records[-1] if self.records else None


def unfinished_on(management: Management, vhost: str) -> Unfinished:
    """What is unfinished in a virtual host."""
    visible_nodes(management)  # fails soon if a node is silent: later requests would wait for it
    arguments = {queue.name: queue.arguments for queue, *_ in management.queues(vhost)}
    running = None
    if LOCK in arguments:
        running = str(arguments[LOCK].get(HOLDER, "a process without a name"))
    names = sorted(name for name in arguments if name.startswith(HOLDS))
    records = [
        ChangeRecord.read(name, arguments[name].get(RECORD)) for name in names if name.startswith(CHANGES)
    ]
    holds = [Hold.read(name, arguments[name].get(RECORD)) for name in names if not name.startswith(CHANGES)]
    return Unfinished(tuple(holds), tuple(sorted(records, key=lambda each: each.number)), running)


# ---- commands


def declare_commands(made: Hold | ChangeRecord) -> Generator[Command, Any, None]:
    """Declare the queue of a record, or of a hold, which holds nothing yet but lets members consume the queues that it names."""
    yield OnChannel("queue_declare", {"queue": made.name, "durable": True, "arguments": made.arguments})


def hold_commands(hold: Hold) -> Generator[Command, Any, None]:
    """Hold a queue: messages that are routed to it afterwards wait."""
    yield from publish_marker("hold", hold.queue, hold.record.encode(), {"headers": {HOLD: hold.name}})


def delete_commands(*queues: str) -> Generator[Command, Any, None]:
    """Delete queues that exist; without the queue of its hold, a queue is released."""
    for queue in queues:
        yield OnChannel("queue_delete", {"queue": queue})
