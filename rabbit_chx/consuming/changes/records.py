"""The record of a change, from which it can be seen and given up: a queue ``rabbit-chx.hold.change.<token>`` that gets no message.

It is declared before the first queue is held and deleted when all are released. Its arguments, which the broker stores
but ignores, contain the bindings before the change, so they can be restored from any machine.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from rabbit_chx.broker.applying.lock import HOLDER, LOCK
from rabbit_chx.broker.applying.protocol import Command, OnChannel
from rabbit_chx.broker.management import Management
from rabbit_chx.consuming.changes.holds import holds_on
from rabbit_chx.consuming.markers import CHANGES, RECORD, Hold
from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.model import Binding, Observed, Queue, Slots, Topology
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.slot_changes import plan_moves
from rabbit_chx.topology.planning.steps import Bind, DeclareQueue, Plan, Unbind

_LONGEST: Final = 100_000
"""Bytes of a record: the arguments of a queue must fit into one frame."""


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A change that has begun."""

    name: str
    before: Mapping[str, tuple[tuple[str, str], ...]] | None = field(default_factory=dict)
    """For each exchange whose bindings change, its queues and their keys in bind order; None if they cannot be recorded."""
    created: tuple[str, ...] = ()
    """The queues that the change declares."""
    removed: tuple[Queue, ...] = ()
    """The queues that the change deletes."""
    since: str = ""
    by: str = ""
    number: int = 0
    """Higher than that of all records that this one replaces."""
    is_abort: bool = False
    """Whether the state before is being restored."""

    @classmethod
    def of(cls, made: Plan, removed: Iterable[Queue], bindings: Iterable[Binding], by: str) -> Self:
        """Create the record of a plan, which is not on the broker yet; ``bindings`` are those on the broker now."""
        sources = {step.binding.source for step in made.steps if isinstance(step, (Bind, Unbind))}
        rings = {change.exchange: change.before.bindings for change in made.changes}
        before: dict[str, list[tuple[str, str]]] = {source: [] for source in sorted(sources)}
        for source in sources & rings.keys():
            before[source] = [(str(each.destination), each.key) for each in rings[source]]
        for each in bindings:
            if each.source in sources - rings.keys():
                before[each.source].append((str(each.destination), each.key))
        created = tuple(step.queue.name for step in made.steps if isinstance(step, DeclareQueue))
        plain = not any(step.binding.arguments for step in made.steps if isinstance(step, (Bind, Unbind)))
        known = {source: tuple(listed) for source, listed in before.items()} if plain else None
        since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return cls(_new_name(), known, created, tuple(removed), since, by)

    @classmethod
    def read(cls, name: str, record: object) -> Self:
        """Read the record of a change from the arguments of its queue."""
        try:
            found = json.loads(str(record))
            before = found["before"]
            return cls(
                name,
                None
                if before is None
                else {
                    str(source): tuple((str(queue), str(key)) for queue, key in listed)
                    for source, listed in before.items()
                },
                tuple(map(str, found["created"])),
                tuple(Queue(**{**each, "arguments": dict(each["arguments"])}) for each in found["removed"]),
                str(found["since"]),
                str(found["by"]),
                int(found["number"]),
                bool(found["is_abort"]),
            )
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
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
        for queue in values["removed"]:
            del queue["effective_policy"]
        text = json.dumps(values, separators=(",", ":"))
        if len(text) > _LONGEST:
            text = json.dumps({**values, "before": None, "removed": []}, separators=(",", ":"))
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
        """The record of giving this change up."""
        return replace(self, name=_new_name(), by=by, number=self.number + 1, is_abort=True)


def _new_name() -> str:
    return f"{CHANGES}{secrets.token_hex(8)}"


def changes_on(management: Management, vhost: str) -> list[ChangeRecord]:
    """The records of unfinished changes in a virtual host; the last one holds what the others say too."""
    found = [
        ChangeRecord.read(queue.name, queue.arguments.get(RECORD))
        for queue, _ in management.queues(vhost)
        if queue.name.startswith(CHANGES)
    ]
    return sorted(found, key=lambda each: each.number)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What an interrupted or a running change has left on the broker."""

    holds: tuple[Hold, ...] = ()
    record: ChangeRecord | None = None
    running: str | None = None
    """The process that holds the lock on the topology, which carries the change out; None if there is none."""

    def __bool__(self) -> bool:
        return bool(self.holds) or self.record is not None


def unfinished_on(management: Management, vhost: str) -> Unfinished:
    """What is unfinished in a virtual host."""
    locks = (queue.arguments for queue, _ in management.queues(vhost) if queue.name == LOCK)
    running = next((str(arguments.get(HOLDER, "a process without a name")) for arguments in locks), None)
    records = changes_on(management, vhost)
    return Unfinished(tuple(holds_on(management, vhost)), records[-1] if records else None, running)


def record_commands(
    record: ChangeRecord, earlier: Collection[ChangeRecord] = ()
) -> Generator[Command, Any, None]:
    """Declare the record of a change in place of earlier ones."""
    yield OnChannel("queue_declare", {"queue": record.name, "durable": True, "arguments": record.arguments})
    yield from forget_commands(earlier)


def forget_commands(records: Iterable[ChangeRecord]) -> Generator[Command, Any, None]:
    """Delete records of changes."""
    for each in records:
        yield OnChannel("queue_delete", {"queue": each.name})


def plan_back(record: ChangeRecord, wanted: Topology, observed: Observed) -> Plan:
    """The plan that restores the bindings before a change; the slots are those of ``wanted``.

    Raises:
        InvalidValue: the state before is not known.
    """
    before = record.before
    if before is None:
        raise InvalidValue(
            "change",
            "bindings that the broker has no record of",
            "a change whose state before is recorded",
            FINISH,
        )
    slots = {name: each for each in wanted.slots for name in each.names}
    rings = {source: listed for source, listed in before.items() if source not in slots}
    made = _rings_back(rings, wanted.vhost, observed)
    for each in wanted.slots:
        division = {slot: before[slot][0][0] for slot in each.names if len(before.get(slot, ())) == 1}
        if len(division) < len(before.keys() & set(each.names)):
            raise InvalidValue(
                "change", f"a slot of {each.exchange!r} without one queue", "one queue a slot", FINISH
            )
        if division:
            made = _with_slots(made, replace(wanted, slots=(_open(each, division),)), division, observed)
    missing = sorted(_named(before) - {queue.name for queue in observed.topology.queues})
    known = {queue.name: queue for queue in record.removed}
    if unknown := [name for name in missing if name not in known]:
        raise InvalidValue(
            "change", f"deleted queues ({', '.join(unknown)})", "queues that still exist", FINISH
        )
    return replace(made, steps=(*(DeclareQueue(known[name]) for name in missing), *made.steps))


FINISH: Final = "Run the command that began the change again: it finishes the change"


def _rings_back(rings: Mapping[str, tuple[tuple[str, str], ...]], vhost: str, observed: Observed) -> Plan:
    unknown = sorted(name for name in rings if observed.topology.exchange(name) is None)
    if unknown:
        raise InvalidValue(
            "change", f"exchange {unknown[0]!r}, which is gone", "an exchange that exists", FINISH
        )
    exchanges = tuple(each for each in observed.topology.exchanges if each.name in rings)
    bindings = tuple(Binding(source, queue, key) for source, listed in rings.items() for queue, key in listed)
    return plan(Topology(vhost, exchanges, bindings=bindings), observed, max_moved=1.0)


def _open(slots: Slots, division: Mapping[str, str]) -> Slots:
    """The slots with every queue that the division names."""
    return replace(slots, queues={**dict.fromkeys(division.values(), 1), **slots.queues})


def _with_slots(made: Plan, wanted: Topology, division: Mapping[str, str], observed: Observed) -> Plan:
    found = plan_moves(wanted, wanted.slots[0].exchange, division, observed)
    return replace(
        made,
        steps=(*made.steps, *found.steps),
        slot_moves={**made.slot_moves, **found.slot_moves},
        refusals=(*made.refusals, *found.refusals),
    )


def _named(before: Mapping[str, tuple[tuple[str, str], ...]]) -> set[str]:
    return {queue for listed in before.values() for queue, _ in listed}
