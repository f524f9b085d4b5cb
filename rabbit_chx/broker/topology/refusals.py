"""What a broker's refusal means for a plan, and the way out. Texts in, texts out; no socket.

The broker's answers were taken from 3.10.8, 4.0.5 and 4.3.6; 3.10 does not say which permission is missing, so
that is told from the command.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.broker.claims import LOCK
from rabbit_chx.broker.topology.rings import MARKER
from rabbit_chx.ring import ToExchange
from rabbit_chx.topology.steps import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Unbind,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rabbit_chx.topology.steps import Step

__all__ = ["Needs", "why_refused"]

_DENIED = re.compile(
    r"(?:(configure|write|read) )?access to (queue|exchange) '(.*)' in vhost '(.*)' refused for user '(.*)'",
    re.DOTALL,
).search
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(.*?)' for (queue|exchange) '(.*)' in vhost '.*': received (.*) but current is (.*)",
    re.DOTALL,
).search
_UNKNOWN_TYPE = re.compile(r"(?:unknown|invalid) exchange type '(.*)'", re.DOTALL).search
_NOT_FOUND = re.compile(r"no (queue|exchange) '(.*)' in vhost '(.*)'", re.DOTALL).search

_PLUGINS: Final = {
    "x-consistent-hash": "rabbitmq_consistent_hash_exchange",
    "x-modulus-hash": "rabbitmq_sharding",
    "x-random": "rabbitmq_random_exchange",
    "x-recent-history": "rabbitmq_recent_history_exchange",
    "x-jms-topic": "rabbitmq_jms_topic_exchange",
    "x-rtopic": "rabbitmq_rtopic_exchange",
    "x-delayed-message": "rabbitmq_delayed_message_exchange",
}


def why_refused(code: int, text: str, step: Step | None, steps: Sequence[Step], vhost: str) -> str:
    """A refusal in full: what, where, and what would help."""
    if found := _DENIED(text):
        operation, kind, name, vhost, user = found.groups()
        needs = Needs.of([step] if step is not None else [])
        return _denied(operation or needs.on(kind, name), kind, name, vhost, user, Needs.of(steps))
    if found := _INEQUIVALENT(text):
        return _inequivalent(*(part.strip("'") for part in found.groups()))
    if found := _UNKNOWN_TYPE(text):
        return _unknown_type(found[1])
    if found := _NOT_FOUND(text):
        return f"there is no {found[1]} {found[2]!r} in virtual host {found[3]!r}: was it deleted since? plan again"
    if text.endswith(" in use"):
        return (
            f"the broker refuses: {code} {text}: bindings lead away from it, or it has consumers; plan again"
        )
    if code == 541:
        return "the broker itself failed (541 INTERNAL_ERROR); its log says over what"
    return f"the broker refuses: {code} {text}" if code else text


def _denied(operation: str, kind: str, name: str, vhost: str, user: str, needs: Needs) -> str:
    patterns = " ".join(shlex.quote(_pattern(names)) for names in (needs.configure, needs.write, needs.read))
    return (
        f"user {user!r} has no {operation} permission on {kind} {name!r} in virtual host {vhost!r}; "
        f"`rabbitmqctl set_permissions -p {shlex.quote(vhost)} {shlex.quote(user)} {patterns}` grants all that the "
        "plan needs, and replaces the patterns that the user has there"
    )


def _inequivalent(argument: str, kind: str, name: str, received: str, current: str) -> str:
    way_out = (
        "declare a second exchange under another name and switch what feeds it (blue/green)"
        if kind == "exchange"
        else "declare another queue, bind it in place of this one, and let this one drain"
    )
    return (
        f"{kind} {name!r} is there already, and {argument!r} cannot be changed in place: it is {current}, and "
        f"{received} is wanted; nothing is deleted to make room: {way_out}"
    )


def _unknown_type(name: str) -> str:
    plugin = _PLUGINS.get(name)
    if name == "x-local-random":
        return "the exchange type 'x-local-random' came with release 4.0"
    if plugin is None:
        return f"the broker does not know the exchange type {name!r}: `rabbitmqctl list_exchanges type` shows some"
    return f"the broker does not know the exchange type {name!r}: `rabbitmq-plugins enable {plugin}` on each node"


@dataclass
class Needs:
    """The permissions that steps need, by resource (`access-control` in RabbitMQ's documentation)."""

    configure: set[tuple[str, str]] = field(default_factory=set)
    write: set[tuple[str, str]] = field(default_factory=set)
    read: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Needs:
        """What these steps need together, the lock included."""
        needs = cls(configure={("queue", LOCK)})
        for step in steps:
            match step:
                case DeclareExchange(exchange=exchange):
                    needs._declares("exchange", exchange.name, exchange.arguments.get("alternate-exchange"))
                case DeclareQueue(queue=queue):
                    needs._declares("queue", queue.name, queue.arguments.get("x-dead-letter-exchange"))
                case Bind(bound=bound) | Unbind(bound=bound):
                    to = bound.destination
                    needs.write.add(("exchange", to.name) if isinstance(to, ToExchange) else ("queue", to))
                    needs.read.add(("exchange", bound.source))
                    if bound.sequence is not None:
                        needs.configure.add(("exchange", MARKER))
                case DeleteExchange(name=name):
                    needs.configure.add(("exchange", name))
                case DeleteQueue(name=name):
                    needs.configure.add(("queue", name))
        return needs

    def _declares(self, kind: str, name: str, onward: Any) -> None:
        """To send messages on to another exchange is to read here and to write there."""
        self.configure.add((kind, name))
        if isinstance(onward, str):
            self.read.add((kind, name))
            self.write.add(("exchange", onward or "amq.default"))

    def on(self, kind: str, name: str) -> str:
        """Which of the three are needed on one resource: one, as a rule."""
        found = [each for each in ("configure", "write", "read") if (kind, name) in getattr(self, each)]
        return " or ".join(found) or "such"


def _pattern(resources: set[tuple[str, str]]) -> str:
    names = sorted({re.escape(name) for _, name in resources})
    return f"^({'|'.join(names)})$" if len(names) > 1 else f"^{''.join(names)}$"
