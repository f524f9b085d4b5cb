"""The permissions that a member needs, and why its connection ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from pika.exceptions import ChannelClosedByBroker
from pika.spec import ACCESS_REFUSED

from rabbit_chx.broker.applying.broker_errors import needs_of as needs_of_steps
from rabbit_chx.broker.applying.lock import LOCK
from rabbit_chx.broker.commands import Lost, Refused
from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, BeforeNumber, Beginning, Needs, why_denied
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.consuming.seats import SEATS
from rabbit_chx.errors import BrokerUnavailable
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


def why_ended(
    error: Exception, needs: Needs | None = None, what: str = "this", where: str = "the broker"
) -> BrokerUnavailable:
    """Explain why a connection ended; the error is permanent if another connection would end the same way.

    ``needs`` are all permissions of the user; without them, the text names no command, which would take the others away.
    """
    if isinstance(error, BrokerUnavailable):
        return error
    if isinstance(error, (Refused, ChannelClosedByBroker)):
        code, words = error.args[:2]
        denied = needs and why_denied(words, needs, what=what)
        text = denied or f"the broker refused it: {code} {words}"
        return BrokerUnavailable(text, permanent=code == ACCESS_REFUSED)
    return BrokerUnavailable(str(error) if isinstance(error, Lost) else str(why_down(error, where)))
