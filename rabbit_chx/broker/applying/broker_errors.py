"""What a refusal of the broker means for a plan, and what to do. Texts in, texts out.

The broker's answers were taken from 3.10.8, 4.0.5 and 4.3.6.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from rabbit_chx.base.plugins import why_refused_type
from rabbit_chx.broker.applying.lock import LOCK
from rabbit_chx.broker.commands import INTERNAL_ERROR
from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, NOTHING, Needs, why_denied
from rabbit_chx.broker.reading.order_record import ORDER_EXCHANGE
from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.topology.planning.steps import (
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    SetPolicy,
    Step,
    Unbind,
)

INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>.*?)' for (queue|exchange) '(.*)' in vhost '.*': received (.*) but current is (?P<current>.*)",
    re.DOTALL,
).search
"""The argument that differs according to a refused declaration, and the broker's text for the value that it has."""
# Text of rabbit_channel:check_vhost_queue_limit/2.
_LIMIT = re.compile(r"queue limit in vhost '(.*)' \((\d+)\) is reached", re.DOTALL).search
_EXCHANGE_IN_USE: Final = (
    "other bindings start from it: plan again. A plan never unbinds exclusive queues: keep the exchange in the file while one "
    "is bound to it"
)
_FINAL: Final = {403, 406, 503, 540}
"""Reply codes of a command that is wrong as it is."""
_USER = re.compile(r"refused for user '(.*)'", re.DOTALL).search
_NOT_FOUND = re.compile(r"no (queue|exchange) '(.*)' in vhost '(.*)'", re.DOTALL).search


def why_refused(
    code: int,
    text: str,
    step: Step | None,
    steps: Sequence[Step],
    rings: Collection[str] = (),
    also: Needs = NOTHING,
) -> str:
    """Explain the refusal of a step of a plan: what was refused, why, and what helps.

    Code 0 means that the client could not send the command. ``rings`` are the exchanges whose order is recorded, and
    ``also`` are further permissions that the caller needs.
    """
    at = needs_of([step] if step is not None else [], rings)
    if denied := why_denied(text, needs_of(steps, rings) | also, at=at, what="the plan"):
        unrecorded = ", or apply without a record of the order" if f"'{ORDER_EXCHANGE}'" in text else ""
        return denied + unrecorded + _policy_tag(text, steps)
    if found := INEQUIVALENT(text):
        return _inequivalent(*(part.strip("'") for part in found.groups()))
    if unknown := why_refused_type(text):
        return unknown
    if found := _NOT_FOUND(text):
        return (
            f"there is no {found[1]} {found[2]!r} in virtual host {found[3]!r}; if it was deleted, plan again"
        )
    if text.endswith(" in use"):
        why = "it has consumers: plan again" if isinstance(step, DeleteQueue) else _EXCHANGE_IN_USE
        return f"the broker refused it: {code} {text}; {why}"
    if found := _LIMIT(text):
        return (
            f"virtual host {found[1]!r} may not have more than {found[2]} queues; "
            f"`rabbitmqctl set_vhost_limits -p {shlex.quote(found[1])} '{{\"max-queues\": N}}'` raises the limit"
        )
    if code == INTERNAL_ERROR:
        return "the broker failed (541 INTERNAL_ERROR); its log has the reason"
    if code in _FINAL and not text.endswith(" not empty"):
        return f"the broker refused it: {code} {text}; it refuses the same again, so change the topology"
    return f"the broker refused it: {code} {text}" if code else text


def _policy_tag(text: str, steps: Iterable[Step]) -> str:
    """The command for the tag that the policies of a plan need besides permissions."""
    if not any(isinstance(step, (SetPolicy, ClearPolicy)) for step in steps):
        return ""
    user = _USER(text)
    name = shlex.quote(user[1]) if user else "USER"
    return (
        f"; its policies also need the tag policymaker: `rabbitmqctl set_user_tags {name} policymaker` grants it, and replaces "
        "the tags that the user has"
    )


def _inequivalent(argument: str, kind: str, name: str, received: str, current: str) -> str:
    hint = (
        "declare a second exchange under another name and switch its publishers (blue/green)"
        if kind == "exchange"
        else "declare another queue, bind it in place of this one, and drain this one"
    )
    return (
        f"{kind} {name!r} exists with {argument!r} {current} instead of {received}, which cannot be changed in place; "
        f"nothing is deleted: {hint}"
    )


def needs_of(steps: Iterable[Step], rings: Collection[str] = ()) -> Needs:
    """The permissions that these steps need together, those for the lock and the record included."""
    needs = Needs(configure={("queue", LOCK)})
    for step in steps:
        match step:
            case DeclareExchange(exchange=exchange):
                _declares(needs, "exchange", exchange.name, exchange.arguments.get("alternate-exchange"))
            case DeclareQueue(queue=queue):
                _declares(needs, "queue", queue.name, queue.arguments.get("x-dead-letter-exchange"))
            case Bind(binding=bound) | Unbind(binding=bound):
                to = bound.destination
                needs.write.add(("exchange", to.name) if isinstance(to, ToExchange) else ("queue", to))
                needs.read.add(("exchange", bound.source))
                if bound.source in rings:
                    needs.configure.add(("exchange", ORDER_EXCHANGE))
                    needs.read.add(("exchange", ORDER_EXCHANGE))
                    needs.write.add(("exchange", bound.source))
            case DeleteExchange(name=name):
                needs.configure.add(("exchange", name))
            case DeleteQueue(name=name):
                needs.configure.add(("queue", name))
    return needs


def _declares(needs: Needs, kind: str, name: str, onward: Any) -> None:
    """Forwarding messages to another exchange takes read permission here and write permission there."""
    needs.configure.add((kind, name))
    if isinstance(onward, str):
        needs.read.add((kind, name))
        needs.write.add(("exchange", onward or DEFAULT_EXCHANGE))
