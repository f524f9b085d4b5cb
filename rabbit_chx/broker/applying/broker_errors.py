"""What a broker's refusal means for a plan, and the way out. Texts in, texts out; no socket.

The broker's answers were taken from 3.10.8, 4.0.5 and 4.3.6.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rabbit_chx.broker.applying.lock import LOCK
from rabbit_chx.broker.permissions import DEFAULT_EXCHANGE, Needs, why_denied
from rabbit_chx.broker.reading.ring_order import MARKER
from rabbit_chx.plugins import why_no_type
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.planning.steps import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Unbind,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rabbit_chx.topology.planning.steps import Step

__all__ = ["needs_of", "why_refused"]

_INEQUIVALENT = re.compile(
    r"inequivalent arg '(.*?)' for (queue|exchange) '(.*)' in vhost '.*': received (.*) but current is (.*)",
    re.DOTALL,
).search
_UNKNOWN_TYPE = re.compile(r"(?:unknown|invalid) exchange type '(.*)'", re.DOTALL).search
_NOT_FOUND = re.compile(r"no (queue|exchange) '(.*)' in vhost '(.*)'", re.DOTALL).search


def why_refused(code: int, text: str, step: Step | None, steps: Sequence[Step]) -> str:
    """A refusal in full: what, where, and what would help."""
    at = needs_of([step] if step is not None else [])
    if denied := why_denied(text, needs_of(steps), at=at, what="the plan"):
        return denied
    if found := _INEQUIVALENT(text):
        return _inequivalent(*(part.strip("'") for part in found.groups()))
    if found := _UNKNOWN_TYPE(text):
        return why_no_type(found[1])
    if found := _NOT_FOUND(text):
        return f"there is no {found[1]} {found[2]!r} in virtual host {found[3]!r}: was it deleted since? plan again"
    if text.endswith(" in use"):
        return (
            f"the broker refuses: {code} {text}: bindings lead away from it, or it has consumers; plan again"
        )
    if code == 541:
        return "the broker itself failed (541 INTERNAL_ERROR); its log says over what"
    return f"the broker refuses: {code} {text}" if code else text


def _inequivalent(argument: str, kind: str, name: str, received: str, current: str) -> str:
    hint = (
        "declare a second exchange under another name and switch what feeds it (blue/green)"
        if kind == "exchange"
        else "declare another queue, bind it in place of this one, and let this one drain"
    )
    return (
        f"{kind} {name!r} is there already, and {argument!r} cannot be changed in place: it is {current}, and "
        f"{received} is wanted; nothing is deleted to make room: {hint}"
    )


def needs_of(steps: Iterable[Step]) -> Needs:
    """What these steps need together, the lock included."""
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
                if isinstance(step, Bind) and bound.sequence is not None:
                    needs.configure.add(("exchange", MARKER))
            case DeleteExchange(name=name):
                needs.configure.add(("exchange", name))
            case DeleteQueue(name=name):
                needs.configure.add(("queue", name))
    return needs


def _declares(needs: Needs, kind: str, name: str, onward: Any) -> None:
    """To send messages on to another exchange is to read here and to write there."""
    needs.configure.add((kind, name))
    if isinstance(onward, str):
        needs.read.add((kind, name))
        needs.write.add(("exchange", onward or DEFAULT_EXCHANGE))
