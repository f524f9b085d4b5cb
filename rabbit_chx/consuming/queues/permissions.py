"""The permissions that a member needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from rabbit_chx.base.names import SEATS
from rabbit_chx.broker.applying.broker_errors import needs_of as needs_of_steps
from rabbit_chx.broker.applying.lock import LOCK
from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, BeforeNumber, Beginning, Needs
from rabbit_chx.topology.model import CONSISTENT_HASH, Exchange
from rabbit_chx.topology.planning.steps import DeclareExchange, Plan
from rabbit_chx.working.markers import HOLDS
from rabbit_chx.working.settings import Settings

_ANSWERS: Final = ("queue", Beginning("amq.gen-"))
_HOLDING: Final = Needs(
    configure={("queue", LOCK), ("queue", Beginning(HOLDS)), _ANSWERS},
    write={("exchange", DEFAULT_EXCHANGE)},
    read={_ANSWERS},
)


def needs_of(settings: Settings, queues: Collection[str]) -> Needs:
    """The permissions of a member that consumes these queues."""
    seats = ("queue", BeforeNumber(f"{SEATS}{settings.name}."))
    needs = Needs(configure={seats}, read={seats, *(("queue", name) for name in queues)})
    needs.write = {("exchange", DEFAULT_EXCHANGE), ("queue", Beginning(HOLDS))}
    if settings.parking_queue is not None:
        needs.write.add(("queue", settings.parking_queue))
    return needs


def needs_of_change(plan: Plan, exchanges: Iterable[Exchange], deleted: Collection[str]) -> Needs:
    """The permissions to carry out a plan while members consume, and to delete the drained queues afterwards."""
    declared = (step.exchange for step in plan.steps if isinstance(step, DeclareExchange))
    rings = {each.name for each in (*exchanges, *declared) if each.type == CONSISTENT_HASH}
    return needs_of_steps(plan.steps, rings) | _HOLDING | Needs({("queue", name) for name in deleted})
